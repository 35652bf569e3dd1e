"""The dispatcher's leases by plain calls: no lease is lost when peers disconnect."""

from dispatch_mesh import LEASE_TTL_S, START_UNIX_S
from penstock.chassis.clocks import StallFreeClock
from penstock.scheduler.effects import CatalogUpdate, Decline, Place, Revoke
from scheduler_calls import attach, credit_grants, free_capacity, offer, only, without_reports


def test_an_unstarted_lease_expires(scheduler):
    attach(scheduler, slots=1)
    offer(scheduler)
    assert without_reports(scheduler.tick(START_UNIX_S + LEASE_TTL_S - 0.1)) == []
    effects = scheduler.tick(START_UNIX_S + LEASE_TTL_S)
    assert only(Revoke, effects) == Revoke("w", "s-1")
    assert (len(scheduler.leases), scheduler.promised_blocks, scheduler.fleet["w"].unstarted_tokens) == (0, 0, 0)


def test_lease_expiration_excludes_stalls_of_the_scheduler(scheduler):
    scheduler.leases.clock = StallFreeClock(0.5)
    attach(scheduler, slots=2)
    offer(scheduler, "starts"), offer(scheduler, "never")
    assert without_reports(scheduler.tick(START_UNIX_S + LEASE_TTL_S)) == []
    scheduler.on_lease_started("w", "s-1")
    lapsed = {
        now: without_reports(scheduler.tick(now))
        for now in (START_UNIX_S + LEASE_TTL_S + tick / 4 for tick in range(1, int(4 * LEASE_TTL_S)))
    }
    assert [now for now, effects in lapsed.items() if effects] == [START_UNIX_S + 2 * LEASE_TTL_S - 0.5]
    assert list(scheduler.leases.leases) == ["s-1"]


def test_a_started_lease_ends_only_when_its_worker_releases_it(scheduler):
    attach(scheduler, slots=1)
    offer(scheduler, tokens=32)
    scheduler.on_lease_started("w", "s-1")
    assert without_reports(scheduler.tick(START_UNIX_S + 100)) == []
    assert (len(scheduler.leases), scheduler.leases.unstarted_count, scheduler.fleet["w"].unstarted_tokens) == (1, 0, 0)
    assert credit_grants(scheduler.on_leases_released("w", ["s-1"])) == [("q", 1, False)]
    assert (len(scheduler.leases), scheduler.promised_blocks) == (0, 0)


def test_a_worker_cannot_start_or_end_the_lease_of_another(scheduler):
    attach(scheduler, "w")
    offer(scheduler)
    attach(scheduler, "x")
    scheduler.on_lease_started("x", "s-1")
    scheduler.on_leases_released("x", ["s-1", "unknown"])
    assert (scheduler.leases.unstarted_count, scheduler.fleet["w"].promised_blocks) == (1, 2)


def test_a_withdrawn_ticket_frees_its_unstarted_lease(scheduler):
    attach(scheduler)
    offer(scheduler, "left")
    offer(scheduler, "runs")
    scheduler.on_lease_started("w", "s-2")
    assert only(Revoke, scheduler.on_offer_withdrawn("q", ["left", "runs", "unknown"])).lease_id == "s-1"
    assert list(scheduler.leases.leases) == ["s-2"]


def test_a_shard_cannot_withdraw_the_ticket_of_another(scheduler):
    attach(scheduler)
    scheduler.on_queue_connected("q2")
    offer(scheduler, queue="q2")
    assert scheduler.on_offer_withdrawn("q", ["t"]) == []
    assert scheduler.leases.unstarted_count == 1


def test_a_ticket_offered_again_ends_its_unstarted_lease(scheduler):
    attach(scheduler, slots=1)
    offer(scheduler)
    effects = offer(scheduler, now=START_UNIX_S + 1)
    assert only(Revoke, effects).lease_id == "s-1"
    assert only(Place, effects).lease.lease_id == "s-2"
    assert only(Revoke, scheduler.tick(START_UNIX_S + 1 + LEASE_TTL_S)).lease_id == "s-2"
    assert len(scheduler.leases) == 0


def test_an_offer_of_an_older_attempt_is_declined(scheduler):
    attach(scheduler)
    offer(scheduler, attempt=2)
    scheduler.on_queue_connected("slow")
    assert only(Decline, offer(scheduler, queue="slow", attempt=1)).queue == "slow"
    assert scheduler.leases.unstarted_for_ticket("t").attempt == 2


def test_a_lost_worker_ends_started_leases_and_keeps_unstarted_ones(scheduler):
    attach(scheduler)
    offer(scheduler, "runs")
    offer(scheduler, "waits")
    scheduler.on_lease_started("w", "s-1")
    assert only(CatalogUpdate, scheduler.on_worker_lost("w")).entries == ()
    assert list(scheduler.leases.leases) == ["s-2"]
    assert without_reports(scheduler.tick(START_UNIX_S + LEASE_TTL_S)) == []  # the worker is not attached
    assert len(scheduler.leases) == 0


def test_a_worker_that_attaches_again_keeps_its_promised_leases(scheduler):
    attach(scheduler, stream="w/1", slots=3)
    for name in ("runs", "waits", "started-later"):
        offer(scheduler, name, tokens=16)
    scheduler.on_lease_started("w/1", "s-1")
    scheduler.on_worker_lost("w/1")
    effects = attach(scheduler, stream="w/2", slots=4, running={"s-1": 1, "s-3": 1})
    worker = scheduler.fleet["w/2"]
    assert worker.promised == {"s-1": 1, "s-2": 1, "s-3": 1}
    assert worker.unstarted_tokens == 15
    assert credit_grants(effects) == [("q", 1, False)]
    scheduler.on_lease_started("w/2", "s-2")
    scheduler.on_leases_released("w/2", ["s-1", "s-2", "s-3"])
    assert (worker.promised_blocks, worker.unstarted_tokens, len(scheduler.leases)) == (0, 0, 0)


def test_a_worker_with_two_streams_counts_once(scheduler):
    attach(scheduler, stream="w/1", slots=2)
    attach(scheduler, stream="w/2", slots=2)
    assert [worker.key for worker in scheduler.fleet] == ["w/2"]
    assert scheduler.on_worker_lost("w/1") == []
    assert free_capacity(scheduler)[0] == 2


def test_leases_of_another_scheduler_use_capacity_and_free_it(scheduler):
    attach(scheduler, slots=2, kv_blocks=8, running={"of-another-scheduler": 7})
    assert free_capacity(scheduler) == (1, 16)
    assert len(scheduler.leases) == 0
    scheduler.on_leases_released("w", ["of-another-scheduler"])
    assert free_capacity(scheduler) == (2, 128)


def test_a_draining_scheduler_grants_no_credit_and_places_no_ticket(scheduler):
    attach(scheduler)
    scheduler.drain()
    effects = offer(scheduler)
    assert [type(effect) for effect in effects] == [Decline]
    assert effects[0].reason == "NO_CAPACITY"
    assert attach(scheduler, "w2")[1:] == []
