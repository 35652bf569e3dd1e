"""Frames between tiers with random values, at and beyond the ranges of their fields."""

import math
from collections.abc import Iterator

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from penstock.mesh.limits import bounds
from penstock.mesh.limits.rules import Apart, Data, Many, Pairs, Part, Real, Text, Unchecked, Whole
from penstock.mesh.limits.table import TABLE

MAX_SAMPLE_CHARS = bounds.ERROR_CHARS + 1  # longer texts would make tests slow
FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
UINT_BITS = {FieldDescriptor.CPPTYPE_UINT32: 32, FieldDescriptor.CPPTYPE_UINT64: 64}
INT_BITS = {FieldDescriptor.CPPTYPE_INT32: 31, FieldDescriptor.CPPTYPE_INT64: 63, FieldDescriptor.CPPTYPE_ENUM: 31}
STREAM_KINDS = ("hello", "heartbeat", "end")


def rules_of(message):
    return TABLE[message.DESCRIPTOR.full_name]


def largest(field):
    bits = UINT_BITS.get(field.cpp_type) or INT_BITS[field.cpp_type]
    return 2**bits - 1


def numbers(field, rule):
    """Numbers at and beyond a range, and those at the ends of the field's type."""
    at = rule.maximum if isinstance(rule, Whole | Real) else 1
    if field.cpp_type in FLOATS:
        return [0.0, 0.5, 5e-324, at, at * 2, -1.0, 1.7e308, math.nan, math.inf, -math.inf]
    found = [0, 1, at, min(at + 1, largest(field)), largest(field)]
    return found if field.cpp_type in UINT_BITS else [*found, -1]


def values(field, rule):
    if field.type == FieldDescriptor.TYPE_BOOL:
        return [False, True]
    if field.type == FieldDescriptor.TYPE_BYTES:
        return [b"", b"x" * 16, *([b"x" * 65] if isinstance(rule, Data) else [])]
    if field.type != FieldDescriptor.TYPE_STRING:
        return numbers(field, rule)
    sizes = [0, 1, 8, *([rule.max_chars, rule.max_chars + 1] if isinstance(rule, Text) else [])]
    return [character * min(size, MAX_SAMPLE_CHARS) for size in sizes for character in "aZ9@ é\n"]


def admitted(field, rule, found):
    """Return the values within a range. A float field holds the nearest float of a value."""
    if isinstance(rule, Unchecked):
        return found
    return [each for each in found if rule.admits(each)]


def fill(message, rng, share, *, is_within=False):
    """Set random fields of a message to values at and beyond their ranges, or only within them."""
    choices = [each.fields for each in message.DESCRIPTOR.oneofs if len(each.fields) > 1]
    left_out = {each.name for fields in choices for each in rng.sample(list(fields), len(fields) - 1)}
    for field in message.DESCRIPTOR.fields:
        rule = rules_of(message)[field.name]
        if field.name in left_out or rng.random() > share:
            continue
        each = rule.each if isinstance(rule, Many) else rule
        if isinstance(rule, Pairs):
            count = 1 if is_within else rng.choice([1, rule.max_count + 1])
            getattr(message, field.name).update({str(number): "v" for number in range(count)})
        elif field.is_repeated:
            limit = rule.max_count if is_within and isinstance(rule, Many) else 70
            _fill_list(message, field, each, rng, share, limit=limit, is_within=is_within)
        elif field.message_type:
            getattr(message, field.name).SetInParent()
            if isinstance(rule, Part):
                fill(getattr(message, field.name), rng, share, is_within=is_within)
        else:
            setattr(message, field.name, rng.choice(_choices(field, rule, is_within=is_within)))


def _fill_list(message, field, rule, rng, share, *, limit, is_within):
    found = getattr(message, field.name)
    for _ in range(min(rng.choice([1, 2, 16 if is_within else 70]), limit)):
        if field.message_type is None:
            found.append(rng.choice(_choices(field, rule, is_within=is_within)))
        elif isinstance(rule, Apart):
            fill(found.add(), rng, share / 2, is_within=is_within)
        else:
            fill(found.add(), rng, share, is_within=is_within)


def _choices(field, rule, *, is_within):
    found = values(field, rule)
    return admitted(field, rule, found) if is_within else found


def random_frame(frame_type, rng, *, is_within=False):
    """A frame of a random kind, except those that end a stream."""
    kinds = [each.name for each in data_kinds(frame_type)]
    frame = frame_type()
    kind = getattr(frame, rng.choice(kinds))
    kind.SetInParent()
    fill(kind, rng, rng.choice([0.2, 0.6, 0.9]), is_within=is_within)
    return frame


def data_kinds(frame_type):
    return [each for each in frame_type.DESCRIPTOR.oneofs_by_name["frame"].fields if each.name not in STREAM_KINDS]


def wrong_frames(frame_type) -> Iterator[tuple[str, object]]:
    """Yield a frame for each field that can be out of its range, with the path of the field."""
    for kind in data_kinds(frame_type):
        for path, message in wrong_messages(kind.message_type):
            frame = frame_type()
            getattr(frame, kind.name).CopyFrom(message)
            yield f"{kind.message_type.name}.{path}", frame


def wrong_messages(descriptor):
    for field in descriptor.fields:
        rule, message = TABLE[descriptor.full_name][field.name], GetMessageClass(descriptor)()
        if isinstance(rule, Unchecked | Apart):
            continue
        if isinstance(rule, Part):
            for path, inner in wrong_messages(field.message_type):
                message.Clear()
                getattr(message, field.name).CopyFrom(inner)
                yield f"{field.name}.{path}", message
        elif isinstance(rule, Pairs):
            getattr(message, field.name).update({"k": "v" * (rule.max_chars + 1)})
            yield field.name, message
        elif isinstance(rule, Many):
            yield from _wrong_lists(message, field, rule)
        else:
            yield from _wrong_values(message, field, rule)


def _wrong_lists(message, field, rule):
    if isinstance(rule.each, Part):
        for path, inner in wrong_messages(field.message_type):
            message.Clear()
            getattr(message, field.name).append(inner)
            yield f"{field.name}[0].{path}", message
    elif not isinstance(rule.each, Unchecked):
        for value in values(field, rule.each):
            if not rule.each.admits(value):
                message.Clear()
                getattr(message, field.name).append(value)
                yield f"{field.name}[0]", message
                break
    if rule.max_count <= bounds.TICKETS:
        message.Clear()
        for _ in range(rule.max_count + 1):
            if field.message_type:
                getattr(message, field.name).add()
            else:
                getattr(message, field.name).append(values(field, rule.each)[0])
        yield field.name, message


def _wrong_values(message, field, rule):
    for value in values(field, rule):
        if not rule.admits(value):
            setattr(message, field.name, value)
            yield field.name, message
            return
