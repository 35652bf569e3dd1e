"""The endpoint `POST /v1/completions`: request body and response."""

from typing import Any

import orjson

from penstock.chassis.errors import InvalidArgument, PenstockError
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
from penstock.edge.api.openai.fields import Fields, wrong_type
from penstock.edge.api.openai.logprobs import CompletionLogprobs
from penstock.edge.api.openai.output_form import requested_form
from penstock.edge.api.openai.streaming import ChunkStream
from penstock.edge.api.openai.token_options import completion_logprobs, logit_bias
from penstock.edge.api.openai.unsupported import UNSUPPORTED_IN_COMPLETIONS, reject_unsupported
from penstock.edge.request.spec import RequestSpec, TextInput, TokenInput
from penstock.edge.request.validation import validate
from penstock.edge.text.token_text import DescribeToken, no_text
from penstock.v1.inference_pb2 import Accepted, Finished

_DEFAULT_MAX_TOKENS = 16  # the documented default of this endpoint


def parse_completion(fields: Fields, request_id: str) -> ApiRequest:
    """Parse a body. Raises InvalidArgument with the path of the field."""
    reject_unsupported(fields, UNSUPPORTED_IN_COMPLETIONS)
    spec = RequestSpec(
        request_id=request_id,
        model=fields.text("model"),
        input=_input(fields.get("prompt")),
        max_output_tokens=fields.integer("max_tokens", _DEFAULT_MAX_TOKENS),
        form=requested_form(fields),
        **generation_options(fields),
        logit_bias=logit_bias(fields),
        **completion_logprobs(fields),
    )
    validate(spec, {"input": "prompt", "max_output_tokens": "max_tokens", "top_logprobs": "logprobs"})
    include_usage, continuous_usage = usage_flags(fields)
    return ApiRequest(
        spec=spec, stream=fields.flag("stream"), include_usage=include_usage, continuous_usage=continuous_usage
    )


def _input(prompt: Any) -> TextInput | TokenInput:
    """Parse a prompt: a string, a list of token ids, or a list with exactly one of these."""
    match prompt:
        case None:
            raise InvalidArgument("prompt is missing; give a string or a list of token ids", field="prompt")
        case str():
            return TextInput(prompt)
        case [str() as only]:
            return TextInput(only)
        case [list() as only]:
            return TokenInput(_ids(only))
        case [str() | list(), *_]:
            raise InvalidArgument(f"prompt has {len(prompt)} prompts; send one request for each", field="prompt")
        case list():
            return TokenInput(_ids(prompt))
        case _:
            raise wrong_type("prompt", "a string or a list of token ids", prompt)


def _ids(prompt: list[Any]) -> tuple[int, ...]:
    for index, each in enumerate(prompt):
        if isinstance(each, bool) or not isinstance(each, int):
            raise wrong_type(f"prompt[{index}]", "a token id", each)
    return tuple(prompt)


class CompletionSerializer:
    """Serializes a text completion. Chunks have the format of the whole; the last one has the finish reason."""

    __slots__ = ("_chunks", "_created", "_deltas", "_logprobs", "_request")

    def __init__(self, request: ApiRequest, *, created: int, describe: DescribeToken = no_text) -> None:
        """`created`: unix s. `describe`: returns the text of a token."""
        self._request = request
        self._created = created
        self._logprobs = CompletionLogprobs(describe) if request.spec.logprobs else None
        self._deltas: list[AnyDelta] = []

    def begin(self, accepted: Accepted) -> bytes:
        self._chunks = ChunkStream(self._envelope(accepted), _choice, self._request, accepted.prompt_tokens)
        return b""

    def delta(self, delta: AnyDelta) -> bytes:
        if self._logprobs:
            choice = {**_choice(delta.text), "logprobs": self._logprobs.of(delta)}
            return self._chunks.counted(choice, len(delta.token_ids))
        return self._chunks.text(delta.text, len(delta.token_ids))

    def collect_logprobs(self, delta: AnyDelta) -> None:
        self._deltas.append(delta)

    def finish(self, finished: Finished) -> bytes:
        return self._chunks.end(_choice("", finish_reason(finished)), finished)

    def fail(self, error: PenstockError) -> bytes:
        return self._chunks.fail(error)

    def whole(self, accepted: Accepted, text: str, finished: Finished) -> bytes:
        choice = _choice(text, finish_reason(finished))
        if self._logprobs:
            choice["logprobs"] = self._logprobs.of(*self._deltas)
        return orjson.dumps(
            {**self._envelope(accepted), "choices": [choice], "usage": usage_of(finished), **extra_members(finished)}
        )

    def _envelope(self, accepted: Accepted) -> Json:
        return {
            "id": f"cmpl-{accepted.request_id}",
            "object": "text_completion",
            "created": self._created,
            "model": accepted.model,
        }


def _choice(text: str, reason: str | None = None) -> Json:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
