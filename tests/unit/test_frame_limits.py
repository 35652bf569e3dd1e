"""The table of field ranges: it has every field between tiers, and its compiled checks judge as its ranges do."""

import random

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from frame_samples import MAX_SAMPLE_CHARS, fill, largest, wrong_messages
from penstock.mesh.limits import bounds
from penstock.mesh.limits.compiler import check_of, frame_checks
from penstock.mesh.limits.rules import Apart, Data, Many, Pairs, Part, Real, Text, Unchecked, Whole
from penstock.mesh.limits.table import TABLE
from penstock.mesh.limits.violations import violation_of
from penstock.mesh.v1 import (
    admission_pb2,
    batch_pb2,
    queue_pb2,
    region_pb2,
    region_quota_pb2,
    responses_pb2,
    routing_pb2,
    scheduler_pb2,
    ticket_pb2,
    worker_pb2,
)
from penstock.v1 import stream_pb2

FILES = [
    *(admission_pb2, batch_pb2, queue_pb2, region_pb2, region_quota_pb2, routing_pb2),
    *(responses_pb2, scheduler_pb2, ticket_pb2, worker_pb2, stream_pb2),
]
SAMPLES_PER_MESSAGE = 400


def is_frame(message):
    return "frame" in message.oneofs_by_name


MESSAGES = [each for file in FILES for each in file.DESCRIPTOR.message_types_by_name.values()]
FRAMES = [each for each in MESSAGES if is_frame(each)]


def reachable(message, found):
    """Collect the messages that a message may contain, except those whose receiver judges them."""
    if message.full_name in found:
        return found
    found[message.full_name] = message
    for field in message.fields:
        rule = TABLE.get(message.full_name, {}).get(field.name)
        is_map = field.message_type and field.message_type.GetOptions().map_entry
        if field.message_type and not isinstance(rule, Unchecked) and not is_map and field.name != "more":
            reachable(field.message_type, found)
    return found


ALL = {name: each for message in MESSAGES for name, each in reachable(message, {}).items()}
JUDGED = {name: each for name, each in ALL.items() if not is_frame(each)}


def test_every_message_between_tiers_has_its_ranges_and_no_other_has():
    assert set(JUDGED) == set(TABLE)


@pytest.mark.parametrize("name", sorted(JUDGED))
def test_every_field_has_a_range_or_a_reason_to_have_none(name):
    assert list(TABLE[name]) == [field.name for field in JUDGED[name].fields]
    for rule in TABLE[name].values():
        if isinstance(rule, Unchecked | Apart):
            assert len(rule.reason) > len("harmless")


@pytest.mark.parametrize("frame", FRAMES, ids=lambda each: each.name)
def test_a_frame_is_one_of_its_kinds_or_a_bundle(frame):
    kinds = frame.oneofs_by_name["frame"].fields
    assert {field.name for field in frame.fields} == {*(field.name for field in kinds), "more"}
    assert all(kind.message_type.full_name in TABLE for kind in kinds)


@pytest.mark.parametrize("name", sorted(JUDGED))
def test_a_range_fits_the_type_of_its_field(name):
    """A range beyond its type would be no range, and one of another type would be compiled to nonsense."""
    for field in JUDGED[name].fields:
        rule = TABLE[name][field.name]
        if isinstance(rule, Unchecked):
            continue
        is_list = field.is_repeated and not isinstance(rule, Pairs)
        assert isinstance(rule, Many | Apart) == is_list, field.full_name
        each = rule.each if isinstance(rule, Many) else rule
        if field.type == FieldDescriptor.TYPE_ENUM:
            assert {value.number for value in field.enum_type.values} == set(range(each.maximum + 1))
        elif isinstance(each, Whole):
            assert each.maximum < largest(field), field.full_name
        elif isinstance(each, Real):
            assert field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
        elif isinstance(each, Text):
            assert field.type == FieldDescriptor.TYPE_STRING
        elif isinstance(each, Part | Apart):
            assert field.type == FieldDescriptor.TYPE_MESSAGE


@pytest.mark.parametrize("name", sorted(JUDGED))
def test_a_compiled_check_finds_the_violations_that_the_ranges_define(name):
    rng, check, found = random.Random(name), check_of(JUDGED[name]), set()
    alternatives = max((len(each.fields) for each in JUDGED[name].oneofs), default=1)  # one of which each sample has
    for _ in range(SAMPLES_PER_MESSAGE * alternatives):
        message = GetMessageClass(JUDGED[name])()
        fill(message, rng, rng.choice([0.1, 0.5]))
        violation = violation_of(message)
        assert bool(check and check(message)) == (violation is not None), violation
        if violation:
            found.add(violation.field.partition("[")[0].partition(".")[0])
    if check is None:
        assert not found
    checked = {each for each, rule in TABLE[name].items() if can_be_wrong(JUDGED[name], each, rule)}
    assert found == checked


def can_be_wrong(message, name, rule):
    """Whether the random messages reach beyond the range. Lists of more than 70 entries are another test's."""
    if isinstance(rule, Part):
        return check_of(message.fields_by_name[name].message_type) is not None
    if isinstance(rule, Many):
        return rule.max_count < 70 or can_be_wrong(message, name, rule.each)
    if isinstance(rule, Unchecked | Apart):
        return False
    if isinstance(rule, Text):
        return rule.max_chars < MAX_SAMPLE_CHARS
    return not isinstance(rule, Data) or rule.max_bytes <= 64


@pytest.mark.parametrize("name", sorted(JUDGED))
def test_an_empty_message_is_within_every_range(name):
    """Fields that have to be set are the business of their receivers."""
    assert violation_of(GetMessageClass(JUDGED[name])()) is None


@pytest.mark.parametrize("name", sorted(JUDGED))
def test_the_error_names_each_field_that_can_be_wrong(name):
    for path, message in wrong_messages(JUDGED[name]):
        assert violation_of(message).field == path
        assert check_of(JUDGED[name])(message)


def test_the_error_names_message_field_value_and_range():
    stats = queue_pb2.PoolStats(prefill_backlogs=[queue_pb2.PrefillBacklog(), queue_pb2.PrefillBacklog()])
    stats.prefill_backlogs[1].worker_id = "w" * 300
    violation = violation_of(stats)
    assert str(violation) == (
        f"PoolStats.prefill_backlogs[1].worker_id is {'w' * 64!r}... (300 in all); allowed: at most 256 characters"
    )
    profile = scheduler_pb2.Profile(slots=2**32 - 1)
    assert str(violation_of(profile)) == f"Profile.slots is {2**32 - 1}; allowed: 0 to {bounds.SLOTS}"


def test_too_many_entries_are_out_of_range():
    enqueue = queue_pb2.Enqueue(tickets=[ticket_pb2.Ticket()] * (bounds.TICKETS + 1))
    assert str(violation_of(enqueue)) == "Enqueue.tickets is of 4097 entries; allowed: at most 4096 entries"
    assert check_of(enqueue.DESCRIPTOR)(enqueue)


def test_a_frame_of_tokens_is_never_checked():
    """It is paid for thousands of times a second, and the edge handles each of its values."""
    assert "step" not in frame_checks(worker_pb2.ExecuteResponse.DESCRIPTOR)
    assert "finished" in frame_checks(worker_pb2.ExecuteResponse.DESCRIPTOR)
