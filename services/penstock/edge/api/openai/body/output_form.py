"""The form that a body asks for: `response_format`, `text.format` of responses, and vLLM's `structured_outputs`."""

from typing import Any

import orjson

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.body.closed_schema import closed_schema
from penstock.edge.api.openai.body.fields import Fields, describe, wrong_type
from penstock.mesh.forms import JSON_OBJECT, Choices, Form, JsonSchema, Lark, Regex

_KINDS = "text, json_object and json_schema"


def requested_form(fields: Fields) -> Form | None:
    """Return the form that a chat or a completion asks for. Raises InvalidArgument with the path of the field."""
    extension = fields.object("structured_outputs")
    given = fields.object("response_format")
    form = _of_format(given, given.object("json_schema"))
    if not extension.members:
        return form
    if form:
        raise InvalidArgument(
            "structured_outputs is given together with response_format; leave one of them out",
            field="structured_outputs",
        )
    return _of_extension(extension)


def requested_response_form(text_format: Fields) -> Form | None:
    """Return the form that a response asks for in `text.format`, which has the members of a schema itself."""
    return _of_format(text_format, text_format)


def _of_format(given: Fields, schema_holder: Fields) -> Form | None:
    kind = given.get("type")
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return JSON_OBJECT
    if kind != "json_schema":
        raise InvalidArgument(
            f"{given.path('type')} is {describe(kind)}; allowed are {_KINDS}", field=given.path("type")
        )
    return _json_schema(schema_holder.get("schema"), schema_holder.path("schema"))


def _of_extension(fields: Fields) -> Form:
    given = {name: value for name, value in fields.members.items() if value not in (None, False)}
    match given:
        case {"json": schema, **rest} if not rest:
            return _closed(schema) if isinstance(schema, str) else _json_schema(schema, fields.path("json"))
        case {"json_object": True, **rest} if not rest:
            return JSON_OBJECT
        case {"regex": str(pattern), **rest} if not rest:
            return Regex(pattern)
        case {"grammar": str(grammar), **rest} if not rest:
            return Lark(grammar)
        case {"choice": list(texts), **rest} if not rest and all(isinstance(text, str) for text in texts):
            return Choices(tuple(texts))
        case _:
            raise InvalidArgument(
                "structured_outputs must have exactly one of json, json_object, regex, choice (a list of strings) and "
                "grammar (Lark)",
                field="structured_outputs",
            )


def _json_schema(schema: Any, path: str) -> JsonSchema:
    if not isinstance(schema, dict):
        raise wrong_type(path, "a JSON schema", schema)
    return _closed(orjson.dumps(schema).decode())


def _closed(source: str) -> JsonSchema:
    return JsonSchema(closed_schema(source))
