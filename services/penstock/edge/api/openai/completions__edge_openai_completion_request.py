"""`POST /v1/completions`: the body to a request."""

from typing import Any

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.common__edge_openai_request import ApiRequest, generation_options, usage_flags
from penstock.edge.api.openai.fields import Fields, wrong_type
from penstock.edge.api.openai.unsupported import UNSUPPORTED_IN_COMPLETIONS, reject_unsupported
from penstock.edge.request.spec import RequestSpec, TextInput, TokenInput
from penstock.edge.request.validation import validate

_DEFAULT_MAX_TOKENS = 16  # what the API documents for this endpoint, and what its clients rely on


def parse_completion(fields: Fields, request_id: str) -> ApiRequest:
    """Raise InvalidArgument naming the field, in the caller's own words."""
    reject_unsupported(fields, UNSUPPORTED_IN_COMPLETIONS)
    spec = RequestSpec(
        request_id=request_id,
        model=fields.text("model"),
        input=_input(fields.get("prompt")),
        max_output_tokens=fields.integer("max_tokens", _DEFAULT_MAX_TOKENS),
        **generation_options(fields),
    )
    validate(spec, {"input": "prompt", "max_output_tokens": "max_tokens"})
    include_usage, continuous_usage = usage_flags(fields)
    return ApiRequest(
        spec=spec, stream=fields.flag("stream"), include_usage=include_usage, continuous_usage=continuous_usage
    )


def _input(prompt: Any) -> TextInput | TokenInput:
    """A string, a list of token ids, or a list of exactly one of these."""
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
