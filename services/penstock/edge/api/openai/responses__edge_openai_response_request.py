"""`POST /v1/responses`: the body to a request."""

from collections.abc import Mapping
from typing import Any

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.common__edge_openai_request import ApiRequest, generation_options
from penstock.edge.api.openai.fields import Fields, describe, wrong_type
from penstock.edge.api.openai.messages import message_from
from penstock.edge.api.openai.unsupported import UNSUPPORTED_IN_RESPONSES, reject_format, reject_unsupported
from penstock.edge.request import limits
from penstock.edge.request.spec import ChatInput, Message, RequestSpec
from penstock.edge.request.validation import validate


def parse_response(fields: Fields, request_id: str) -> ApiRequest:
    """Raise InvalidArgument naming the field, in the caller's own words."""
    reject_unsupported(fields, UNSUPPORTED_IN_RESPONSES)
    reject_format(fields.object("text").object("format"))
    instructions = fields.text("instructions")
    said_first = (Message("system", instructions),) if instructions else ()
    spec = RequestSpec(
        request_id=request_id,
        model=fields.text("model"),
        input=ChatInput(said_first + _messages(fields.get("input"))),
        max_output_tokens=fields.integer("max_output_tokens", None),
        **generation_options(fields),
    )
    validate(spec)
    return ApiRequest(
        spec=spec, stream=fields.flag("stream"), instructions=instructions or None, metadata=_metadata(fields)
    )


def _messages(given: Any) -> tuple[Message, ...]:
    match given:
        case None | []:
            raise InvalidArgument("input is missing; give a string or a list of messages", field="input")
        case str():
            return (Message("user", given),)
        case list():
            return tuple([_item(each, f"input[{index}]") for index, each in enumerate(given)])
        case _:
            raise wrong_type("input", "a string or a list of messages", given)


def _item(item: Any, path: str) -> Message:
    kind = item.get("type", "message") if isinstance(item, dict) else "message"
    if kind != "message":
        raise InvalidArgument(f"{path}.type is {describe(kind)}; this server takes messages only", field=f"{path}.type")
    return message_from(item, path)


def _metadata(fields: Fields) -> Mapping[str, str]:
    """The caller's own pairs, kept to the sizes that the API documents, since each event of a life carries them."""
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
