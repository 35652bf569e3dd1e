"""Schemas of the OpenAI API whose objects have no members beyond the named ones."""

import json

import pytest

from penstock.edge.api.openai.body.closed_schema import closed_schema
from penstock.mesh.forms import FORM_BYTES

CITY = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
CLOSED_CITY = CITY | {"additionalProperties": False}


def closed(schema):
    return json.loads(closed_schema(json.dumps(schema)))


def test_an_object_that_names_its_members_has_no_others():
    assert closed(CITY) == CLOSED_CITY


def test_objects_within_objects_lists_alternatives_and_definitions_are_closed():
    def country(city):
        return {
            "type": "object",
            "properties": {
                "capital": {"anyOf": [{"$ref": "#/$defs/City"}, {"type": "null"}]},
                "cities": {"type": "array", "items": city},
                "by_name": {"type": "object", "additionalProperties": city},
                "properties": city,
            },
            "$defs": {"City": city},
        }

    assert closed(country(CITY)) == country(CLOSED_CITY) | {"additionalProperties": False}


@pytest.mark.parametrize(
    "schema",
    [
        CITY | {"additionalProperties": True},
        CITY | {"additionalProperties": {"type": "integer"}},
        CITY | {"unevaluatedProperties": True},
        CITY | {"required": ["name", "country"]},
        CITY | {"minProperties": 2},
        CITY | {"required": 1},
        CITY | {"required": [{}]},
        {"type": "object"},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": 1},
        {"enum": [CITY]},
        {"const": CITY},
        True,
        1,
    ],
)
def test_an_object_that_may_have_others_is_left_as_it_is(schema):
    assert closed(schema) == schema


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [CITY, {"properties": {"country": {"type": "string"}}}]},
        {"type": "array", "items": {"allOf": [{"$ref": "#/$defs/City"}]}, "$defs": {"City": CITY}},
        CITY | {"anyOf": [{"properties": {"country": {"type": "string"}}}]},
        CITY | {"$ref": "#/$defs/City", "$defs": {"City": CITY}},
    ],
)
def test_an_object_that_is_composed_of_several_schemas_is_left_as_it_is(schema):
    assert closed(schema) == schema


@pytest.mark.parametrize("source", ["{", "", "[" * 5000, json.dumps(CITY) + " " * FORM_BYTES])
def test_text_that_is_no_schema_or_too_large_is_left_as_it_is(source):
    assert closed_schema(source) == source
