"""The dispatcher by plain calls: offers are placed or declined."""

from dispatch_mesh import LEASE_TTL_S, MODEL, START_UNIX_S, ticket_of
from penstock.mesh.v1.queue_pb2 import Head
from penstock.mesh.v1.scheduler_pb2 import LoadReport, PrefixCacheUpdate
from penstock.mesh.v1.ticket_pb2 import PoisonReport
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.effects import CatalogUpdate, Decline, Expect, GrantCredit, Place
from penstock.scheduler.leases import LeaseBook
from scheduler_calls import NOW, attach, credit_grants, offer, only


def report(fingerprint):
    found = PoisonReport(fingerprint=fingerprint)
    found.ttl.seconds = 30
    return found


def test_a_placed_ticket_is_announced_to_its_worker_and_leased_to_its_edge(scheduler):
    attach(scheduler)
    effects = offer(scheduler, tokens=40, attempt=3)
    expect, place = only(Expect, effects), only(Place, effects)
    assert effects.index(expect) < effects.index(place)
    assert (expect.worker, place.queue, expect.lease) == ("w", "q", place.lease)
    lease = place.lease
    assert (lease.lease_id, lease.ticket_id, lease.worker_id, lease.worker_address) == ("s-1", "t", "w", "w:1")
    assert (lease.attempt, lease.ttl.seconds) == (3, LEASE_TTL_S)
    assert repr(scheduler) == "<Dispatcher 1 workers, 1 leases, 3 promised>"


def test_an_attaching_worker_brings_credit_for_its_capacity(scheduler):
    effects = attach(scheduler, slots=2, kv_blocks=8)
    assert [entry.model for entry in only(CatalogUpdate, effects).entries] == [MODEL]
    credit = only(GrantCredit, effects)
    assert (credit.queue, credit.tickets, credit.max_ticket_tokens, credit.return_unused) == ("q", 2, 128, False)


def test_kv_blocks_are_promised_for_the_whole_answer(scheduler):
    attach(scheduler, slots=8, kv_blocks=8)
    offer(scheduler, "a", tokens=65)
    assert scheduler.fleet["w"].promised_blocks == 5
    assert only(Decline, offer(scheduler, "b", tokens=49)).reason == "NO_CAPACITY"
    assert only(Place, offer(scheduler, "c", tokens=48)).lease.ticket_id == "c"
    assert scheduler.fleet["w"].promised_blocks == 8


def test_a_full_scheduler_sends_a_size_limit_that_no_ticket_meets(scheduler):
    attach(scheduler, slots=1)
    scheduler.on_queue_connected("q2")
    offer(scheduler)
    reclaim = only(GrantCredit, scheduler.on_head("q", Head(model=MODEL, waiting=1, priority=2), NOW))
    assert (reclaim.queue, reclaim.tickets, reclaim.return_unused, reclaim.max_ticket_tokens) == ("q2", 0, True, 1)


def test_a_decline_without_capacity_voids_credit_and_grants_the_present_one(scheduler):
    attach(scheduler, "killer", slots=3)
    attach(scheduler, "busy", slots=0)
    effects = offer(scheduler, avoid=["killer"])
    assert only(Decline, effects).reason == "NO_CAPACITY"
    assert credit_grants(effects) == [("q", 3, False)]  # full credit, because the queue has dropped its former credit


def test_a_ticket_that_no_worker_can_ever_run_is_refused(scheduler):
    attach(scheduler, kv_blocks=8)
    declined = only(Decline, offer(scheduler, tokens=129))
    assert (declined.ticket_id, declined.reason) == ("t", "NO_WORKER")


def test_a_ticket_longer_than_the_context_is_refused(scheduler):
    attach(scheduler, kv_blocks=1_000, context=100)
    assert only(Decline, offer(scheduler, tokens=101)).reason == "NO_WORKER"


def test_a_ticket_never_goes_to_a_worker_it_avoids(scheduler):
    attach(scheduler, "killer", slots=8)
    assert only(Decline, offer(scheduler, avoid=["killer"])).reason == "NO_WORKER"
    attach(scheduler, "other", slots=1)
    assert only(Place, offer(scheduler, avoid=["killer"])).lease.worker_id == "other"
    assert only(Decline, offer(scheduler, "u", avoid=["killer"])).reason == "NO_CAPACITY"


