"""The endpoint `POST /v1/responses`: request body and response."""

from collections.abc import Mapping, Sequence

import orjson

from penstock.chassis.errors import InvalidArgument, Overloaded, PenstockError, QuotaExceeded
from penstock.edge.api.openai.body.fields import Fields, wrong_type
from penstock.edge.api.openai.body.output_form import requested_response_form
from penstock.edge.api.openai.body.token_options import response_logprobs
from penstock.edge.api.openai.body.tools import response_choice, response_input, response_tools
from penstock.edge.api.openai.body.unsupported import UNSUPPORTED_IN_RESPONSES, reject_unsupported
from penstock.edge.api.openai.common import (
    AnyDelta,
    ApiRequest,
    Json,
    extra_members,
    generation_options,
)
from penstock.edge.api.openai.logprobs import logprob_entries
from penstock.edge.api.openai.responses.input_items import input_messages
from penstock.edge.api.openai.streaming import named_sse_event, one_line_json, split_at_marker
from penstock.edge.output.answer import OutputFormat
from penstock.edge.request import limits
from penstock.edge.request.spec import ChatInput, Message, RequestSpec
from penstock.edge.request.validation import validate
from penstock.edge.text.token_text import DescribeToken, no_text
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, Accepted, Finished


def parse_response(
    fields: Fields, request_id: str, history: Sequence[Json] = (), *, is_stored: bool = False
) -> ApiRequest:
    """Parse a body. Raises InvalidArgument with the path of the field.

    `history`: the items of the responses that it continues.
    """
    reject_unsupported(fields, UNSUPPORTED_IN_RESPONSES)
    text_format = fields.object("text").object("format")
    instructions = fields.text("instructions")
    system = (Message("system", instructions),) if instructions else ()
    spec = RequestSpec(
        request_id=request_id,
        model=fields.text("model"),
        input=response_input(fields, system + input_messages(fields.get("input"), history)),
        max_output_tokens=fields.integer("max_output_tokens", None),
        form=requested_response_form(text_format),
        **generation_options(fields),
        **response_logprobs(fields),
    )
    validate(spec)
    return ApiRequest(
        spec=spec,
        stream=fields.flag("stream"),
        instructions=instructions or None,
        metadata=_metadata(fields),
        text_format=(text_format.members or None) if text_format.get("type") != "text" else None,
        previous_response_id=fields.text("previous_response_id") or None,
        is_stored=is_stored,
        is_background=fields.flag("background"),
    )


def _metadata(fields: Fields) -> Mapping[str, str]:
    """Return the caller's pairs within the documented limits, since several events repeat them."""
    given = fields.object("metadata").members
    if len(given) > limits.METADATA_PAIRS:
        raise InvalidArgument(
            f"metadata has {len(given)} pairs; at most {limits.METADATA_PAIRS} are allowed", field="metadata"
        )
    for key, value in given.items():
        if not isinstance(value, str):
            raise wrong_type("metadata", "an object of strings", value)
        if len(key) > limits.METADATA_KEY_CHARS or len(value) > limits.METADATA_VALUE_CHARS:
            raise InvalidArgument(
                f"metadata has a key of {len(key)} and a value of {len(value)} characters; "
                f"at most {limits.METADATA_KEY_CHARS} and {limits.METADATA_VALUE_CHARS} are allowed",
                field="metadata",
            )
    return given


class ResponseObject:
    """The JSON object of one response, at each stage of its life.

    A response that ends at the caller's `max_output_tokens` is `incomplete`, as in the API. A response that ends at
    another limit (the context or this server's default) is `completed` with `incomplete_details`, because the official
    client raises an error for any other status. In both cases the message itself is `incomplete`.
    """

    __slots__ = ("_common", "_limit", "item_id")

    def __init__(self, request: ApiRequest, accepted: Accepted, created: int) -> None:
        spec = request.spec
        assert isinstance(spec.input, ChatInput), "a response continues a conversation"
        chat = spec.input
        self._limit = spec.max_output_tokens
        self.item_id = f"msg_{accepted.request_id}"
        self._common: Json = {
            "id": f"resp_{accepted.request_id}",
            "object": "response",
            "created_at": created,
            "background": request.is_background,
            "model": accepted.model,
            "instructions": request.instructions,
            "max_output_tokens": self._limit,
            "metadata": request.metadata,
            "parallel_tool_calls": chat.parallel_tool_calls,
            "previous_response_id": request.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "store": request.is_stored,
            "temperature": spec.temperature,
            "text": {"format": request.text_format or {"type": "text"}},
            "tool_choice": response_choice(chat.tool_choice),
            "tools": response_tools(chat.tools),
            "top_logprobs": spec.top_logprobs,
            "top_p": spec.top_p,
            "truncation": "disabled",
            "user": None,
        }

    def in_progress(self) -> Json:
        return self._object("in_progress", [])

    def queued(self) -> Json:
        return self._object("queued", [])

    def cancelled(self, output: list[Json]) -> Json:
        return self._object("cancelled", output)

    def ended(self, output: list[Json], finished: Finished) -> Json:
        is_truncated = finished.reason == FINISH_REASON_LENGTH
        response = self._object("incomplete" if is_truncated and self._limit is not None else "completed", output)
        details = {"reason": "max_output_tokens"} if is_truncated else None
        return response | {"incomplete_details": details, "usage": _usage(finished)}

    def failed(self, output: list[Json], error: PenstockError) -> Json:
        return self._object("failed", output) | {"error": {"code": _error_code(error), "message": error.message}}

    def ended_message(self, text: str, finished: Finished, logprobs: Sequence[Json]) -> Json:
        is_truncated = finished.reason == FINISH_REASON_LENGTH
        return self.message("incomplete" if is_truncated else "completed", [text_part(text, logprobs)])

    def message(self, status: str, content: list[Json]) -> Json:
        return {"id": self.item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _object(self, status: str, output: list[Json]) -> Json:
        outcome = {"status": status, "output": output, "error": None, "incomplete_details": None, "usage": None}
        return self._common | outcome


def text_part(text: str, logprobs: Sequence[Json] = ()) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _usage(finished: Finished) -> Json:
    counts = finished.usage
    return {
        "input_tokens": counts.prompt_tokens,
        "input_tokens_details": {"cached_tokens": counts.cached_prompt_tokens, "cache_write_tokens": 0},
        "output_tokens": counts.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts.prompt_tokens + counts.output_tokens,
    }


def _error_code(error: PenstockError) -> str:
    """Return one of the three codes of the API that can occur here."""
    if isinstance(error, QuotaExceeded | Overloaded):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, InvalidArgument) else "server_error"


