"""Typed access to a JSON body. `null` counts as absent, as in the API. A wrong type is rejected with its path."""

from collections.abc import Mapping
from typing import Any, TypeVar

import orjson

from penstock.chassis.errors import DeadlineExceeded, InvalidArgument
from penstock.edge.api.openai.body.structure import check_structure
from penstock.edge.request import limits

T = TypeVar("T")
MAX_QUOTED_CHARS = 40  # of a value that an error message repeats


class BodyTooLarge(InvalidArgument):
    """The body exceeds the limit of a request."""

    default_reason = "BODY_TOO_LARGE"


class BodyStalled(DeadlineExceeded):
    """No further byte of a body arrived in time."""

    default_reason = "BODY_STALLED"


class BodyTooSlow(DeadlineExceeded):
    """A body arrives below the least rate."""

    default_reason = "BODY_TOO_SLOW"

    def __init__(self, size: int, seconds: float) -> None:
        super().__init__(
            f"{size} bytes of the body arrived in {seconds:.0f} s; after {limits.BODY_GRACE_S:.0f} s "
            f"it must have arrived at {limits.BODY_BYTES_PER_S} bytes per second"
        )


class HeadTooLarge(InvalidArgument):
    """Request line and headers exceed their limit."""

    default_reason = "HEADERS_TOO_LARGE"

    def __init__(self) -> None:
        super().__init__(
            f"request line and headers exceed {limits.HEAD_BYTES} bytes or {limits.HEADERS} headers; send fewer"
        )


class HeadStalled(DeadlineExceeded):
    """Request line and headers did not arrive in time."""

    default_reason = "HEADERS_STALLED"

    def __init__(self, timeout: float) -> None:
        super().__init__(f"request line and headers did not arrive within {timeout:g} s; send the request again")


class Fields:
    """The members of one JSON object and its path in the body."""

    __slots__ = ("_path", "members")

    def __init__(self, members: Mapping[str, Any], path: str = "") -> None:
        self.members = members
        self._path = path

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def get(self, name: str) -> Any:
        return self.members.get(name)

    def number(self, name: str, default: float) -> float:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(self.path(name), "a number", value)
        return float(value)

    def integer(self, name: str, default: T) -> int | T:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(self.path(name), "an integer", value)
        return value

    def flag(self, name: str) -> bool:
        return bool(self._typed(name, bool, "true or false", default=False))

    def text(self, name: str) -> str:
        return str(self._typed(name, str, "a string", default=""))

    def object(self, name: str) -> "Fields":
        return Fields(self._typed(name, dict, "an object", default={}), self.path(name))

    def _typed(self, name: str, kind: type[T], expected: str, *, default: T) -> T:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, kind):
            raise wrong_type(self.path(name), expected, value)
        return value


def parse_body(body: bytes) -> Fields:
    """Parse a body. Raises BodyTooLarge, BodyTooComplex, or InvalidArgument if it is not a JSON object."""
    if len(body) > limits.BODY_BYTES:
        raise BodyTooLarge(f"the body has {len(body)} bytes; at most {limits.BODY_BYTES} are read")
    check_structure(body)
    try:
        members = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(f"the body is not JSON: {error}") from error
    if not isinstance(members, dict):
        raise InvalidArgument(f"the body must be a JSON object, not {describe(members)}")
    return Fields(members)


def wrong_type(path: str, expected: str, value: object) -> InvalidArgument:
    return InvalidArgument(f"{path} must be {expected}, not {describe(value)}", field=path)


def describe(value: object) -> str:
    """Describe a value for an error message. Long values, such as prompts, are not repeated."""
    match value:
        case dict():
            return "an object"
        case list():
            return f"a list of {len(value)}"
        case str() if len(value) > MAX_QUOTED_CHARS:
            return f"a string of {len(value)} characters"
        case str():
            return f"the string {value!r}"
        case _:
            return orjson.dumps(value).decode()


def quoted(name: str) -> str:
    """Quote a name for an error message, truncated if it is long."""
    return repr(name) if len(name) <= MAX_QUOTED_CHARS else f"{name[:MAX_QUOTED_CHARS]!r}…"
