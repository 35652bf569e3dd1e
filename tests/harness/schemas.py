"""Random JSON schemas over the keywords that this server enforces. Every output in such a schema is finite."""

import random

WORDS = ("name", "age", "tags", "unit", "city", "x", "is_open", "größe", "a b", "id")
FORMATS = ("date-time", "uuid", "ipv4")
PATTERNS = ("^[A-Z]{2}-[0-9]{3}$", "^(red|green|blue)$", "^[a-f0-9]{4,8}$", '^[^"\\\\]{1,6}$')
MAX_DEPTH = 3


def random_schema(rng: random.Random, depth: int = 0) -> dict:
    """Return a schema; at depth 0, of an object, as the APIs ask for."""
    if depth == 0:
        return _object(rng, depth)
    kinds = [_string, _integer, _number, _enum, _const, _nullable, _any_of]
    if depth < MAX_DEPTH:
        kinds += [_object, _array, _array, _tuple]
    return rng.choice(kinds)(rng, depth)


def random_schema_with_definitions(rng: random.Random) -> dict:
    """Return a recursive schema: a tree with at most two branches at each node, which may be left out."""
    node = _object(rng, MAX_DEPTH)
    node["properties"]["branches"] = {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}
    return {"$defs": {"node": node}, **_closed({"root": {"$ref": "#/$defs/node"}}, ["root"])}


def _closed(properties: dict, required: list[str]) -> dict:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _object(rng, depth):
    names = rng.sample(WORDS, rng.randint(1, 4))
    required = [name for name in names if rng.random() < 0.7]
    return _closed({name: random_schema(rng, depth + 1) for name in names}, required)


def _array(rng, depth):
    low = rng.randint(0, 2)
    return {
        "type": "array",
        "items": random_schema(rng, depth + 1),
        "minItems": low,
        "maxItems": low + rng.randint(0, 2),
    }


def _tuple(rng, depth):
    items = [random_schema(rng, depth + 1) for _ in range(rng.randint(1, 2))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _string(rng, depth):
    match rng.randint(0, 2):
        case 0:
            return {"type": "string", "format": rng.choice(FORMATS)}
        case 1:
            return {"type": "string", "pattern": rng.choice(PATTERNS)}
        case _:
            low = rng.randint(0, 4)
            return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 12)}


def _integer(rng, depth):
    low = rng.randint(-100, 100)
    return {"type": "integer", "minimum": low, "maximum": low + rng.randint(1, 5_000)}


def _number(rng, depth):
    if rng.random() < 0.3:
        return {"type": "integer", "multipleOf": rng.choice((2, 5, 10)), "minimum": 0, "maximum": 1_000}
    low = rng.randint(-10, 10)
    return {"type": "number", "minimum": low, "exclusiveMaximum": low + rng.randint(1, 50)}


def _enum(rng, depth):
    return {"enum": rng.sample(["red", "green", 7, None, True, 1.5, 'größe "x"'], rng.randint(1, 4))}


def _const(rng, depth):
    return {"const": rng.choice(["fixed", 3, None, False])}


def _nullable(rng, depth):
    return {"type": [rng.choice(["integer", "boolean"]), "null"]}


def _any_of(rng, depth):
    return {"anyOf": [_integer(rng, depth), _string(rng, depth), {"type": "null"}]}
