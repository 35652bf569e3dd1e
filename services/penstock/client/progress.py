"""Progress of one answer over all attempts: duplicate tokens are dropped, and the next attempt resumes."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from penstock.chassis.errors import Internal
from penstock.v1.inference_pb2 import Accepted, Delta, Finished, GenerateRequest


class TokenChunk(NamedTuple):
    """The tokens and text of one step. The text is empty while a character is incomplete."""

    text: str
    token_ids: Sequence[int]
    first_index: int  # index of the first token in the answer, from 0
    logprobs: Sequence[float] = ()  # one for each token, if requested
    top_token_ids: Sequence[int] = ()  # the likeliest tokens of each position, `top_logprobs` of the request for each
    top_logprobs: Sequence[float] = ()  # of each of `top_token_ids`


Event: TypeAlias = Accepted | Delta | TokenChunk | Finished


class IndexGap(Internal):
    """Tokens are missing in the frames of an edge, so the answer is invalid from there on."""

    default_reason = "INDEX_GAP"


class Progress:
    """Applies the events of all attempts. Returns each token once and in order, and the next request."""

    def __init__(self, request: GenerateRequest) -> None:
        self._request = request
        self._texts: list[str] = []
        self.token_ids: list[int] = []
        self.accepted: Accepted | None = None
        self.finished: Finished | None = None
        self.duplicate_tokens = 0  # tokens that were received again and dropped
        # Whether the text after the last token was received. A complete answer that is resumed sends it again.
        self._has_trailing_text = False

    def __repr__(self) -> str:
        return f"<Progress {len(self.token_ids)} tokens{', finished' if self.finished else ''}>"

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def apply(self, event: Event) -> TokenChunk | None:
        """Return the new tokens of an event, or None. Raises IndexGap if tokens before them are missing."""
        if isinstance(event, TokenChunk | Delta):
            return self._apply_delta(event)
        if isinstance(event, Finished):
            self.finished = event
        elif self.accepted is None:  # later attempts use the values of the first
            self.accepted = Accepted()
            self.accepted.CopyFrom(event)
        elif not self._next_index:  # except the version of the model, which may change before the first token
            self.accepted.model_version = event.model_version
        return None

    def next_request(self) -> GenerateRequest:
        """Return the request of the next attempt, which resumes after the tokens received so far.

        Model, seed and output limit are those that the first edge accepted, even if another edge would choose others.
        """
        request = GenerateRequest()
        request.CopyFrom(self._request)
        if self.accepted:
            request.request_id = self.accepted.request_id
            request.model = self.accepted.model
            request.max_output_tokens = self.accepted.max_output_tokens
            request.sampling.seed = self.accepted.seed
            if self.accepted.answer_id:  # also without a token, because the prompt may be charged already
                request.resume.answer_id = self.accepted.answer_id
        if self.token_ids:
            request.resume.token_ids[:] = [*self._request.resume.token_ids, *self.token_ids]
            request.resume.model_version = self.accepted.model_version if self.accepted else ""
        return request

    def _apply_delta(self, delta: Delta | TokenChunk) -> TokenChunk | None:
        expected, first, count = self._next_index, delta.first_index, len(delta.token_ids)
        if first < expected and first + count <= expected:
            self.duplicate_tokens += count
            return None
        if first != expected:
            raise IndexGap(f"the edge sent token {first} where {expected} was next; send the request again")
        if not count and self._has_trailing_text:
            return None
        self._has_trailing_text = not count
        self.token_ids += delta.token_ids
        self._texts.append(delta.text)
        sampling = self._request.sampling
        logprobs = tuple(delta.logprobs) if sampling.logprobs or sampling.top_logprobs else ()
        top = (tuple(delta.top_token_ids), tuple(delta.top_logprobs)) if sampling.top_logprobs else ((), ())
        return TokenChunk(delta.text, tuple(delta.token_ids), first, logprobs, *top)

    @property
    def _next_index(self) -> int:
        return len(self._request.resume.token_ids) + len(self.token_ids)
