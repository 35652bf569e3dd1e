"""Fields of the API that this server does not support. A value that requests such a feature is rejected."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.body.fields import Fields, describe

# For each field: the values that request nothing, and an alternative for the caller.
UnsupportedFields = Mapping[str, tuple[Sequence[object], str]]

_UNSUPPORTED_EVERYWHERE: UnsupportedFields = MappingProxyType(
    {"moderation": ((), "this server judges no text; send the text to a service that does")}
)
UNSUPPORTED_IN_CHAT: UnsupportedFields = MappingProxyType(
    {
        **_UNSUPPORTED_EVERYWHERE,
        "functions": (([],), "send them as tools, which replace them"),
        "function_call": (("auto", "none"), "send tool_choice, which replaces it"),
        "modalities": ((["text"], []), "this server answers in text"),
        "audio": ((), "this server answers in text"),
        "web_search_options": ((), "this server searches nothing; give the model a function that does"),
    }
)
UNSUPPORTED_IN_COMPLETIONS: UnsupportedFields = MappingProxyType(
    {
        **_UNSUPPORTED_EVERYWHERE,
        "tools": (([],), "send a chat or a response, which have tools"),
        "suffix": (("",), "write it into the prompt, with the tokens that the model has for it"),
    }
)
UNSUPPORTED_IN_RESPONSES: UnsupportedFields = MappingProxyType(
    {
        **_UNSUPPORTED_EVERYWHERE,
        "conversation": ((), "name the response that this one continues in `previous_response_id`"),
        "prompt": ((), "this server stores no prompts; send `instructions` and `input`"),
        "logit_bias": (({},), "use the endpoint of chat completions"),
        "n": ((1,), "use the endpoint of chat completions"),
    }
)


def reject_unsupported(fields: Fields, unsupported: UnsupportedFields) -> None:
    for name, (no_request, instead) in unsupported.items():
        value = fields.get(name)
        if value is not None and not any(value == each and type(value) is type(each) for each in no_request):
            raise _unsupported_error(fields.path(name), value, instead)


def _unsupported_error(path: str, value: object, instead: str) -> InvalidArgument:
    return InvalidArgument(f"{path} is {describe(value)}, which is not supported; {instead}", field=path)
