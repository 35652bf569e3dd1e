"""`POST /v1/chat/completions`: the body to a request."""

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.common__edge_openai_request import ApiRequest, generation_options, usage_flags
from penstock.edge.api.openai.fields import Fields, wrong_type
from penstock.edge.api.openai.messages import message_from
from penstock.edge.api.openai.unsupported import UNSUPPORTED_IN_CHAT, reject_format, reject_unsupported
from penstock.edge.request.spec import ChatInput, Message, RequestSpec
from penstock.edge.request.validation import validate


def parse_chat(fields: Fields, request_id: str) -> ApiRequest:
    """Raise InvalidArgument naming the field, in the caller's own words."""
    reject_unsupported(fields, UNSUPPORTED_IN_CHAT)
    reject_format(fields.object("response_format"))
    limit = "max_tokens" if fields.get("max_completion_tokens") is None else "max_completion_tokens"
    spec = RequestSpec(
        request_id=request_id,
        model=fields.text("model"),
        input=ChatInput(_messages(fields)),
        max_output_tokens=fields.integer(limit, None),
        **generation_options(fields),
    )
    validate(spec, {"input": "messages", "max_output_tokens": limit})
    include_usage, continuous_usage = usage_flags(fields)
    return ApiRequest(
        spec=spec, stream=fields.flag("stream"), include_usage=include_usage, continuous_usage=continuous_usage
    )


def _messages(fields: Fields) -> tuple[Message, ...]:
    messages = fields.get("messages")
    if messages is None:
        raise InvalidArgument("messages is missing; give a list with at least one message", field="messages")
    if not isinstance(messages, list):
        raise wrong_type("messages", "a list of messages", messages)
    return tuple([message_from(each, f"messages[{index}]") for index, each in enumerate(messages)])
