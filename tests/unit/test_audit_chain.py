"""The chain of the audit log: what is changed, removed, inserted or moved is found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.chassis.operators.audit.actions import AUDITED_ACTIONS, UNRECORDED_METHODS
from penstock.chassis.operators.audit.chain import BEGIN, GENESIS, RESUME, Chain, Entry, digest, parse
from penstock.chassis.operators.audit.verify import Verification
from penstock.v1.admin_pb2 import DESCRIPTOR


def entry(action, **parameters):
    fields = {"tier": "auth", "instance": "auth-1", "actor": "unix:1000", "peer": "unix:", "result": "OK"}
    return Entry(time="2026-11-25T13:00:00.000000Z", action=action, parameters=parameters, **fields)


def log_of(*entries, chain=None):
    """The lines of a log that begins with `log.begin`."""
    chain, lines = chain or Chain(), []
    for each in (entry(BEGIN), *entries):
        lines.append(chain.encode(each))
        chain = chain.after(lines[-1])
    return lines


def report_of(*files, head=""):
    verification = Verification(head)
    for lines in files:
        verification.add_file(lines)
    return verification.finish()


LOG = log_of(*(entry("tenants.put", tenant_id=f"tenant-{number}") for number in range(6)))
TEXTS = st.text(max_size=300)
PARAMETERS = st.dictionaries(
    TEXTS, TEXTS | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.booleans()
)


def test_a_whole_log_is_whole():
    report = report_of(LOG)
    assert (report.broken_at, report.lines, report.head) == (0, 7, digest(LOG[-1]))
    assert (report.continues, report.torn_lines, report.is_incomplete) == ("", [], False)


@given(st.lists(PARAMETERS, max_size=8))
def test_a_log_of_any_parameters_is_whole(parameters):
    chain, lines = Chain(), []
    for each in ({}, *parameters):
        lines.append(chain.encode(Entry(**{**vars_of(entry(BEGIN if not lines else "x")), "parameters": each})))
        chain = chain.after(lines[-1])
    assert all(line.count(b"\n") == 1 for line in lines)
    report = report_of(lines)
    assert (report.broken_at, report.lines, report.head) == (0, len(lines), chain.head)


def vars_of(found):
    return {name: getattr(found, name) for name in Entry.__slots__}


@given(st.integers(0, len(LOG) - 2), st.data())
def test_a_changed_byte_is_found(number, data):
    """In every line but the last, which only `--head` covers."""
    line = bytearray(LOG[number])
    place = data.draw(st.integers(0, len(line) - 2))
    line[place] = data.draw(st.integers(0, 255).filter(lambda value: value not in (line[place], ord("\n"))))
    report = report_of([*LOG[:number], bytes(line), *LOG[number + 1 :]])
    assert report.broken_at in (number + 1, number + 2)
    assert report.reason


@given(st.integers(0, len(LOG) - 2), st.integers(1, len(LOG)))
def test_removed_lines_are_found(number, count):
    kept = LOG[number + count :]
    report = report_of([*LOG[:number], *kept])
    if kept:
        assert report.broken_at == number + 1
    else:  # at the end
        assert report_of([*LOG[:number], *kept], head=digest(LOG[-1])).broken_at == number + 1


@given(st.integers(0, len(LOG)), st.integers(0, len(LOG) - 1))
def test_an_inserted_copy_is_found(place, number):
    report = report_of([*LOG[:place], LOG[number], *LOG[place:]])
    assert report.broken_at in (place + 1, place + 2)


@given(st.permutations(LOG))
def test_moved_lines_are_found(lines):
    assert bool(report_of(lines).broken_at) is (lines != LOG)


@given(st.integers(1, len(LOG) - 1))
def test_a_line_that_was_made_anew_breaks_the_chain_after_it(number):
    """Someone who knows the format replaces a line, with the right `seq` and `previous`."""
    record = parse(LOG[number])
    forged = Chain(record["seq"] - 1, record["previous"]).encode(entry("tenants.put", tenant_id="forged"))
    report = report_of([*LOG[:number], forged, *LOG[number + 1 :]], head=digest(LOG[-1]))
    assert report.broken_at == number + 2


def test_a_chain_that_was_computed_anew_is_found_only_by_its_head():
    anew = log_of(*(entry("tenants.put", tenant_id="forged") for _ in range(6)))
    assert not report_of(anew).broken_at
    assert report_of(anew, head=digest(LOG[3])).broken_at == len(anew) + 1
    assert not report_of(LOG, head=digest(LOG[3])).broken_at


def test_a_new_file_continues_the_chain_of_the_former_one():
    second = log_of(entry("process.drain"), chain=Chain(7, digest(LOG[-1])))
    assert not report_of(LOG, second).broken_at
    alone = report_of(second)
    assert (alone.broken_at, alone.continues) == (0, digest(LOG[-1]))
    assert report_of(LOG[:-1], second).broken_at == len(LOG)
    assert report_of(second, LOG).broken_at == len(second) + 1


def torn_log(torn, torn_bytes):
    lines = [*LOG, torn]
    return [*lines, Chain(8, digest(torn)).encode(entry(RESUME, torn_bytes=torn_bytes))]


def test_a_line_that_a_crash_cut_off_is_reported_and_not_a_break():
    torn = b'{"seq":8,"time":"2026'
    report = report_of(torn_log(torn + b"\n", len(torn)))
    assert (report.broken_at, report.torn_lines, report.lines) == (0, [8], 8)


@pytest.mark.parametrize("torn_bytes", [0, 20, 22])
def test_a_cut_line_that_its_restart_does_not_describe_is_a_break(torn_bytes):
    torn = b'{"seq":8,"time":"2026'
    assert report_of(torn_log(torn + b"\n", torn_bytes)).broken_at == 9


def test_the_end_of_a_file_in_use_may_be_incomplete():
    report = report_of([*LOG[:-1], LOG[-1][:40]])
    assert (report.broken_at, report.is_incomplete, report.lines) == (0, True, len(LOG) - 1)
    assert report_of([*LOG, b"no record\n"]).broken_at == len(LOG) + 1


def test_the_first_line_has_number_one_and_no_predecessor():
    assert parse(LOG[0])["previous"] == GENESIS
    assert report_of([Chain(5).encode(entry(BEGIN))]).broken_at == 1
    assert report_of([]).lines == 0


def test_long_parameters_are_shortened():
    line = Chain().encode(entry("keys.create", display_name="x" * 60_000))
    assert len(line) < 1_000
    assert "60000 characters" in parse(line)["parameters"]["display_name"]


def test_every_admin_method_is_audited_or_changes_nothing():
    [admin] = DESCRIPTOR.services_by_name.values()
    methods = {each.name for each in admin.methods}
    assert methods == AUDITED_ACTIONS.keys() | UNRECORDED_METHODS
    assert not AUDITED_ACTIONS.keys() & UNRECORDED_METHODS
