"""Patterns of JSON schemas, made exact for llguidance.

Its form of a pattern within a JSON string admits the escapes of `"` and of a backslash wherever a class of characters
contains control characters, also if the class excludes the two, as `[^"]` does. A negated class that excludes control
characters as well is exact. Outputs then have no control characters in its place, and are valid under both patterns.
"""

import json
from collections.abc import Iterator
from typing import Any

CONTROL_CHARACTERS = r"\x00-\x1f"
_VALUES = ("enum", "const", "default", "examples")  # no schemas


def exact_patterns(schema: str) -> str:
    """Return a JSON schema whose patterns exclude control characters from negated classes. No JSON: as it is."""
    if "[^" not in schema:
        return schema
    try:
        parsed = json.loads(schema)
    except (ValueError, RecursionError):
        return schema  # whose error llguidance reports
    for each in _objects_of(parsed):
        if isinstance(pattern := each.get("pattern"), str):
            each["pattern"] = exact_pattern(pattern)
        if isinstance(named := each.get("patternProperties"), dict):
            each["patternProperties"] = {exact_pattern(name): value for name, value in named.items()}
    return json.dumps(parsed, ensure_ascii=False)


def exact_pattern(pattern: str) -> str:
    """Return a regular expression whose negated classes exclude control characters."""
    parts, at, is_in_class = [], 0, False
    while at < len(pattern):
        if pattern[at] == "\\":
            parts.append(pattern[at : at + 2])
            at += 2
        elif not is_in_class and pattern.startswith("[^", at):
            is_literal_bracket = pattern.startswith("]", at + 2)  # the first character of a class
            parts.append("[^" + CONTROL_CHARACTERS + (r"\]" if is_literal_bracket else ""))
            at += 3 if is_literal_bracket else 2
            is_in_class = True
        else:
            is_in_class = pattern[at] == "[" or (is_in_class and pattern[at] != "]")
            parts.append(pattern[at])
            at += 1
    return "".join(parts)


def _objects_of(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of a schema except those of values."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            yield value
            waiting += [each for name, each in value.items() if name not in _VALUES]
