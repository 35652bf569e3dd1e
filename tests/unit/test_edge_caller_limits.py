"""Limits toward callers that are not identified, as plain calls: connections, waiting calls and unfinished messages."""

import pytest

from penstock.chassis.errors import Overloaded, Unauthenticated
from penstock.edge.api.http.connections import ConnectionLimits, ConnectionState, ConnectionTable, Phase
from penstock.edge.callers import connections as callers
from penstock.edge.callers.connections import UnidentifiedCalls
from penstock.edge.callers.identification import RejectionCache
from penstock.edge.callers.messages import UnfinishedMessages

PEER = "ipv4:10.0.0.1:5000"
LIMITS = ConnectionLimits(max_connections=3, max_connections_per_source=2, max_unidentified_bytes=100)


def test_a_source_that_closes_a_connection_may_open_another():
    table = ConnectionTable(LIMITS)
    table.open("a")
    table.open("a")
    with pytest.raises(Overloaded, match="close some"):
        table.open("a")
    table.close("a")
    table.open("a")
    assert repr(table) == "<ConnectionTable 2 of 1 sources>"


def test_sources_together_have_one_limit():
    table = ConnectionTable(LIMITS)
    for source in ("a", "a", "b"):
        table.open(source)
    with pytest.raises(Overloaded) as failure:
        table.open("c")
    assert failure.value.reason == "CONNECTIONS_FULL"


def test_a_limit_of_zero_connections_per_source_is_none():
    table = ConnectionTable(ConnectionLimits(max_connections_per_source=0))
    for _ in range(2_000):
        table.open("proxy")


def test_bytes_beyond_the_budget_are_not_held():
    table = ConnectionTable(LIMITS)
    table.hold(60)
    with pytest.raises(Overloaded):
        table.hold(41)
    table.release(60)
    table.hold(100)


@pytest.mark.parametrize(
    ("phase", "is_identified", "waited", "is_overdue"),
    [
        (Phase.HEAD, False, 9.9, False),
        (Phase.HEAD, True, 10.1, True),
        (Phase.UNREAD, True, 10.1, True),
        (Phase.IDLE, False, 74.0, False),
        (Phase.IDLE, False, 76.0, True),
        (Phase.IDLE, True, 76.0, False),
        (Phase.EXCHANGE, False, 10_000.0, False),
    ],
)
def test_the_phase_of_a_connection_decides_whether_it_is_overdue(phase, is_identified, waited, is_overdue):
    state = ConnectionState(is_identified=is_identified)
    state.enter(phase, 5.0)
    assert state.is_overdue(LIMITS, 5.0 + waited) == is_overdue


def unidentified(**given):
    return UnidentifiedCalls(**{"max_waiting": 2, "max_failures": 3, "window": 10.0, **given})


def fail(calls, peer=PEER, now=0.0, *, is_proxy=False):
    calls.begin(peer, is_proxy=is_proxy)
    return calls.end(peer, now, is_identified=False, is_proxy=is_proxy)


def test_calls_that_wait_for_auth_are_bounded_by_connection_except_for_proxies():
    calls = unidentified()
    for _ in range(2):
        calls.begin(PEER, is_proxy=False)
    with pytest.raises(Overloaded) as failure:
        calls.begin(PEER, is_proxy=False)
    assert failure.value.reason == "CALLERS_UNIDENTIFIED"
    calls.begin("ipv4:10.0.0.1:5001", is_proxy=False)
    calls.begin(PEER, is_proxy=True)
    calls.end(PEER, 0.0, is_identified=True, is_proxy=False)


def test_failures_count_by_address_within_a_window():
    calls = unidentified()
    assert [fail(calls, f"ipv4:10.0.0.1:{port}", now=port) for port in range(4)] == [False, False, False, True]
    assert not fail(calls, "ipv4:10.0.0.2:1", now=4.0)
    assert not fail(calls, now=10.1)


def test_one_of_many_failures_beyond_the_limit_closes_a_connection():
    calls = unidentified()
    assert sum(fail(calls) for _ in range(3 + 10 * callers.FAILURES_PER_CLOSE)) == 10


def test_a_connection_with_a_known_caller_or_of_a_proxy_is_never_closed(monkeypatch):
    monkeypatch.setattr(callers, "FAILURES_PER_CLOSE", 1)
    calls = unidentified()
    calls.mark_known(PEER)
    assert not any(fail(calls) for _ in range(10))
    assert fail(calls, "ipv4:10.0.0.1:5001")
    assert not fail(calls, "ipv4:10.0.0.1:5002", is_proxy=True)


def test_without_a_limit_of_failures_no_connection_is_closed():
    assert not any(fail(calls) for calls in [unidentified(max_failures=0)] for _ in range(1_000))


def test_tracked_addresses_and_connections_are_bounded(monkeypatch):
    monkeypatch.setattr(callers, "MAX_TRACKED", 2)
    calls = unidentified()
    for number in range(5):
        calls.mark_known(f"known:{number}")
        fail(calls, f"ipv4:10.0.0.{number}:1")
    assert repr(calls) == "<UnidentifiedCalls 0 waiting, of 2 addresses>"


def test_the_oldest_rejections_are_dropped_and_all_expire():
    cache = RejectionCache(max_entries=2, ttl=1.0)
    for name in (b"a", b"b", b"c"):
        cache.record(name, Unauthenticated(name.decode()), now=0.0)
    assert (len(cache), cache.find(b"a", 0.5)) == (2, None)
    assert cache.find(b"c", 0.5)
    assert cache.find(b"c", 1.0) is None


def refused(messages, now):
    return [(read.caller, read.began_at, error.reason) for read, error in messages.excess(now)]


def test_fast_messages_are_not_bounded_in_number():
    messages = UnfinishedMessages(max_slow=2, timeout=60.0)
    for _ in range(1_000):
        messages.begin("acme", 0.0)
    assert refused(messages, 0.9) == []


def test_the_newest_slow_messages_beyond_the_bound_are_ended_and_no_caller_takes_all():
    messages = UnfinishedMessages(max_slow=4, timeout=60.0)
    for at, caller in enumerate(["a", "a", "a", "b", "c", "d"]):
        messages.begin(caller, at / 10)
    assert refused(messages, 2.0) == [("a", 0.2, "EDGE_FULL"), ("d", 0.5, "EDGE_FULL")]


def test_a_message_that_takes_too_long_is_ended_and_one_that_has_ended_is_not():
    messages = UnfinishedMessages(max_slow=4, timeout=60.0)
    messages.begin("a", 0.0)
    messages.end(messages.begin("b", 0.0))
    assert refused(messages, 61.0) == [("a", 0.0, "BODY_STALLED")]
    assert messages.refused == {"BODY_STALLED": 1}
