"""Finds the field of a message that is out of its range. Slow: called once a compiled check has found a violation."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from penstock.mesh.limits.rules import Apart, Many, Part, Rule, Unchecked
from penstock.mesh.limits.table import TABLE

SHOWN_CHARS = 64  # of a value in an error


@dataclass(slots=True)
class OutOfRange(Exception):
    """A field of a frame is out of its range."""

    message: str  # name of the message, without its package
    field: str  # path in the message
    value: str  # the first characters
    allowed: str

    def __str__(self) -> str:
        return f"{self.message}.{self.field} is {self.value}; allowed: {self.allowed}"


def violation_of(message: Message) -> OutOfRange | None:
    """Return the first field out of its range; None if all are within."""
    return next(_violations(message, message.DESCRIPTOR.name, ""), None)


def _violations(message: Message, root: str, path: str) -> Iterator[OutOfRange]:
    for name, rule in TABLE[message.DESCRIPTOR.full_name].items():
        if isinstance(rule, Part):
            if message.HasField(name):
                yield from _violations(getattr(message, name), root, f"{path}{name}.")
        else:
            yield from _field_violations(getattr(message, name), rule, root, f"{path}{name}")


def _field_violations(value: Any, rule: Rule, root: str, path: str) -> Iterator[OutOfRange]:
    if isinstance(rule, Unchecked | Part):
        return
    if not rule.admits(value):
        shown = f"of {len(value)} entries" if isinstance(rule, Many | Apart) else _shown(value)
        yield OutOfRange(root, path, shown, str(rule))
    elif isinstance(rule, Many):
        for index, each in enumerate(value):
            if isinstance(rule.each, Part):
                yield from _violations(each, root, f"{path}[{index}].")
            else:
                yield from _field_violations(each, rule.each, root, f"{path}[{index}]")


def _shown(value: Any) -> str:
    if isinstance(value, str | bytes):
        rest = f"... ({len(value)} in all)" if len(value) > SHOWN_CHARS else ""
        return f"{value[:SHOWN_CHARS]!r}{rest}"
    if isinstance(value, int | float):
        return str(value)
    return f"a map of {len(value)} pairs"
