import dataclasses
import math

import pytest

from penstock.chassis.errors import InvalidArgument
from penstock.edge.request import limits
from penstock.edge.request.spec import ChatInput, Message, RequestSpec, TextInput, TokenInput
from penstock.edge.request.validation import validate
from penstock.mesh.forms import CHOICES, FORM_BYTES, Choices, Regex


def spec(**fields):
    return RequestSpec(**({"request_id": "r1", "model": "m", "input": TextInput("hi")} | fields))


def chat(texts):
    return ChatInput(tuple(Message("user", text) for text in texts))


def message_of_role(role):
    return ChatInput((Message(role, ""),))


# Field, a value at its limit, a value beyond it.
FIELD_LIMITS = [
    ("request_id", "a" * limits.REQUEST_ID_CHARS, "a" * (limits.REQUEST_ID_CHARS + 1)),
    ("request_id", "aZ9._:-", "a b"),
    ("answer_id", "a" * limits.REQUEST_ID_CHARS, "a" * (limits.REQUEST_ID_CHARS + 1)),
    ("model_version", "a" * limits.REQUEST_ID_CHARS, "a" * (limits.REQUEST_ID_CHARS + 1)),
    ("model", "é" * (limits.MODEL_NAME_BYTES // 2), "é" * (limits.MODEL_NAME_BYTES // 2) + "x"),
    ("input", TextInput("é" * (limits.TEXT_BYTES // 2)), TextInput("é" * (limits.TEXT_BYTES // 2) + "x")),
    ("input", chat(["x" * (limits.TEXT_BYTES - 1), "y"]), chat(["x" * limits.TEXT_BYTES, "y"])),
    ("input", chat([""] * limits.MESSAGES), chat([""] * (limits.MESSAGES + 1))),
    ("input", chat(["x"]), chat([])),
    (
        "input",
        ChatInput((Message("r" * limits.ROLE_BYTES, ""),)),
        ChatInput((Message("r" * (limits.ROLE_BYTES + 1), ""),)),
    ),
    ("input", ChatInput((Message("r", ""),)), ChatInput((Message("", ""),))),
    ("input", TokenInput((0,) * limits.PROMPT_TOKENS), TokenInput((0,) * (limits.PROMPT_TOKENS + 1))),
    ("input", TokenInput((0,)), TokenInput(())),
    ("temperature", 0.0, -0.001),
    ("temperature", limits.TEMPERATURE, limits.TEMPERATURE + 0.001),
    ("temperature", 1.0, math.nan),
    ("top_p", 0.001, 0.0),
    ("top_p", 1.0, 1.001),
    ("top_k", 0, -1),
    ("top_k", limits.TOP_K, limits.TOP_K + 1),
    ("min_p", 0.0, -0.001),
    ("min_p", 1.0, 1.001),
    ("presence_penalty", -limits.PENALTY, -limits.PENALTY - 0.001),
    ("presence_penalty", limits.PENALTY, limits.PENALTY + 0.001),
    ("frequency_penalty", -limits.PENALTY, -limits.PENALTY - 0.001),
    ("frequency_penalty", limits.PENALTY, math.inf),
    ("repetition_penalty", 0.001, 0.0),
    ("repetition_penalty", limits.REPETITION_PENALTY, limits.REPETITION_PENALTY + 0.001),
    ("seed", 0, -1),
    ("seed", 2**64 - 1, 2**64),
    ("max_output_tokens", 1, 0),
    ("max_output_tokens", limits.OUTPUT_TOKENS, limits.OUTPUT_TOKENS + 1),
    ("stop", ("x",) * limits.STOP_STRINGS, ("x",) * (limits.STOP_STRINGS + 1)),
    ("stop", ("x" * limits.STOP_BYTES,), ("x" * (limits.STOP_BYTES + 1),)),
    ("stop", ("x",), ("x", "")),
    ("priority", 3, 4),
    ("logit_bias", tuple((i, 1.0) for i in range(300)), tuple((i, 1.0) for i in range(301))),
    ("logit_bias", ((0, 100.0), (1, -100.0)), ((0, 100.1),)),
    ("logit_bias", (), ((0, math.nan),)),
    ("n", limits.CHOICES, limits.CHOICES + 1),
    ("n", 1, 0),
    ("top_logprobs", 0, -1),
    ("top_logprobs", limits.TOP_LOGPROBS, limits.TOP_LOGPROBS + 1),
    ("timeout_s", 0.001, 0.0),
    ("timeout_s", limits.TIMEOUT_S, limits.TIMEOUT_S + 1),
    ("resume_ids", (0,) * limits.OUTPUT_TOKENS, (0,) * (limits.OUTPUT_TOKENS + 1)),
    ("form", Regex("é" * (FORM_BYTES // 2)), Regex("é" * (FORM_BYTES // 2) + "x")),
    ("form", Choices(("x",) * CHOICES), Choices(("x",) * (CHOICES + 1))),
    ("form", Choices(("x",)), Choices(())),
]


@pytest.mark.parametrize(("field", "at_limit", "beyond"), FIELD_LIMITS, ids=range(len(FIELD_LIMITS)))
def test_a_value_at_the_limit_is_accepted_and_one_beyond_it_is_rejected_by_name(field, at_limit, beyond):
    validate(spec(**{field: at_limit}))
    with pytest.raises(InvalidArgument) as failure:
        validate(spec(**{field: beyond}))
    assert [each.field for each in failure.value.field_violations] == [field]


def test_every_field_except_booleans_has_a_limit():
    capped = {field for field, *_ in FIELD_LIMITS}
    free = {each.name for each in dataclasses.fields(RequestSpec) if each.name not in capped}
    assert {name for name in free if not isinstance(getattr(spec(), name), bool)} == set()


def test_the_default_of_every_field_is_allowed():
    validate(spec())


def test_all_violations_are_reported_together_with_the_callers_field_names():
    with pytest.raises(InvalidArgument) as failure:
        validate(spec(temperature=3.0, max_output_tokens=0), {"max_output_tokens": "max_tokens"})
    assert failure.value.message == (
        f"temperature is 3.0; allowed are 0 to 2.0; max_tokens is 0; allowed are 1 to {limits.OUTPUT_TOKENS}"
    )
    assert [each.field for each in failure.value.field_violations] == ["temperature", "max_tokens"]


def test_a_form_excludes_ignoring_the_end():
    with pytest.raises(InvalidArgument, match="ignore_eos is set together with a form"):
        validate(spec(form=Regex("a"), ignore_eos=True))
