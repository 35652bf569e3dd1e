"""Server-sent events. The constant parts of an answer's chunks are serialized once."""

from collections.abc import Callable

import orjson

from penstock.chassis.errors import PenstockError
from penstock.edge.api.openai.common import ApiRequest, Json, extra_members, usage, usage_of
from penstock.edge.api.openai.errors import error_body
from penstock.v1.inference_pb2 import Finished

# Line separators of Unicode that JSON leaves as they are. Many readers, such as httpx, end a line at them.
_LINE_SEPARATORS = {each.encode(): b"\\u%04x" % ord(each) for each in "\x85\u2028\u2029"}

SSE_DONE = b"data: [DONE]\n\n"
SSE_KEEPALIVE = b": waiting\n\n"  # a comment, which readers ignore


def one_line_json(payload: object) -> bytes:
    """Serialize `payload` as JSON without any separator of lines."""
    encoded = orjson.dumps(payload)
    if not encoded.isascii():
        for separator, escaped in _LINE_SEPARATORS.items():
            encoded = encoded.replace(separator, escaped)
    return encoded


def sse_event(payload: object) -> bytes:
    return b"data: " + one_line_json(payload) + b"\n\n"


def named_sse_event(name: str, payload: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + one_line_json(payload) + b"\n\n"


def split_at_marker(frame: bytes, marker: str) -> tuple[bytes, bytes]:
    """Split a frame at the JSON string `marker`: the bytes before that value and after it."""
    before, found, after = frame.partition(orjson.dumps(marker))
    assert found, "the marker is one of the frame's strings"
    return before, after


TextChoice = Callable[[str], Json]  # builds the choice of a chunk from its text

_MARKER = "\0text"


class ChunkStream:
    """Serializes the chunks of one answer. Only the text of a delta is serialized for each chunk."""

    __slots__ = (
        "_after",
        "_before",
        "_envelope",
        "_has_usage",
        "_index",
        "_is_continuous",
        "_is_one_of_several",
        "_output_tokens",
        "_prompt_tokens",
        "_text_choice",
    )

    def __init__(self, envelope: Json, text_choice: TextChoice, request: ApiRequest, prompt_tokens: int) -> None:
        self._envelope = envelope
        self._text_choice = text_choice
        self._index = request.choice
        self._is_one_of_several = request.is_one_of_several
        self._has_usage = request.include_usage
        self._is_continuous = request.continuous_usage
        self._prompt_tokens = prompt_tokens
        self._output_tokens = 0
        self._before, self._after = split_at_marker(self.choice(text_choice(_MARKER)), _MARKER)

    def text(self, text: str, tokens: int) -> bytes:
        """Return the chunk of a delta. Empty if its text is held back; its tokens count nevertheless."""
        self._output_tokens += tokens
        if not text:
            return b""
        if self._is_continuous:
            return self.choice(self._text_choice(text))
        return self._before + one_line_json(text) + self._after

    def counted(self, choice: Json, tokens: int) -> bytes:
        """Return the chunk of a choice with more than text, and count its tokens."""
        self._output_tokens += tokens
        return self.choice(choice)

    def choice(self, choice: Json) -> bytes:
        return sse_event(self._chunk(choice))

    def end(self, choice: Json, finished: Finished) -> bytes:
        """Return the last chunk of a choice, and the end of the stream unless further choices follow."""
        last = sse_event(self._chunk(choice) | extra_members(finished))
        return last if self._is_one_of_several else last + self.close(usage_of(finished))

    def close(self, usage: Json) -> bytes:
        """Return the end of a stream: its usage on request, and [DONE]."""
        if self._has_usage:
            return sse_event({**self._envelope, "choices": [], "usage": usage}) + SSE_DONE
        return SSE_DONE

    def fail(self, error: PenstockError) -> bytes:
        """Return an error without [DONE], which clients would take for success."""
        return sse_event(error_body(error))

    def _chunk(self, choice: Json) -> Json:
        chunk = {**self._envelope, "choices": [choice | {"index": self._index}]}
        if self._has_usage:
            chunk["usage"] = usage(self._prompt_tokens, self._output_tokens) if self._is_continuous else None
        return chunk
