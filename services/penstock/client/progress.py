"""What a caller gets of an answer at a time."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from penstock.chassis.errors import Internal
from penstock.v1.inference_pb2 import Accepted, Delta, Finished, GenerateRequest


class TokenChunk(NamedTuple):
    """The tokens of one step, and the text they have brought; the text is empty while a character is incomplete."""

    text: str
    token_ids: Sequence[int]
    first_index: int  # of the first token in the answer, from 0
    logprobs: Sequence[float] = ()  # one for each token, if asked for


Event: TypeAlias = Accepted | Delta | Finished


class IndexGap(Internal):
    """Tokens are missing in what an edge has sent; the answer cannot be trusted from there on."""

    default_reason = "INDEX_GAP"


class Progress:
    """Takes events of any attempt; gives each token once, in order, and the request that continues after the last."""

    def __init__(self, request: GenerateRequest) -> None:
        self._request = request
        self._texts: list[str] = []
        self.token_ids: list[int] = []
        self.accepted: Accepted | None = None
        self.finished: Finished | None = None
        self.duplicate_tokens = 0  # tokens that came again and were dropped
        self._has_trailing_text = (
            False  # the text after the last token, which a resumed answer that is whole is sent again
        )

    def __repr__(self) -> str:
        return f"<Progress {len(self.token_ids)} tokens{', finished' if self.finished else ''}>"

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def apply(self, event: Event) -> TokenChunk | None:
        """Return what is new in `event`, if anything; raises IndexGap when tokens before it are missing."""
        if isinstance(event, Delta):
            return self._apply_delta(event)
        if isinstance(event, Finished):
            self.finished = event
        elif self.accepted is None:  # what a later attempt is granted follows from the first
            self.accepted = event
        return None

    def next_request(self) -> GenerateRequest:
        """What to ask next: the request as given, or how it goes on after what has come.

        Once an edge has taken it in, the model, the seed and the length are settled, whatever another would choose.
        """
        request = GenerateRequest()
        request.CopyFrom(self._request)
        if self.accepted:
            request.request_id = self.accepted.request_id
            request.model = self.accepted.model
            request.max_output_tokens = self.accepted.max_output_tokens
            request.sampling.seed = self.accepted.seed
            if self.accepted.answer_id:  # also without a token: its prompt may be charged already
                request.resume.answer_id = self.accepted.answer_id
        if self.token_ids:
            request.resume.token_ids[:] = [*self._request.resume.token_ids, *self.token_ids]
        return request

    def _apply_delta(self, delta: Delta) -> TokenChunk | None:
        expected, first, count = self._next_index, delta.first_index, len(delta.token_ids)
        if first < expected and first + count <= expected:
            self.duplicate_tokens += count
            return None
        if first != expected:
            raise IndexGap(f"the edge sent token {first} where {expected} was next; ask again")
        if not count and self._has_trailing_text:
            return None
        self._has_trailing_text = not count
        self.token_ids += delta.token_ids
        self._texts.append(delta.text)
        logprobs = tuple(delta.logprobs) if self._request.sampling.logprobs else ()
        return TokenChunk(delta.text, tuple(delta.token_ids), first, logprobs)

    @property
    def _next_index(self) -> int:
        return len(self._request.resume.token_ids) + len(self.token_ids)
