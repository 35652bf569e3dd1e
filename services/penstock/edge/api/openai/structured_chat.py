"""Chat completions whose text is divided into reasoning, content and tool calls."""

from collections.abc import Iterable

import orjson

from penstock.chassis.errors import PenstockError
from penstock.edge.api.openai.chat import chat_choice, chat_envelope, content_choice, logprobs_member
from penstock.edge.api.openai.common import AnyDelta, ApiRequest, Json, extra_members, finish_reason, usage_of
from penstock.edge.api.openai.logprobs import logprob_entries
from penstock.edge.api.openai.streaming import ChunkStream
from penstock.edge.output.answer import AnswerParser, OutputFormat, call_id, parse_answer
from penstock.edge.output.events import CallArguments, CallFinished, CallStarted, Event, ReasoningPart, TextPart
from penstock.edge.request.tools import ToolCall
from penstock.edge.text.token_text import DescribeToken, no_text
from penstock.v1.inference_pb2 import FINISH_REASON_STOP, Accepted, Finished


class StructuredChatSerializer:
    """Serializes a chat completion with reasoning or tool calls. Its stream has their deltas beside those of text.

    Log probabilities of all tokens, also of those of reasoning and calls, come in chunks of their own.
    """

    __slots__ = (
        "_answer_id",
        "_chunks",
        "_created",
        "_describe",
        "_finished_calls",
        "_logprobs",
        "_output",
        "_parser",
        "_request",
    )

    def __init__(
        self, request: ApiRequest, output: OutputFormat, *, created: int, describe: DescribeToken = no_text
    ) -> None:
        """`created`: unix s. `describe`: returns the text of a token."""
        self._request = request
        self._output = output
        self._created = created
        self._describe = describe
        self._logprobs: list[Json] = []
        self._finished_calls = 0

    def begin(self, accepted: Accepted) -> bytes:
        self._parser = AnswerParser(self._output)
        self._answer_id = accepted.answer_id
        envelope = chat_envelope(accepted, "chat.completion.chunk", self._created)
        self._chunks = ChunkStream(envelope, content_choice, self._request, accepted.prompt_tokens)
        return self._chunks.choice(chat_choice({"role": "assistant", "content": "", "refusal": None}))

    def on_model_changed(self, output: OutputFormat) -> None:
        self._parser = AnswerParser(output)

    def delta(self, delta: AnyDelta) -> bytes:
        self._chunks.text("", len(delta.token_ids))  # counts them
        chunks = self._serialized(self._parser.feed(delta.text))
        if not delta.logprobs:
            return chunks
        logprobs = logprobs_member(logprob_entries(delta, self._describe))
        return chunks + self._chunks.choice(chat_choice({}) | {"logprobs": logprobs})

    def collect_logprobs(self, delta: AnyDelta) -> None:
        self._logprobs += logprob_entries(delta, self._describe)

    def finish(self, finished: Finished) -> bytes:
        rest = self._serialized(self._parser.flush())
        return rest + self._chunks.end(chat_choice({}, _reason(finished, self._finished_calls)), finished)

    def close(self, usage: Json) -> bytes:
        return self._chunks.close(usage)

    def fail(self, error: PenstockError) -> bytes:
        return self._chunks.fail(error)

    def whole(self, accepted: Accepted, text: str, finished: Finished) -> bytes:
        answer = parse_answer(self._output, text, accepted.answer_id)
        message: Json = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.calls:
            message["content"] = answer.text or None
            message["tool_calls"] = [_call_member(call) for call in answer.calls]
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        choice = {
            "index": self._request.choice,
            "message": message,
            "logprobs": logprobs_member(self._logprobs) if self._logprobs else None,
            "finish_reason": _reason(finished, len(answer.calls)),
        }
        envelope = chat_envelope(accepted, "chat.completion", self._created)
        return orjson.dumps({**envelope, "choices": [choice], "usage": usage_of(finished), **extra_members(finished)})

    def _serialized(self, events: Iterable[Event]) -> bytes:
        return b"".join([self._chunk(event) for event in events])

    def _chunk(self, event: Event) -> bytes:
        match event:
            case TextPart(text):
                return self._chunks.text(text, 0)
            case ReasoningPart(text):
                return self._chunks.choice(chat_choice({"reasoning_content": text}))
            case CallStarted(index, name):
                call = {"index": index, **_call_member(ToolCall(call_id(self._answer_id, index), name, ""))}
                return self._chunks.choice(chat_choice({"tool_calls": [call]}))
            case CallArguments(index, text):
                call = {"index": index, "function": {"arguments": text}}
                return self._chunks.choice(chat_choice({"tool_calls": [call]}))
            case CallFinished():
                self._finished_calls += 1
        return b""


def _call_member(call: ToolCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _reason(finished: Finished, calls: int) -> str:
    return "tool_calls" if calls and finished.reason == FINISH_REASON_STOP else finish_reason(finished)
