"""Response of `POST /v1/messages`, as one body or as a stream of named events."""

from collections.abc import Iterator
from itertools import chain

import orjson

from penstock.chassis.errors import PenstockError
from penstock.edge.api.anthropic.blocks import TEXT, BlockStream, Piece, WholeCalls, content_blocks
from penstock.edge.api.anthropic.errors import error_body
from penstock.edge.api.openai.common import AnyDelta, ApiRequest, Json, extra_members
from penstock.edge.api.openai.streaming import named_sse_event
from penstock.edge.output.answer import AnswerParser, OutputFormat
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, Accepted, Finished

PING = named_sse_event("ping", {"type": "ping"})


def message_serializer(_request: ApiRequest, *, output: OutputFormat, **_unused: object) -> "MessageSerializer":
    """Return the serializer of a message, which has no time and no log probabilities."""
    return MessageSerializer(output)


class MessageSerializer:
    """Serializes a message. A stream has its start, blocks one after the other, the reason of its end, and its stop."""

    __slots__ = ("_blocks", "_calls", "_output", "_parser")

    def __init__(self, output: OutputFormat) -> None:
        self._output = output

    def begin(self, accepted: Accepted) -> bytes:
        self._blocks = BlockStream()
        self._calls = WholeCalls(accepted.answer_id)
        self.on_model_changed(self._output)
        usage = _usage(accepted.prompt_tokens, cached_tokens=0, output_tokens=0)
        message = {**_message(accepted, []), **_ending(None, ""), "usage": usage}
        return named_sse_event("message_start", {"type": "message_start", "message": message})

    def on_model_changed(self, output: OutputFormat) -> None:
        self._parser = None if output.is_plain else AnswerParser(output)

    def delta(self, delta: AnyDelta) -> bytes:
        if self._parser is None:
            return self._blocks.text(TEXT, delta.text)
        return self._frames(self._calls.pieces(self._parser.feed(delta.text)))

    def collect_logprobs(self, delta: AnyDelta) -> None:
        """Does nothing: messages have no log probabilities."""

    def finish(self, finished: Finished) -> bytes:
        rest = self._frames(self._calls.pieces(self._parser.flush())) if self._parser else b""
        ending = {"delta": _ending(_stop_reason(finished, self._calls.count), finished.stop_string)}
        members = {"type": "message_delta", **ending, "usage": _usage_of(finished), **extra_members(finished)}
        stop = named_sse_event("message_stop", {"type": "message_stop"})
        return rest + self._blocks.close() + named_sse_event("message_delta", members) + stop

    def fail(self, error: PenstockError) -> bytes:
        return named_sse_event("error", error_body(error))

    def whole(self, accepted: Accepted, text: str, finished: Finished) -> bytes:
        parser, calls = AnswerParser(self._output), WholeCalls(accepted.answer_id)
        blocks = content_blocks(calls.pieces(chain(parser.feed(text), parser.flush())))
        ending = _ending(_stop_reason(finished, calls.count), finished.stop_string)
        message = {**_message(accepted, blocks), **ending, "usage": _usage_of(finished)}
        return orjson.dumps(message | extra_members(finished))

    def _frames(self, pieces: Iterator[Piece]) -> bytes:
        return b"".join(map(self._blocks.frames, pieces))


def _message(accepted: Accepted, content: list[Json]) -> Json:
    return {
        "id": f"msg_{accepted.request_id}",
        "type": "message",
        "role": "assistant",
        "model": accepted.model,
        "content": content,
    }


def _ending(stop_reason: str | None, stop_string: str) -> Json:
    return {"stop_reason": stop_reason, "stop_sequence": stop_string or None}


def _stop_reason(finished: Finished, calls: int) -> str:
    if finished.reason == FINISH_REASON_LENGTH:
        return "max_tokens"
    if finished.stop_string:
        return "stop_sequence"
    return "tool_use" if calls else "end_turn"


def _usage_of(finished: Finished) -> Json:
    counts = finished.usage
    return _usage(counts.prompt_tokens, cached_tokens=counts.cached_prompt_tokens, output_tokens=counts.output_tokens)


def _usage(prompt_tokens: int, *, cached_tokens: int, output_tokens: int) -> Json:
    """Return the usage. In this API, `input_tokens` are those of the prompt that no cache had."""
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": output_tokens,
    }
