"""Preemption of batch leases: which ones are revoked for a ticket of another class, and how often."""

import pytest

from dispatch_mesh import LEASE_TTL_S, MODEL
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.effects import Decline, Expect, GrantCredit, Place, Revoke
from penstock.scheduler.leases import MAX_PREEMPTIONS, LeaseBook
from penstock.v1.inference_pb2 import PRIORITY_BATCH, PRIORITY_INTERACTIVE, PRIORITY_STANDARD
from scheduler_calls import NOW, attach, head, offer, only, served, service_reports

SLOTS = 2


@pytest.fixture
def scheduler():
    found = Dispatcher(leases=LeaseBook(ttl=LEASE_TTL_S, prefix="s"), look_ahead=1)
    found.on_queue_connected("q")
    return found


@pytest.fixture
def full(scheduler):
    """A scheduler with one worker, whose slots batch leases have."""
    attach(scheduler, slots=SLOTS)
    for number in range(SLOTS):
        run(scheduler, f"b{number}")
    return scheduler


def run(scheduler, name, priority=PRIORITY_BATCH, **ticket):
    """Place a ticket and start its lease. Return the effects of the offer and the lease."""
    effects = offer(scheduler, name, priority=priority, **ticket)
    lease = only(Place, effects).lease
    scheduler.on_lease_started("w", lease.lease_id)
    return effects, lease.lease_id


def revoked(effects):
    return [each.lease_id for each in effects if isinstance(each, Revoke)]


@pytest.mark.parametrize("priority", [PRIORITY_INTERACTIVE, PRIORITY_STANDARD])
def test_the_newest_batch_lease_is_revoked_before_the_lease_that_takes_its_slot_is_announced(full, priority):
    effects, _ = run(full, "i", priority)
    kinds = [type(each) for each in effects]
    assert revoked(effects) == ["s-2"]
    assert kinds.index(Revoke) < kinds.index(Expect)
    assert list(full.fleet["w"].promised) == ["s-1", "s-3"]
    assert full.preempted_lease_count == 1


def test_a_free_slot_is_used_first(scheduler):
    attach(scheduler, slots=SLOTS)
    run(scheduler, "b0")
    assert revoked(run(scheduler, "i0", PRIORITY_INTERACTIVE)[0]) == []
    assert revoked(run(scheduler, "i1", PRIORITY_INTERACTIVE)[0]) == ["s-1"]
    assert revoked(run(scheduler, "i2", PRIORITY_INTERACTIVE)[0]) == [], "no batch lease is left"
    assert only(Decline, offer(scheduler, "i3", priority=PRIORITY_INTERACTIVE)).reason == "NO_CAPACITY"


def test_a_batch_ticket_preempts_nothing(full):
    assert revoked(run(full, "b2")[0]) == []
    assert only(Decline, offer(full, "b3", priority=PRIORITY_BATCH)).reason == "NO_CAPACITY"


def test_batch_leases_in_the_look_ahead_do_not_delay_others(full):
    run(full, "b2")  # it waits at the worker for a slot
    granted = only(GrantCredit, full.on_head("q", head(priority=PRIORITY_INTERACTIVE), NOW))
    assert granted.tickets == 1
    assert revoked(run(full, "i", PRIORITY_INTERACTIVE)[0]) == ["s-3", "s-2"]


def test_a_batch_shard_gets_no_credit_for_the_leases_of_others(full):
    run(full, "b2")
    full.on_credit_returned("q", MODEL, full.credit_books[MODEL].shards["q"].held_tickets)
    assert not [each for each in full.on_head("q", head(priority=PRIORITY_BATCH), NOW) if each.tickets]


def test_a_lease_that_has_not_started_is_not_preempted(scheduler):
    attach(scheduler, slots=1)
    offer(scheduler, "b", priority=PRIORITY_BATCH)
    assert revoked(run(scheduler, "i", PRIORITY_INTERACTIVE)[0]) == []


def test_a_ticket_is_preempted_a_bounded_number_of_times(scheduler):
    attach(scheduler, slots=1)
    for attempt in range(1, MAX_PREEMPTIONS + 2):
        _, batch_lease = run(scheduler, "b", attempt=attempt)
        effects, other = run(scheduler, "i", PRIORITY_INTERACTIVE)
        assert revoked(effects) == ([batch_lease] if attempt <= MAX_PREEMPTIONS else [])
        scheduler.on_leases_released("w", [batch_lease, other])
    assert scheduler.preempted_lease_count == MAX_PREEMPTIONS


def test_the_service_of_a_preempted_lease_is_reported_when_its_run_has_ended(full):
    run(full, "i", PRIORITY_INTERACTIVE)
    assert "s-2" in full.leases.leases
    full.on_leases_released("w", ["s-2"], [served("s-2", 30, 4)])
    assert "s-2" not in full.leases.leases
    reports = service_reports(full.tick(NOW + 10))
    assert ("q", "b1", 1, 30, 4, True) in reports
    assert (full.fleet["w"].preempted, full.fleet["w"].preemptible) == (set(), {"s-1": None})


def test_a_preempted_lease_ends_with_its_worker(full):
    run(full, "i", PRIORITY_INTERACTIVE)
    full.on_worker_lost("w")
    assert not full.leases.leases


def test_a_lease_whose_start_is_learned_when_its_worker_attaches_again_is_preemptible(scheduler):
    attach(scheduler, slots=1)
    offer(scheduler, "b", priority=PRIORITY_BATCH)
    attach(scheduler, stream="again", slots=1, running={"s-1": 2})
    assert revoked(offer(scheduler, "i", priority=PRIORITY_INTERACTIVE)) == ["s-1"]


def test_a_lease_of_another_scheduler_is_not_preempted(scheduler):
    attach(scheduler, slots=1, running={"other-1": 2})
    assert revoked(offer(scheduler, "i", priority=PRIORITY_INTERACTIVE)) == []


def test_a_ticket_is_placed_where_it_can_preempt_and_not_at_a_full_worker_without_batch_leases(scheduler):
    attach(scheduler, "a", slots=SLOTS)
    for name in ("i0", "i1"):
        scheduler.on_lease_started(
            "a", only(Place, offer(scheduler, name, priority=PRIORITY_INTERACTIVE)).lease.lease_id
        )
    attach(scheduler, "b", slots=SLOTS)
    for name in ("b0", "b1"):
        scheduler.on_lease_started("b", only(Place, offer(scheduler, name, priority=PRIORITY_BATCH)).lease.lease_id)
    effects = offer(scheduler, "i2", priority=PRIORITY_INTERACTIVE)
    assert (only(Place, effects).lease.worker_id, revoked(effects)) == ("b", ["s-4"])


def test_batch_tickets_are_spread_by_all_leases(scheduler):
    for worker in "ab":
        attach(scheduler, worker, slots=4, kv_blocks=100)
    for number in range(4):
        lease = only(Place, offer(scheduler, f"b{number}", priority=PRIORITY_BATCH)).lease
        scheduler.on_lease_started(lease.worker_id, lease.lease_id)
    assert [len(scheduler.fleet[worker].promised) for worker in "ab"] == [2, 2]
