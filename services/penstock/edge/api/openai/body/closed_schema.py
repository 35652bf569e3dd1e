"""JSON schemas whose objects have no members beyond those that the schema names."""

from collections.abc import Iterator
from typing import Any

import orjson

from penstock.mesh.forms import FORM_BYTES

_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMAS = ("items", "additionalProperties", "prefixItems", "anyOf", "oneOf")  # one schema or a list
_JOINED = ("$ref", "anyOf", "oneOf")  # beside `properties`, they name members of the same object


def closed_schema(source: str) -> str:
    """Return a schema in which objects that do not say whether they have further members have none.

    Libraries that make schemas of classes leave `additionalProperties` out, and expect only the members of the class. A
    small model adds members until the answer is cut off. A schema that composes one object of several, whose parts
    must not be closed, is returned as it is, and so is text that is no schema; the compiler of forms reports it.
    """
    if len(source) > FORM_BYTES:  # it is refused
        return source
    try:
        schema = orjson.loads(source)
    except orjson.JSONDecodeError:
        return source
    found = list(_schemas_of(schema))
    if any(_is_composed(each) for each in found):
        return source
    for each in found:
        if _may_be_closed(each):
            each["additionalProperties"] = False
    return orjson.dumps(schema).decode()


def _schemas_of(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and those within it."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            yield value
            waiting += [value[name] for name in _SCHEMAS if name in value]
            by_name = [value[name] for name in _SCHEMAS_BY_NAME if isinstance(value.get(name), dict)]
            waiting += [each for named in by_name for each in named.values()]


def _is_composed(schema: dict[str, Any]) -> bool:
    return "allOf" in schema or ("properties" in schema and any(name in schema for name in _JOINED))


def _may_be_closed(schema: dict[str, Any]) -> bool:
    """Return whether an object names its members, requires no others, and does not say whether it has others."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not properties or not isinstance(required, list):
        return False
    says_more = any(name in schema for name in ("additionalProperties", "unevaluatedProperties", "minProperties"))
    return not says_more and all(isinstance(name, str) and name in properties for name in required)
