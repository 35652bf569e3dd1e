"""Bodies of `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from collections.abc import Mapping
from types import MappingProxyType

import orjson

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.anthropic.tools import conversation_with_tools
from penstock.edge.api.anthropic.turns import conversation_turns
from penstock.edge.api.openai.body.fields import Fields
from penstock.edge.api.openai.body.output_form import requested_response_form
from penstock.edge.api.openai.body.unsupported import UnsupportedFields, reject_unsupported
from penstock.edge.api.openai.common import PRIORITY_OF_TIER, ApiRequest, generation_options
from penstock.edge.request.spec import ChatInput, RequestSpec
from penstock.edge.request.validation import validate
from penstock.v1.inference_pb2 import CountTokensResponse, Priority

_UNSUPPORTED: UnsupportedFields = MappingProxyType(
    {
        "container": ((), "this server runs no code of an answer"),
        "mcp_servers": (([],), "call the servers yourself and send their tools in tools"),
        "output_format": ((), "send output_config.format, which replaces it"),
    }
)
_PRIORITY_OF_TIER: Mapping[str, Priority.ValueType] = MappingProxyType(
    {**PRIORITY_OF_TIER, "standard_only": Priority.PRIORITY_STANDARD}
)
# Names of fields of the spec in this API.
_FIELD_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "input": "messages",
        "max_output_tokens": "max_tokens",
        "stop": "stop_sequences",
        "form": "output_config.format.schema",
    }
)


def parse_message(fields: Fields, request_id: str) -> ApiRequest:
    """Parse a body. Raises InvalidArgument with the path of the field.

    `thinking` is ignored, because the chat template of the model decides whether the answer has reasoning.
    """
    reject_unsupported(fields, _UNSUPPORTED)
    max_tokens = fields.integer("max_tokens", None)
    if max_tokens is None:
        raise InvalidArgument("max_tokens is missing; give the limit of output tokens", field="max_tokens")
    spec = RequestSpec(
        request_id=request_id,
        model=fields.text("model"),
        input=_conversation(fields),
        max_output_tokens=max_tokens,
        form=requested_response_form(fields.object("output_config").object("format")),
        **generation_options(fields, stop="stop_sequences", tiers=_PRIORITY_OF_TIER),
    )
    validate(spec, _FIELD_NAMES)
    return ApiRequest(spec=spec, stream=fields.flag("stream"))


def parse_count(fields: Fields) -> RequestSpec:
    """Parse a body whose tokens are to be counted. Raises InvalidArgument with the path of the field."""
    spec = RequestSpec(request_id="", model=fields.text("model"), input=_conversation(fields))
    validate(spec, _FIELD_NAMES)
    return spec


def counted_tokens(counted: CountTokensResponse) -> bytes:
    return orjson.dumps({"input_tokens": counted.prompt_tokens})


def _conversation(fields: Fields) -> ChatInput:
    return conversation_with_tools(fields, conversation_turns(fields))
