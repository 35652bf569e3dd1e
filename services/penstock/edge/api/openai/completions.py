"""The endpoint `POST /v1/completions`: request body and response."""

from dataclasses import replace
from typing import Any

import orjson

from penstock.chassis.errors import InvalidArgument, PenstockError
from penstock.edge.api.openai.body.fields import Fields, wrong_type
from penstock.edge.api.openai.body.output_form import requested_form
from penstock.edge.api.openai.body.token_options import completion_logprobs, logit_bias
from penstock.edge.api.openai.body.unsupported import UNSUPPORTED_IN_COMPLETIONS, reject_unsupported
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
from penstock.edge.api.openai.logprobs import CompletionLogprobs
from penstock.edge.api.openai.streaming import ChunkStream
from penstock.edge.output.answer import OutputFormat
from penstock.edge.request import limits
from penstock.edge.request.spec import RequestSpec, TextInput, TokenInput
from penstock.edge.request.validation import validate
from penstock.edge.text.token_text import DescribeToken, no_text
from penstock.v1.inference_pb2 import Accepted, Finished

_DEFAULT_MAX_TOKENS = 16  # the documented default of this endpoint
_FIELD_NAMES = {"input": "prompt", "max_output_tokens": "max_tokens", "top_logprobs": "logprobs"}


def parse_completion(fields: Fields, request_id: str) -> ApiRequest:
    """Parse a body. Raises InvalidArgument with the path of the field."""
    reject_unsupported(fields, UNSUPPORTED_IN_COMPLETIONS)
    inputs, answers, generated = (
        inputs_of(fields.get("prompt"), "prompt"),
        fields.integer("n", 1),
        fields.integer("best_of", None),
    )
    spec = RequestSpec(
        request_id=request_id,
        model=fields.text("model"),
        input=inputs[0],
        max_output_tokens=fields.integer("max_tokens", _DEFAULT_MAX_TOKENS),
        form=requested_form(fields),
        **generation_options(fields),
        logit_bias=logit_bias(fields),
        **completion_logprobs(fields),
        n=answers if generated is None else generated,
    )
    for each in inputs:
        validate(replace(spec, input=each), _FIELD_NAMES if generated is None else _FIELD_NAMES | {"n": "best_of"})
    include_usage, continuous_usage = usage_flags(fields)
    request = ApiRequest(
        spec=spec,
        stream=fields.flag("stream"),
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        inputs=inputs if len(inputs) > 1 else (),
        answers=answers,
        echo=fields.flag("echo"),
    )
    _check_choices(request, len(inputs))
    return request


def _check_choices(request: ApiRequest, prompts: int) -> None:
    answers, generated = request.answers, request.spec.n
    if not 1 <= answers <= generated:
        raise InvalidArgument(f"n is {answers}; allowed are 1 to best_of, which is {generated}", field="n")
    if answers < generated and request.stream:
        raise InvalidArgument("best_of above n cannot be streamed; leave one of them out", field="best_of")
    if prompts * generated > limits.CHOICES:
        text = (
            f"prompt has {prompts} prompts with {generated} answers each; at most {limits.CHOICES} answers are allowed"
        )
        raise InvalidArgument(text, field="prompt")
    if request.echo and request.spec.logprobs:
        raise InvalidArgument("echo cannot have logprobs, which are of generated tokens; leave one out", field="echo")


def inputs_of(prompt: Any, path: str) -> tuple[TextInput | TokenInput, ...]:
    """Parse a prompt: a string, a list of token ids, or a list of these."""
    match prompt:
        case None:
            raise InvalidArgument(f"{path} is missing; give a string or a list of token ids", field=path)
        case str():
            return (TextInput(prompt),)
        case [str() | list(), *_]:
            return tuple([_input(each, f"{path}[{index}]") for index, each in enumerate(prompt)])
        case list():
            return (TokenInput(_ids(prompt, path)),)
        case _:
            raise wrong_type(path, "a string or a list of token ids", prompt)


def _input(prompt: Any, path: str) -> TextInput | TokenInput:
    match prompt:
        case str():
            return TextInput(prompt)
        case list():
            return TokenInput(_ids(prompt, path))
        case _:
            raise wrong_type(path, "a string or a list of token ids", prompt)


def _ids(prompt: list[Any], path: str) -> tuple[int, ...]:
    for index, each in enumerate(prompt):
        if isinstance(each, bool) or not isinstance(each, int):
            raise wrong_type(f"{path}[{index}]", "a token id", each)
    return tuple(prompt)


class CompletionSerializer:
    """Serializes a text completion. Chunks have the format of the whole; the last one has the finish reason."""

    __slots__ = ("_chunks", "_created", "_deltas", "_describe", "_logprobs", "_request")

    def __init__(self, request: ApiRequest, *, created: int, describe: DescribeToken = no_text) -> None:
        """`created`: unix s. `describe`: returns the text of a token."""
        self._request = request
        self._created = created
        self._describe = describe
        self._logprobs = CompletionLogprobs(describe) if request.spec.logprobs else None
        self._deltas: list[AnyDelta] = []

    def begin(self, accepted: Accepted) -> bytes:
        self._chunks = ChunkStream(self._envelope(accepted), _choice, self._request, accepted.prompt_tokens)
        return self._chunks.text(self._echo(), 0)

    def on_model_changed(self, output: OutputFormat) -> None:
        """Does nothing: all text is content."""

    def delta(self, delta: AnyDelta) -> bytes:
        if self._logprobs:
            choice = {**_choice(delta.text), "logprobs": self._logprobs.of(delta)}
            return self._chunks.counted(choice, len(delta.token_ids))
        return self._chunks.text(delta.text, len(delta.token_ids))

    def collect_logprobs(self, delta: AnyDelta) -> None:
        self._deltas.append(delta)

    def finish(self, finished: Finished) -> bytes:
        return self._chunks.end(_choice("", finish_reason(finished)), finished)

    def close(self, usage: Json) -> bytes:
        return self._chunks.close(usage)

    def fail(self, error: PenstockError) -> bytes:
        return self._chunks.fail(error)

    def whole(self, accepted: Accepted, text: str, finished: Finished) -> bytes:
        choice = _choice(self._echo() + text, finish_reason(finished)) | {"index": self._request.choice}
        if self._logprobs:
            choice["logprobs"] = self._logprobs.of(*self._deltas)
        return orjson.dumps(
            {**self._envelope(accepted), "choices": [choice], "usage": usage_of(finished), **extra_members(finished)}
        )

    def _echo(self) -> str:
        """Return the prompt if the answer begins with it. Token ids are decoded; special tokens have their names."""
        prompt = self._request.spec.input
        if not self._request.echo:
            return ""
        if isinstance(prompt, TextInput):
            return prompt.text
        assert isinstance(prompt, TokenInput), "a completion has no conversation"
        described = map(self._describe, prompt.ids)
        encoded = (each.text.encode() if each.encoded is None else each.encoded for each in described)
        return b"".join(encoded).decode(errors="replace")

    def _envelope(self, accepted: Accepted) -> Json:
        return {
            "id": f"cmpl-{accepted.request_id}",
            "object": "text_completion",
            "created": self._created,
            "model": accepted.model,
        }


def _choice(text: str, reason: str | None = None) -> Json:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
