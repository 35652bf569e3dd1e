"""Output log: the output of one response by token, in few bytes, for readers at any position."""

from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise

from penstock.edge.lifecycle.effects import Emit
from penstock.mesh.v1.responses_pb2 import ResponseTokens

MAX_PART_TOKENS = 4_096  # 1.2 MB with 20 likeliest tokens each


class PartsBroken(Exception):
    """Stored parts of an output do not fit together."""


class OutputLog:
    """The tokens of one response with the text that each adds. One entry per token, so that its events are the same
    at every edge that has the tokens.
    """

    __slots__ = ("_ends", "_logprobs", "_text", "_token_ids", "_top_logprobs", "_top_token_ids")

    def __init__(self) -> None:
        self._token_ids = array("I")
        self._text = bytearray()  # UTF-8
        self._ends = array("I")  # by token: end of its text
        self._logprobs = array("d")
        self._top_token_ids = array("I")
        self._top_logprobs = array("d")

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self._token_ids)

    @property
    def token_ids(self) -> Sequence[int]:
        return self._token_ids

    @property
    def text(self) -> str:
        return self._text.decode()

    def append(self, delta: Emit) -> None:
        """Add a delta of one token."""
        self._token_ids.extend(delta.token_ids)
        self._text += delta.text.encode()
        self._ends.append(len(self._text))
        if delta.logprobs:
            self._logprobs.extend(delta.logprobs)
            self._top_token_ids.extend(delta.top_token_ids)
            self._top_logprobs.extend(delta.top_logprobs)

    def __getitem__(self, index: int) -> Emit:
        """Return the delta of one token."""
        start = self._ends[index - 1] if index else 0
        text = self._text[start : self._ends[index]].decode()
        token_ids = (self._token_ids[index],)
        if not self._logprobs:
            return Emit(text, token_ids, index, ())
        tops = slice(index * self._tops, (index + 1) * self._tops)
        top_ids, top_logprobs = self._top_token_ids[tops].tolist(), self._top_logprobs[tops].tolist()
        return Emit(text, token_ids, index, (self._logprobs[index],), top_ids, top_logprobs)

    @property
    def _tops(self) -> int:
        """The number of likeliest tokens beside each token."""
        return len(self._top_token_ids) // len(self._token_ids)

    def part(self, start: int) -> ResponseTokens:
        """Return the tokens from `start` on, at most `MAX_PART_TOKENS`."""
        end = min(len(self), start + MAX_PART_TOKENS)
        first, last = self._ends[start - 1] if start else 0, self._ends[end - 1] if end else 0
        ends = (first, *self._ends[start:end])
        part = ResponseTokens(
            token_ids=self._token_ids[start:end],
            text=bytes(self._text[first:last]),
            text_bytes=[end - begin for begin, end in pairwise(ends)],
        )
        if self._logprobs:
            tops = slice(start * self._tops, end * self._tops)
            part.logprobs.extend(self._logprobs[start:end])
            part.top_token_ids.extend(self._top_token_ids[tops])
            part.top_logprobs.extend(self._top_logprobs[tops])
        return part

    def add_part(self, first_index: int, part: ResponseTokens) -> None:
        """Add tokens that follow, or that are known already in part. Raises PartsBroken."""
        known = len(self) - first_index
        count = len(part.token_ids)
        if known < 0 or len(part.text_bytes) != count or sum(part.text_bytes) != len(part.text):
            raise PartsBroken(f"tokens from {first_index} on do not follow {len(self)} tokens")
        if known >= count:
            return
        skipped = sum(part.text_bytes[:known])
        start = len(self._text)
        self._text += part.text[skipped:]
        self._ends.extend(start + end for end in accumulate(part.text_bytes[known:]))
        self._token_ids.extend(part.token_ids[known:])
        if part.logprobs:
            tops = known * (len(part.top_token_ids) // count)
            self._logprobs.extend(part.logprobs[known:])
            self._top_token_ids.extend(part.top_token_ids[tops:])
            self._top_logprobs.extend(part.top_logprobs[tops:])
