"""Log probabilities of an answer's tokens in the formats of the API."""

import codecs
from collections.abc import Iterator

from penstock.edge.api.openai.common import AnyDelta, Json
from penstock.edge.text.token_text import DescribeToken

MIN_LOGPROB = -9999.0  # as in the API, since JSON has no infinity
_utf8_decoder = codecs.getincrementaldecoder("utf-8")


def logprob_entries(delta: AnyDelta, describe: DescribeToken) -> list[Json]:
    """Return an entry for each token of a delta, with its likeliest tokens, as in chat completions and responses."""
    top = _likeliest(delta)
    return [
        _entry(token_id, logprob, describe) | {"top_logprobs": [_entry(*each, describe) for each in next(top)]}
        for token_id, logprob in zip(delta.token_ids, delta.logprobs, strict=True)
    ]


def _entry(token_id: int, logprob: float, describe: DescribeToken) -> Json:
    text, encoded = describe(token_id)
    return {"token": text, "logprob": max(logprob, MIN_LOGPROB), "bytes": None if encoded is None else list(encoded)}


def _likeliest(delta: AnyDelta) -> Iterator[list[tuple[int, float]]]:
    """Yield the likeliest tokens, with their log probabilities, at the position of each token of a delta."""
    count = len(delta.top_token_ids) // max(1, len(delta.token_ids))
    for place in range(len(delta.token_ids)):
        here = slice(place * count, (place + 1) * count)
        yield list(zip(delta.top_token_ids[here], delta.top_logprobs[here], strict=True))


class CompletionLogprobs:
    """Log probabilities of a text completion: parallel lists, of which the offsets continue from delta to delta."""

    __slots__ = ("_describe", "_offset", "_utf8")

    def __init__(self, describe: DescribeToken, offset: int = 0) -> None:
        """`offset`: characters before the first token, for an answer that repeats its prompt."""
        self._describe = describe
        self._offset = offset
        self._utf8 = _utf8_decoder(errors="replace")

    def of(self, *deltas: AnyDelta) -> Json:
        lists: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for delta in deltas:
            for token_id, logprob, top in zip(delta.token_ids, delta.logprobs, _likeliest(delta), strict=True):
                lists["tokens"].append(self._name(token_id))
                lists["token_logprobs"].append(max(logprob, MIN_LOGPROB))
                lists["top_logprobs"].append(self._by_name([*top, (token_id, logprob)]))
                lists["text_offset"].append(self._offset)
                self._offset += len(self._utf8.decode(self._describe(token_id).encoded or b""))
        return lists

    def _by_name(self, tokens: list[tuple[int, float]]) -> dict[str, float]:
        """Return log probabilities by name. Of tokens with one name, the likeliest, which is the first, is kept."""
        by_name: dict[str, float] = {}
        for token_id, logprob in tokens:
            by_name.setdefault(self._name(token_id), max(logprob, MIN_LOGPROB))
        return by_name

    def _name(self, token_id: int) -> str:
        text, encoded = self._describe(token_id)
        return f"bytes:{text}" if encoded is not None and text.encode() != encoded else text
