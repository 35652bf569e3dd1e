"""Frames between tiers with one field beyond its range, derived from the table of ranges. Pure.

Fields of which each value is harmless, or that are judged apart from their frame, have no wrong value.
"""

import math
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.mesh.limits.bounds import TICKETS
from penstock.mesh.limits.rules import Apart, Data, Many, Pairs, Part, Real, Rule, Text, Unchecked, Whole
from penstock.mesh.limits.table import TABLE

STREAM_KINDS = ("hello", "heartbeat", "end")
UINT_BITS = {FieldDescriptor.CPPTYPE_UINT32: 32, FieldDescriptor.CPPTYPE_UINT64: 64}
INT_BITS = {FieldDescriptor.CPPTYPE_INT32: 31, FieldDescriptor.CPPTYPE_INT64: 63, FieldDescriptor.CPPTYPE_ENUM: 31}
MAX_FRAME_BYTES = 1 << 16  # longer frames are left out; the length of a list of a million entries is no new case


def wrong_frames(frame_type: Any) -> Iterator[tuple[str, Message]]:
    """Yield a frame for each field that can be out of its range, with the path of the field."""
    for kind in frame_type.DESCRIPTOR.oneofs_by_name["frame"].fields:
        if kind.name in STREAM_KINDS:
            continue
        for path, message in _wrong_messages(kind.message_type):
            frame = frame_type()
            getattr(frame, kind.name).CopyFrom(message)
            if frame.ByteSize() <= MAX_FRAME_BYTES:
                yield f"{kind.message_type.name}.{path}", frame


def _wrong_messages(descriptor: Any) -> Iterator[tuple[str, Message]]:
    for field in descriptor.fields:
        rule, message = TABLE[descriptor.full_name][field.name], GetMessageClass(descriptor)()
        match rule:
            case Unchecked() | Apart():
                continue
            case Part():
                for path, inner in _wrong_messages(field.message_type):
                    message.Clear()
                    getattr(message, field.name).CopyFrom(inner)
                    yield f"{field.name}.{path}", message
            case Pairs():
                getattr(message, field.name).update({"k": "v" * (rule.max_chars + 1)})
                yield field.name, message
            case Many():
                yield from _wrong_lists(message, field, rule)
            case _:
                if (value := _wrong_value(field, rule)) is not None:
                    setattr(message, field.name, value)
                    yield field.name, message


def _wrong_lists(message: Message, field: FieldDescriptor, rule: Many) -> Iterator[tuple[str, Message]]:
    entries = getattr(message, field.name)
    if isinstance(rule.each, Part):
        for path, inner in _wrong_messages(field.message_type):
            del entries[:]
            entries.append(inner)
            yield f"{field.name}[0].{path}", message
    elif (value := _wrong_value(field, rule.each)) is not None:
        entries.append(value)
        yield f"{field.name}[0]", message
    if rule.max_count <= TICKETS:
        del entries[:]
        empty = None if field.message_type else type(field.default_value or "")() if _is_text(field) else 0
        for _ in range(rule.max_count + 1):
            entries.add() if field.message_type else entries.append(empty)
        yield field.name, message


def _is_text(field: FieldDescriptor) -> bool:
    return field.cpp_type == FieldDescriptor.CPPTYPE_STRING


def _wrong_value(field: FieldDescriptor, rule: Rule) -> Any:
    """Return the worst value of the field's type beyond its range; None if each is within it."""
    match rule:
        case Whole():
            bits = UINT_BITS.get(field.cpp_type) or INT_BITS[field.cpp_type]
            largest = 2**bits - 1
            return next((each for each in (largest, rule.maximum + 1) if not rule.admits(each)), None)
        case Real():
            return math.nan
        case Text():
            return "x" * (rule.max_chars + 1)
        case Data():
            return b"x" * (rule.max_bytes + 1)
        case _:
            return None