def test_a_quarantined_worker_gets_no_tickets(scheduler):
    attach(scheduler), attach(scheduler, "w2")
    with_report = only(CatalogUpdate, scheduler.on_worker_quarantined("w", "w:1", [report(5)], START_UNIX_S))
    without_report = only(CatalogUpdate, scheduler.tick(START_UNIX_S))
    assert (
        [each.fingerprint for each in with_report.poison_reports]
        == [each.fingerprint for each in without_report.poison_reports]
        == [5]
    )
    assert [each.worker_id for each in scheduler.fleet] == ["w2"]


def test_tickets_of_a_model_without_workers_are_declined_but_not_refused(scheduler):
    attach(scheduler)
    scheduler.on_worker_lost("w")
    assert only(Decline, offer(scheduler)).reason == "NO_CAPACITY"


def test_credit_is_for_the_model_of_the_workers(scheduler):
    attach(scheduler, "w", model="m")
    effects = attach(scheduler, "x", model="n")
    assert [(effect.model, effect.tickets) for effect in effects if isinstance(effect, GrantCredit)] == [("n", 2)]
    assert only(Decline, offer(scheduler, model="o")).reason == "NO_CAPACITY"


def test_the_worker_with_the_least_prefill_backlog_gets_the_ticket(scheduler):
    attach(scheduler, "a", slots=8, kv_blocks=64)
    attach(scheduler, "b", slots=8, kv_blocks=64)
    scheduler.on_load_report("a", LoadReport(prefill_backlog_tokens=500))
    workers = [only(Place, offer(scheduler, f"t{number}", tokens=200)).lease.worker_id for number in range(3)]
    assert workers == ["b", "b", "a"]  # a prompt of 199 tokens counts from its lease on


def test_a_cached_prefix_attracts_its_ticket(scheduler):
    attach(scheduler, "a", kv_blocks=64)
    attach(scheduler, "b", kv_blocks=64)
    scheduler.on_prefix_cache_update("b", PrefixCacheUpdate(added=[1, 2, 3], is_snapshot=True))
    scheduler.on_load_report("b", LoadReport(prefill_backlog_tokens=40))
    assert placed_at(scheduler, "first", prefix=[1, 2, 3, 4]) == "b"
    assert scheduler.fleet["b"].unstarted_tokens == 79 - 3 * 16  # only uncached tokens count
    scheduler.on_prefix_cache_update("b", PrefixCacheUpdate(removed=[2, 3]))
    assert placed_at(scheduler, "second", prefix=[1, 2, 3, 4]) == "a"


def test_a_cached_prefix_does_not_override_capacity_or_avoidance(scheduler):
    attach(scheduler, "a", kv_blocks=64)
    attach(scheduler, "b", kv_blocks=64, slots=1)
    scheduler.on_prefix_cache_update("b", PrefixCacheUpdate(added=[1, 2, 3], is_snapshot=True))
    assert placed_at(scheduler, "avoids", prefix=[1, 2, 3], avoid=["b"]) == "a"
    assert placed_at(scheduler, "fills", prefix=[1, 2, 3]) == "b"
    assert placed_at(scheduler, "late", prefix=[1, 2, 3]) == "a"


def placed_at(scheduler, name, *, prefix, **ticket):
    offered = ticket_of(name, tokens=80, **ticket)
    offered.prefix_hashes.extend(prefix)
    return only(Place, scheduler.on_offer("q", offered, START_UNIX_S)).lease.worker_id


def test_look_ahead_adds_one_lease_to_the_slots():
    scheduler = Dispatcher(leases=LeaseBook(ttl=LEASE_TTL_S, prefix="s"), look_ahead=1)
    scheduler.on_queue_connected("q")
    assert credit_grants(attach(scheduler, slots=2)) == [("q", 3, False)]


def test_credit_has_the_tokens_that_fit_together(scheduler):
    attach(scheduler, "a", slots=4, kv_blocks=8)
    effects = attach(scheduler, "b", slots=4, kv_blocks=8)
    assert sum(each.total_tokens for each in effects if isinstance(each, GrantCredit)) == 128
    assert scheduler.credit_books[MODEL].shards["q"].held_tokens == 256
    offer(scheduler, tokens=64)
    assert scheduler.credit_books[MODEL].shards["q"].held_tokens == 192
