"""Work on very many tickets is done in slices, and a ticket whose slice has not come yet is not offered."""

import pytest

from penstock.mesh.v1.ticket_pb2 import PoisonReport
from penstock.queue import effects as out
from penstock.queue.accounting import MAX_EXPIRED_PER_CALL, REPORT_TIMEOUT_S
from penstock.queue.admission.admission import TtftTargets
from penstock.queue.schedulers import Credit
from penstock.queue.tenant_probation import FREE_CONFIRMED
from penstock.queue.tickets.poison_scans import MAX_DROPPED_PER_SLICE, MAX_SCANNED_PER_SLICE
from penstock.queue.tickets.transitions import MAX_REMOVED_PER_SLICE
from queue_tickets import INTERACTIVE, STANDARD, ShardDriver, entry, offered, sheds, withdrawn_offers

LOST = 3 * MAX_REMOVED_PER_SLICE + 7  # tickets of the lost edge
POISON = 66  # fingerprint


@pytest.fixture
def shard():
    found = ShardDriver(max_depth=100_000, max_tokens=10**9)
    found.connect()
    return found


def slices(shard):
    """Run slices until no work is due, and yield the effects of each."""
    for _ in range(1_000):
        if not shard.book.has_due_work(shard.now):
            return
        yield shard.record(shard.book.run_slice(shard.now))
    pytest.fail("work is due without end")


def removed_per_slice(shard):
    before, removed = len(shard.book.tickets), []
    for _ in slices(shard):
        removed.append(before - len(shard.book.tickets))
        before = len(shard.book.tickets)
    return removed


def test_the_tickets_of_a_lost_edge_are_removed_in_slices(shard):
    shard.enqueue("stays", edge="f")
    for number in range(LOST):
        shard.enqueue(f"t{number}")
    shard.book.on_edge_disconnected("e")
    assert len(shard.book.tickets) == 1 + LOST - MAX_REMOVED_PER_SLICE
    assert removed_per_slice(shard) == [MAX_REMOVED_PER_SLICE, MAX_REMOVED_PER_SLICE, 7]
    assert list(shard.book.tickets) == ["stays"]
    assert shard.book.model_queues.waiting == (1, 100)


def test_no_ticket_of_a_lost_edge_is_offered_before_its_slice(shard):
    for number in range(LOST):
        shard.enqueue(f"t{number}")
    shard.enqueue("stays", edge="f")
    shard.book.on_edge_disconnected("e")
    assert shard.credit(5) == [], "a dispatch ends after some removals"
    assert len(shard.book.tickets) == 1 + LOST - MAX_REMOVED_PER_SLICE - MAX_DROPPED_PER_SLICE
    assert [each for effects in slices(shard) for each in offered(effects)] == ["stays"]
    assert shard.book.schedulers.credit_for("m") == 4


def test_offers_and_recent_leases_of_a_lost_edge_are_withdrawn(shard):
    for name in ("leased", "offered", "waits"):
        shard.enqueue(name)
    assert shard.credit(2) == ["leased", "offered"]
    shard.place("leased")
    assert withdrawn_offers(shard.book.on_edge_disconnected("e")) == [("s", ("offered", "leased"))]
    assert list(slices(shard)) == []
    shard.book.on_edge_connected("e")
    shard.enqueue("new")
    assert shard.credit(1) == ["new"]


def test_a_recent_lease_that_has_expired_is_not_withdrawn(shard):
    shard.enqueue("a")
    shard.credit(1)
    shard.place("a")
    shard.pass_time(11.0)
    assert shard.book.on_edge_disconnected("e") == []


def test_poisonous_tickets_are_dropped_in_slices_and_not_offered_before(shard):
    shard.pass_time(2.0)  # the reports of all workers are known
    for number in range(MAX_SCANNED_PER_SLICE + 10):
        shard.enqueue(f"t{number}", fingerprint=number)
    shard.enqueue("poison", fingerprint=POISON, edge="f")
    for number in range(MAX_DROPPED_PER_SLICE + 1):
        shard.enqueue(f"p{number}", fingerprint=POISON)
    report = PoisonReport(fingerprint=POISON, is_confirmed=True)
    first = shard.record(shard.book.on_catalog("s", [entry()], shard.now, [report]))
    assert sheds(first) == {f"t{POISON}": "ENGINE_CRASHED"}
    assert shard.book.has_due_work(shard.now)
    assert POISON not in [each.fingerprint for each in shard.book.tickets.values() if each.offered_to]
    dropped = [len(sheds(effects)) for effects in slices(shard)]
    assert (max(dropped), sum(dropped)) == (MAX_DROPPED_PER_SLICE, MAX_DROPPED_PER_SLICE + 2)


