"""Structure of a JSON body: counts its containers, strings and elements, and its depth, before it is parsed.

The parser holds the interpreter lock for the whole body, also in a thread, and its objects take up to 30 times the
bytes of the body: 16 MiB of `[]` take 2 s and 0.5 GiB. These counts bound a body to about 50 ms and 100 MB. They are
taken in slices, between which other threads run, and by functions that scan bytes at the speed of C.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count
from operator import sub

from penstock.chassis.errors import InvalidArgument
from penstock.edge.request import limits

SLICE_BYTES = 256 << 10  # at most 2 ms
_OPENING, _CLOSING = b"[{", b"]}"
_NOT_BRACKETS = bytes(set(range(256)) - set(_OPENING + _CLOSING))
# Counted as 2 and 0, because bytes are not negative: the depth after i brackets is their sum less i.
_BRACKET_STEPS = bytes.maketrans(_OPENING + _CLOSING, b"\x02\x02\x00\x00")


class BodyTooComplex(InvalidArgument):
    """A body has more lists, objects, strings or elements than any request needs, or is nested too deeply."""

    default_reason = "BODY_TOO_COMPLEX"


@dataclass(slots=True)
class _Structure:
    depth: int = 0
    containers: int = 0
    elements: int = 0
    quotes: int = 0

    def check(self) -> None:
        """Raise BodyTooComplex if a count exceeds its limit."""
        for what, found, most in (
            ("lists and objects", self.containers, limits.JSON_CONTAINERS),
            ("elements", self.elements, limits.JSON_ELEMENTS),
            ("strings", self.quotes // 2, limits.JSON_STRINGS),
        ):
            if found > most:
                raise BodyTooComplex(f"the body has more than {most} {what}; send fewer, or several requests")

    def add(self, outside: bytes) -> None:
        """Count a slice without its strings."""
        brackets = outside.translate(_BRACKET_STEPS, _NOT_BRACKETS)
        self.elements += outside.count(b",")
        self.containers += brackets.count(b"\x02")
        self.check()
        if len(brackets) > self.containers + limits.JSON_CONTAINERS:
            raise InvalidArgument("the body is not JSON: it closes more lists and objects than it opens")
        highest = max(map(sub, accumulate(brackets, initial=self.depth), count()))
        if highest > limits.JSON_DEPTH:
            raise BodyTooComplex(f"the body is nested more than {limits.JSON_DEPTH} deep; send it flatter")
        self.depth += sum(brackets) - len(brackets)


def check_structure(body: bytes) -> None:
    """Raise BodyTooComplex if parsing `body` would take long or much memory. Text that is not JSON may pass."""
    # Characters in strings are counted, too: most bodies are below all limits even so.
    containers = body.count(b"[") + body.count(b"{")
    if containers <= limits.JSON_DEPTH and (
        len(body) <= limits.JSON_STRINGS
        or (body.count(b'"') <= 2 * limits.JSON_STRINGS and body.count(b",") <= limits.JSON_ELEMENTS)
    ):
        return
    structure, is_in_string = _Structure(), False
    for part in _slices(body):
        if b"\\" in part:
            part = part.replace(b"\\\\", b"").replace(b'\\"', b"")  # noqa: PLW2901  # without escaped quotes
        quotes = part.count(b'"')
        structure.quotes += quotes
        structure.check()
        structure.add(b"".join(part.split(b'"')[is_in_string::2]))
        is_in_string ^= bool(quotes % 2)


def _slices(body: bytes) -> Iterator[bytes]:
    """Yield slices that do not end within an escape."""
    start = 0
    while start < len(body):
        part = body[start : start + SLICE_BYTES]
        if (len(part) - len(part.rstrip(b"\\"))) % 2:
            part = body[start : start + SLICE_BYTES + 1]
        yield part
        start += len(part)
