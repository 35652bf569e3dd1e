"""Fields of a body that concern single tokens: biases and log probabilities."""

from typing import TypedDict

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.body.fields import Fields, quoted, wrong_type
from penstock.edge.request import limits

RESPONSE_LOGPROBS = "message.output_text.logprobs"  # of `include` of a response
_ID_DIGITS = 10  # of an integer of 32 bits


def logit_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    """Return the biases by token id. Raises InvalidArgument for a name that is no id, and for too many."""
    biases = fields.object("logit_bias")
    if len(biases.members) > limits.LOGIT_BIASES:  # before each is read
        text = f"logit_bias has {len(biases.members)} token ids; at most {limits.LOGIT_BIASES} are allowed"
        raise InvalidArgument(text, field="logit_bias")
    for name in biases.members:
        if not (name.isascii() and name.isdecimal() and len(name) <= _ID_DIGITS):
            text = f"logit_bias has the member {quoted(name)}; its members are token ids, such as {quoted('50256')}"
            raise InvalidArgument(text, field="logit_bias")
    return tuple(sorted((int(name), biases.number(name, 0.0)) for name in biases.members))


class LogprobOptions(TypedDict):
    logprobs: bool
    top_logprobs: int


def chat_logprobs(fields: Fields) -> LogprobOptions:
    is_requested, count = fields.flag("logprobs"), fields.integer("top_logprobs", 0)
    if count and not is_requested:
        raise InvalidArgument("top_logprobs requires logprobs to be true", field="top_logprobs")
    return LogprobOptions(logprobs=is_requested, top_logprobs=count)


def completion_logprobs(fields: Fields) -> LogprobOptions:
    """Return the options of a text completion, where `logprobs` is the number of likeliest tokens."""
    count = fields.integer("logprobs", None)
    return LogprobOptions(logprobs=count is not None, top_logprobs=count or 0)


def response_logprobs(fields: Fields) -> LogprobOptions:
    include = fields.get("include")
    if not isinstance(include, list | None):
        raise wrong_type("include", "a list of strings", include)
    count = fields.integer("top_logprobs", 0)
    is_requested = RESPONSE_LOGPROBS in (include or ()) or count != 0
    return LogprobOptions(logprobs=is_requested, top_logprobs=count)
