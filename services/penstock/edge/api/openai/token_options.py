"""Fields of a body that concern single tokens: biases."""

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.fields import Fields, quoted
from penstock.edge.request import limits

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
