"""The endpoint `POST /v1/chat/completions`: request body and response."""

import orjson

from penstock.chassis.errors import InvalidArgument, PenstockError
from penstock.edge.api.openai.body.fields import Fields, wrong_type
from penstock.edge.api.openai.body.messages import message_from
from penstock.edge.api.openai.body.output_form import requested_form
from penstock.edge.api.openai.body.token_options import chat_logprobs, logit_bias
from penstock.edge.api.openai.body.tools import chat_input
from penstock.edge.api.openai.body.unsupported import UNSUPPORTED_IN_CHAT, reject_unsupported
from penstock.edge.api.openai.common import (
    AnyDelta,
    ApiRequest,
    Json,
    extra_members,
    finish_reason,
    generation_options,
    usage_flags,
    usage_of,
)
from penstock.edge.api.openai.logprobs import logprob_entries
from penstock.edge.api.openai.streaming import ChunkStream
from penstock.edge.output.answer import OutputFormat
from penstock.edge.request.spec import ChatInput, Message, RequestSpec
from penstock.edge.request.validation import validate
from penstock.edge.text.token_text import DescribeToken, no_text
from penstock.v1.inference_pb2 import Accepted, Finished


def parse_chat(fields: Fields, request_id: str) -> ApiRequest:
    """Parse a body. Raises InvalidArgument with the path of the field."""
    reject_unsupported(fields, UNSUPPORTED_IN_CHAT)
    limit = "max_tokens" if fields.get("max_completion_tokens") is None else "max_completion_tokens"
    spec = RequestSpec(
        request_id=request_id,
        model=fields.text("model"),
        input=conversation(fields),
        max_output_tokens=fields.integer(limit, None),
        form=requested_form(fields),
        **generation_options(fields),
        logit_bias=logit_bias(fields),
        **chat_logprobs(fields),
        n=fields.integer("n", 1),
    )
    validate(spec, {"input": "messages", "max_output_tokens": limit})
    include_usage, continuous_usage = usage_flags(fields)
    return ApiRequest(
        spec=spec,
        stream=fields.flag("stream"),
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        answers=spec.n,
    )


def conversation(fields: Fields) -> ChatInput:
    """Return the messages and tools of a body. Raises InvalidArgument with the path of the field."""
    return chat_input(fields, _messages(fields))


def _messages(fields: Fields) -> tuple[Message, ...]:
    messages = fields.get("messages")
    if messages is None:
        raise InvalidArgument("messages is missing; give a list with at least one message", field="messages")
    if not isinstance(messages, list):
        raise wrong_type("messages", "a list of messages", messages)
    return tuple([message_from(each, f"messages[{index}]") for index, each in enumerate(messages)])


class ChatSerializer:
    """Serializes a chat completion. A stream has the role, deltas, the finish reason, usage on request, and [DONE]."""

    __slots__ = ("_chunks", "_created", "_describe", "_has_logprobs", "_logprobs", "_request")

    def __init__(self, request: ApiRequest, *, created: int, describe: DescribeToken = no_text) -> None:
        """`created`: unix s. `describe`: returns the text of a token."""
        self._request = request
        self._created = created
        self._describe = describe
        self._has_logprobs = request.spec.logprobs
        self._logprobs: list[Json] = []

    def begin(self, accepted: Accepted) -> bytes:
        envelope = chat_envelope(accepted, "chat.completion.chunk", self._created)
        self._chunks = ChunkStream(envelope, content_choice, self._request, accepted.prompt_tokens)
        return self._chunks.choice(chat_choice({"role": "assistant", "content": "", "refusal": None}))

    def on_model_changed(self, output: OutputFormat) -> None:
        """Does nothing: all text is content."""

    def delta(self, delta: AnyDelta) -> bytes:
        if self._has_logprobs:
            choice = {**content_choice(delta.text), "logprobs": logprobs_member(logprob_entries(delta, self._describe))}
            return self._chunks.counted(choice, len(delta.token_ids))
        return self._chunks.text(delta.text, len(delta.token_ids))

    def collect_logprobs(self, delta: AnyDelta) -> None:
        self._logprobs += logprob_entries(delta, self._describe)

    def finish(self, finished: Finished) -> bytes:
        return self._chunks.end(chat_choice({}, finish_reason(finished)), finished)

    def close(self, usage: Json) -> bytes:
        return self._chunks.close(usage)

    def fail(self, error: PenstockError) -> bytes:
        return self._chunks.fail(error)

    def whole(self, accepted: Accepted, text: str, finished: Finished) -> bytes:
        choice = {
            "index": self._request.choice,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": logprobs_member(self._logprobs) if self._has_logprobs else None,
            "finish_reason": finish_reason(finished),
        }
        envelope = chat_envelope(accepted, "chat.completion", self._created)
        return orjson.dumps({**envelope, "choices": [choice], "usage": usage_of(finished), **extra_members(finished)})


def chat_envelope(accepted: Accepted, kind: str, created: int) -> Json:
    """Return the members that all chunks of a chat completion have."""
    return {
        "id": f"chatcmpl-{accepted.request_id}",
        "object": kind,
        "created": created,
        "model": accepted.model,
    }


def logprobs_member(entries: list[Json]) -> Json:
    return {"content": entries, "refusal": None}


def content_choice(text: str) -> Json:
    return chat_choice({"content": text})


def chat_choice(delta: Json, reason: str | None = None) -> Json:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