_MARKER = "\0delta"
_CONTENT_POSITION: Json = {"output_index": 0, "content_index": 0}  # a response has one message with one part
_SEQUENCE_NUMBER_KEY = b',"sequence_number":'


class ResponsesSerializer:
    """Serializes a response. Every event is named, typed and numbered; the last one contains the whole response."""

    __slots__ = (
        "_after",
        "_before",
        "_created",
        "_describe",
        "_logprobs",
        "_number",
        "_request",
        "_response",
        "_texts",
    )

    def __init__(self, request: ApiRequest, *, created: int, describe: DescribeToken = no_text) -> None:
        """`created`: unix s. `describe`: returns the text of a token."""
        self._request = request
        self._created = created
        self._describe = describe
        self._logprobs: list[Json] = []  # of all tokens so far, if requested
        self._number = 0  # of the next event
        self._texts: list[str] = []

    @property
    def next_number(self) -> int:
        """The sequence number of the next event."""
        return self._number

    def begin(self, accepted: Accepted) -> bytes:
        self._response = ResponseObject(self._request, accepted, self._created)
        item = {"output_index": 0, "item": self._response.message("in_progress", [])}
        opening = (
            self._event("created", {"response": self._response.in_progress()})
            + self._event("in_progress", {"response": self._response.in_progress()})
            + self._event("output_item.added", item)
            + self._event("content_part.added", self._of_item({"part": text_part("")}))
        )
        self._prepare_deltas()
        return opening

    def on_model_changed(self, output: OutputFormat) -> None:
        """Does nothing: all text is content."""

    def delta(self, delta: AnyDelta) -> bytes:
        if delta.logprobs:
            return self._delta_with_logprobs(delta)
        if not delta.text:
            return b""
        self._texts.append(delta.text)
        number = b"%d" % self._number
        self._number += 1
        return b"".join((self._before, one_line_json(delta.text), _SEQUENCE_NUMBER_KEY, number, self._after))

    def _delta_with_logprobs(self, delta: AnyDelta) -> bytes:
        entries = logprob_entries(delta, self._describe)
        self._logprobs += entries
        self._texts.append(delta.text)
        return self._event("output_text.delta", self._of_item({"logprobs": entries, "delta": delta.text}))

    def collect_logprobs(self, delta: AnyDelta) -> None:
        self._logprobs += logprob_entries(delta, self._describe)

    def finish(self, finished: Finished) -> bytes:
        text, logprobs = "".join(self._texts), self._logprobs
        item = self._response.ended_message(text, finished, logprobs)
        response = self._response.ended([item], finished) | extra_members(finished)
        return (
            self._event("output_text.done", self._of_item({"text": text, "logprobs": logprobs}))
            + self._event("content_part.done", self._of_item({"part": text_part(text, logprobs)}))
            + self._event("output_item.done", {"output_index": 0, "item": item})
            + self._event(response["status"], {"response": response})
        )

    def fail(self, error: PenstockError) -> bytes:
        return self._event("failed", {"response": self._response.failed(self._partial_output(), error)})

    def cancel(self) -> bytes:
        return self._event("incomplete", {"response": self._response.cancelled(self._partial_output())})

    def _partial_output(self) -> list[Json]:
        text = "".join(self._texts)
        return [self._response.message("incomplete", [text_part(text)])] if text else []

    def whole(self, accepted: Accepted, text: str, finished: Finished) -> bytes:
        response = ResponseObject(self._request, accepted, self._created)
        item = response.ended_message(text, finished, self._logprobs)
        return orjson.dumps(response.ended([item], finished) | extra_members(finished))

    def _of_item(self, members: Json) -> Json:
        return {"item_id": self._response.item_id, **_CONTENT_POSITION, **members}

    def _event(self, name: str, members: Json) -> bytes:
        kind = f"response.{name}"
        frame = named_sse_event(kind, {"type": kind, **members, "sequence_number": self._number})
        self._number += 1
        return frame

    def _prepare_deltas(self) -> None:
        kind = "response.output_text.delta"
        payload = {"type": kind, **self._of_item({"logprobs": [], "delta": _MARKER})}
        self._before, self._after = split_at_marker(named_sse_event(kind, payload), _MARKER)
