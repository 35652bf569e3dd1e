"""The name of a request's conversation, by which routes may keep the conversation on one model."""

from collections.abc import Iterable, Mapping
from typing import Any

HEADERS = ("x-session-affinity", "x-session-id")
BODY_FIELDS = ("prompt_cache_key", "conversation", "safety_identifier", "user", "metadata")
_MEMBERS: Mapping[str, str] = {"conversation": "id", "metadata": "user_id"}  # of fields that are objects
NO_FIELDS: Mapping[str, Any] = {}


def session_of(headers: Iterable[tuple[str, str | bytes]], fields: Mapping[str, Any] = NO_FIELDS) -> str:
    """Return the name in the first header or field that has one; empty if none has. Header names are lower case."""
    given = {name: value for name, value in headers if name in HEADERS and isinstance(value, str)}
    for name in HEADERS:
        if given.get(name):
            return given[name]
    for name in BODY_FIELDS:
        value = fields.get(name)
        if isinstance(value, dict) and name in _MEMBERS:
            value = value.get(_MEMBERS[name])
        if value and isinstance(value, str):
            return value
    return ""
