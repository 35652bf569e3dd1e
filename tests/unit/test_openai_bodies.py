"""JSON bodies of the OpenAI endpoints: what is read before a field is looked at."""

import pytest

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.body.fields import BodyTooLarge, parse_body
from penstock.edge.api.openai.completions import parse_completion
from penstock.edge.request import limits


@pytest.mark.parametrize(
    ("raw", "expected"), [(b"{", "not JSON"), (b"[]", "not a list of 0"), (b'{"a":NaN}', "not JSON")]
)
def test_a_body_that_is_no_json_object_is_rejected(raw, expected):
    with pytest.raises(InvalidArgument, match=expected):
        parse_body(raw)


def test_a_body_is_read_up_to_its_cap():
    frame = b'{"prompt":"%s"}'
    free_bytes = limits.BODY_BYTES - len(frame % b"")
    assert len(parse_body(frame % (b"x" * free_bytes)).get("prompt")) == free_bytes
    with pytest.raises(BodyTooLarge, match=str(limits.BODY_BYTES)):
        parse_body(frame % (b"x" * (free_bytes + 1)))


def test_deeply_nested_prompts_are_rejected_without_recursion():
    nested = b'{"prompt":' + b"[" * 900 + b"]" * 900 + b"}"
    with pytest.raises(InvalidArgument):
        parse_completion(parse_body(nested), "r1")