def test_tickets_of_a_suspended_tenant_are_dropped_in_slices_and_not_offered_before(shard):
    shard.pass_time(2.0)  # the reports of all workers are known
    for number in range(MAX_SCANNED_PER_SLICE):
        shard.enqueue(f"t{number}")
    for number in range(MAX_DROPPED_PER_SLICE + 1):
        shard.enqueue(f"bad{number}", tenant_id="bad", priority=INTERACTIVE, fingerprint=number + 1)
    for is_confirmed in (False, True):
        reports = [PoisonReport(fingerprint=each + 1, is_confirmed=is_confirmed) for each in range(FREE_CONFIRMED + 1)]
        shard.book.on_catalog("s", [entry()], shard.now, reports)
        if not is_confirmed:
            assert sum(1 for _ in slices(shard)) == 1
    assert shard.credit(2) == ["t0", "t1"], "tickets of another tenant are offered meanwhile"
    dropped = [sheds(effects) for effects in slices(shard)]
    assert max(map(len, dropped)) <= MAX_DROPPED_PER_SLICE
    reasons = [reason for each in dropped for reason in each.values()]
    assert reasons.count("ENGINE_CRASHED") == FREE_CONFIRMED + 1
    assert reasons.count("TENANT_ON_PROBATION") == MAX_DROPPED_PER_SLICE - FREE_CONFIRMED
    assert not any(each.tenant_id == "bad" for each in shard.book.tickets.values())
    assert not shard.book.has_due_work(shard.now)


def test_overdue_tickets_are_dropped_in_slices_and_not_offered_before(shard):
    for number in range(2 * MAX_DROPPED_PER_SLICE + 5):
        shard.enqueue(f"t{number}", deadline=shard.now + 1.0)
    shard.enqueue("in time")
    shard.now += 1.0
    effects = shard.record(shard.book.on_credit("s", "m", Credit(5), shard.now, return_unused=False))
    assert offered(effects) == []
    assert len(sheds(effects)) == MAX_DROPPED_PER_SLICE
    rest = list(slices(shard))
    assert [each for effects in rest for each in offered(effects)] == ["in time"]
    assert max(len(sheds(effects)) for effects in rest) <= 2 * MAX_DROPPED_PER_SLICE
    assert len(shard.book.tickets) == 1


def test_running_tickets_of_a_lost_scheduler_expire_in_portions(shard):
    for number in range(MAX_EXPIRED_PER_CALL + 1):
        shard.enqueue(f"t{number}")
    for name in shard.credit(MAX_EXPIRED_PER_CALL + 1):
        shard.place(name)
    shard.pass_time(REPORT_TIMEOUT_S)
    assert len(shard.book.accounting) == 1
    shard.pass_time(0.05)
    assert len(shard.book.accounting) == 0


# Tickets that come back after the restart of a shard.


@pytest.fixture
def restarted():
    """A shard with a TTFT target that can hold two tickets."""
    found = ShardDriver(max_depth=2, ttft_targets=TtftTargets({STANDARD: 0.001}))
    found.connect()
    return found


def test_readmitted_tickets_are_neither_predicted_nor_limited(restarted):
    for number in range(5):
        [queued] = restarted.enqueue(f"t{number}", is_readmitted=True)
        assert isinstance(queued, out.Queued)
        assert (queued.tickets_ahead, queued.predicted_wait, list(queued.rejection_windows())) == (number, None, [])
    assert {each.predicted_wait for each in restarted.book.tickets.values()} == {-1.0}
    restarted.pass_time(60.0)
    assert restarted.credit(5) == [f"t{number}" for number in range(5)], "they wait as long as their deadlines allow"


def test_a_readmitted_ticket_ends_at_its_deadline(restarted):
    restarted.enqueue("a", is_readmitted=True, deadline=restarted.now + 5.0)
    assert sheds(restarted.pass_time(4.9)) == {}
    assert sheds(restarted.pass_time(0.1)) == {"a": "DEADLINE"}
    assert sheds(restarted.enqueue("b", is_readmitted=True, deadline=restarted.now - 1.0)) == {"b": "DEADLINE"}


def test_a_ticket_of_a_higher_class_evicts_no_more_than_it_takes(restarted):
    for number in range(6):
        restarted.enqueue(f"t{number}", is_readmitted=True)
    effects = restarted.enqueue("urgent", priority=INTERACTIVE, tokens=150)
    assert sheds(effects) == {"t5": "EVICTED", "t4": "EVICTED"}
    assert "urgent" in restarted.book.tickets


def test_a_new_ticket_is_limited_behind_readmitted_ones(restarted):
    for number in range(3):
        restarted.enqueue(f"t{number}", is_readmitted=True)
    assert sheds(restarted.enqueue("new")) == {"new": "QUEUE_FULL"}
