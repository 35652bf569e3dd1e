"""Compiles the table to one Python expression per message, because frames are checked thousands of times a second.

A check is true if a field is out of its range. Fields without a range cost nothing, and nor does a message without any.
The source of a check is made of names and numbers of the table and descriptors alone, never of received data.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from penstock.mesh.limits.rules import Apart, Data, Many, Pairs, Part, Real, Rule, Text, Unchecked, Whole
from penstock.mesh.limits.table import TABLE

Check = Callable[[Any], bool]  # message -> whether a field is out of its range

FRAME_ONEOF = "frame"
_NEVER_NEGATIVE = frozenset(
    (
        *(FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64),
        *(FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_FIXED64),
    )
)


@cache
def check_of(message: Descriptor) -> Check | None:
    """Return the check of a message; None if every value of each of its fields is harmless."""
    scope: dict[str, Any] = {"all": all, "any": any, "len": len, "map": map, "max": max}
    tests = [
        test
        for name, rule in TABLE[message.full_name].items()
        if (test := _test(message.fields_by_name[name], rule, f"m.{name}", scope))
    ]
    return _function(message.name, " or ".join(tests), scope) if tests else None


@cache
def frame_checks(message: Descriptor) -> Mapping[str, Check]:
    """Return the checks of a frame by the kind of frame. A kind without a check is harmless.

    Empty for frames of the public API, whose receivers check requests one by one.
    """
    return {
        kind.name: _of_kind(kind.name, check)
        for kind in message.oneofs_by_name[FRAME_ONEOF].fields
        if kind.message_type and kind.message_type.full_name in TABLE and (check := check_of(kind.message_type))
    }


def _of_kind(kind: str, check: Check) -> Check:
    return _function(kind, f"check(m.{kind})", {"check": check})


def _function(name: str, test: str, scope: dict[str, Any]) -> Check:
    exec(f"def is_out_of_range(m):\n    return {test}", scope)  # noqa: S102  # of the table, see above
    check: Check = scope["is_out_of_range"]
    check.__qualname__ = f"is_out_of_range[{name}]"
    return check


def _test(field: FieldDescriptor, rule: Rule, value: str, scope: dict[str, Any]) -> str:
    """Return the source of a test that is true if the field is out of its range; empty if it cannot be."""
    match rule:
        case Unchecked():
            return ""
        case Whole(maximum):
            return f"{value} > {maximum}" if field.type in _NEVER_NEGATIVE else f"not 0 <= {value} <= {maximum}"
        case Real(maximum, minimum):
            return f"not {minimum!r} <= {value} <= {maximum!r}"
        case Text(max_chars, allowed):
            matches = f" or {_named(re.compile(allowed).fullmatch, scope)}({value}) is None" if allowed else ""
            return f"len({value}) > {max_chars}{matches}"
        case Data(max_bytes):
            return f"len({value}) > {max_bytes}"
        case Apart(max_count):
            return f"len({value}) > {max_count}"
        case Pairs():
            return f"({value} and not {_named(rule.admits, scope)}({value}))"
        case Part():
            check = check_of(field.message_type)
            name = value.removeprefix("m.")
            return f"(m.HasField({name!r}) and {_named(check, scope)}({value}))" if check else ""
        case Many(max_count, each):
            found = f"v := {value}"
            entries = _entries_test(field, each, scope)
            return f"len({found}) > {max_count}{f' or v and {entries}' if entries else ''}"


def _entries_test(field: FieldDescriptor, each: Rule, scope: dict[str, Any]) -> str:
    """Return the source of a test of the entries of the list `v`, which has some."""
    match each:
        case Part():
            check = check_of(field.message_type)
            return f"any(map({_named(check, scope)}, v))" if check else ""
        case Whole(maximum) if field.type in _NEVER_NEGATIVE:
            return f"max(v[:]) > {maximum}"  # the copy is a list, which `max` reads twice as fast
        case Text(max_chars, ""):
            return f"max(map(len, v)) > {max_chars}"
        case Unchecked():
            return ""
        case _:
            return f"not all(map({_named(each.admits, scope)}, v))"


def _named(value: Any, scope: dict[str, Any]) -> str:
    name = f"f{len(scope)}"
    scope[name] = value
    return name
