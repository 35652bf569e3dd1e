"""Forms of an output: their grammars, and the errors that name what cannot be enforced."""

import json

import pytest

from penstock.mesh.form_grammar import MAX_ERROR_CHARS, FormUnsupported, check_form
from penstock.mesh.forms import (
    CHOICES,
    FORM_BYTES,
    JSON_OBJECT,
    Choices,
    JsonSchema,
    Lark,
    Regex,
    form_from,
    form_message,
    form_problem,
)
from penstock.v1 import inference_pb2 as pb

FORMS = (JSON_OBJECT, Regex("[a-z]{3}"), Lark('start: "a" "b"'), Choices(("yes", 'n"o\\\n', "größe")))


@pytest.mark.parametrize("form", FORMS)
def test_a_form_survives_its_message_and_compiles(form):
    assert form_from(form_message(form)) == form
    assert form_problem(form) == ""
    check_form(form)


def test_a_message_of_an_unknown_kind_has_no_form():
    assert form_from(pb.Form()) is None


def unsupported(schema):
    return JsonSchema(json.dumps(schema))


@pytest.mark.parametrize(
    ("form", "named"),
    [
        (unsupported({"type": "array", "items": {}, "uniqueItems": True}), "uniqueItems"),
        (unsupported({"not": {"type": "string"}}), "not"),
        (unsupported({"type": "object", "propertyNames": {"pattern": "^a"}}), "propertyNames"),
        (unsupported({"type": "string", "format": "iban"}), "iban"),
        (unsupported({"type": "strin"}), "strin"),
        (unsupported({"type": "integer", "minimum": 5, "maximum": 2}), "minimum"),
        (unsupported({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}), "oneOf"),
        (unsupported({"$ref": "http://127.0.0.1:9/x.json"}), "x.json"),
        (JsonSchema("[]"), "object"),
        (JsonSchema("{"), "JSON schema"),
        (Regex("(a"), "unclosed group"),
        (Lark('begin: "a"'), "start"),
    ],
)
def test_an_error_names_what_cannot_be_enforced(form, named):
    with pytest.raises(FormUnsupported, match=named) as raised:
        check_form(form)
    assert len(str(raised.value)) < MAX_ERROR_CHARS + 100


def deep(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return unsupported(schema)


HOSTILE = {
    "large": JsonSchema(json.dumps({"enum": ["x" * 100_000]})),
    "deep": deep(200),
    "product": unsupported(
        {"allOf": [{"anyOf": [{"properties": {f"a{i}": {"const": j}}} for j in range(4)]} for i in range(8)]}
    ),
    "many rules": Lark("start: " + " ".join(f"r{i}" for i in range(20_000))),
    "choices": Choices(("x",) * (CHOICES + 1)),
    "no choice": Choices(()),
    "empty choice": Choices(("a", "")),
    "empty": Regex(""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_form_is_refused(name):
    with pytest.raises(FormUnsupported):
        check_form(HOSTILE[name])


def test_a_form_of_the_largest_size_compiles():
    properties = {f"property_{number}": {"type": "integer"} for number in range(1_500)}
    schema = json.dumps({"type": "object", "properties": properties, "additionalProperties": False})
    assert FORM_BYTES * 0.7 < len(schema) <= FORM_BYTES
    check_form(JsonSchema(schema))
