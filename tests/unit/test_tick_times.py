"""When the cores of the queue and of the scheduler ask for their next tick, each of which wakes their process."""

from dataclasses import replace

from dispatch_mesh import LEASE_TTL_S, MODEL, START_UNIX_S
from penstock.chassis.clocks import StallFreeClock
from penstock.mesh.v1.queue_pb2 import Head
from penstock.mesh.v1.ticket_pb2 import PoisonReport
from penstock.queue.accounting import REPORT_TIMEOUT_S
from penstock.queue.poison import LOST_REPORT_TTL_S
from penstock.queue.tickets.book import MAX_TICK_INTERVAL_S, MIN_TICK_INTERVAL_S, TIMEOUT_TICK_INTERVAL_S
from penstock.queue.tickets.expirations import DECLINE_PAUSE_S
from penstock.scheduler.dispatcher import REST_TICK_INTERVAL_S, TICK_INTERVAL_S
from penstock.scheduler.effects import Revoke
from queue_tickets import MODEL_TIMEOUT_S, WARM_UP_S, ShardDriver, sheds
from scheduler_calls import attach, offer

# The queue.


def settled_shard() -> ShardDriver:
    """A shard with one scheduler, after its warm-up and the delay of poison reports."""
    shard = ShardDriver()
    shard.connect()
    for _ in range(int(2 * WARM_UP_S)):
        shard.pass_time(0.5)
    return shard


def next_tick_in(shard: ShardDriver) -> float:
    return shard.book.next_tick_at(shard.now) - shard.now


def test_a_shard_at_rest_and_one_that_only_serves_tick_rarely():
    shard = settled_shard()
    assert next_tick_in(shard) == MAX_TICK_INTERVAL_S
    shard.credit(1)
    shard.enqueue("a")
    shard.place("a")
    assert next_tick_in(shard) == MAX_TICK_INTERVAL_S


def test_a_lease_deadline_makes_the_next_tick_earlier():
    shard = settled_shard()
    shard.enqueue("a", deadline=shard.now + 0.3)
    assert round(next_tick_in(shard), 9) == 0.3
    assert list(sheds(shard.pass_time(0.3))) == ["a"]
    assert next_tick_in(shard) == MAX_TICK_INTERVAL_S


def test_the_deadline_of_a_ticket_that_left_is_no_due_time():
    shard = settled_shard()
    shard.enqueue("a", deadline=shard.now + 0.3)
    shard.withdraw("a")
    assert next_tick_in(shard) == MAX_TICK_INTERVAL_S


def test_deadlines_soon_after_a_tick_wait_for_each_other():
    shard = settled_shard()
    shard.enqueue("a", deadline=shard.now + 0.01)
    assert round(next_tick_in(shard), 9) == MIN_TICK_INTERVAL_S


def test_the_end_of_a_pause_makes_the_next_tick_earlier():
    shard = settled_shard()
    shard.enqueue("a")
    for _ in range(2):
        assert shard.credit(1) == ["a"]
        shard.decline("a")
    assert round(next_tick_in(shard), 9) == DECLINE_PAUSE_S


def test_a_changed_number_of_workers_is_sent_with_a_tick_soon():
    shard = settled_shard()
    [entry] = shard.book.schedulers["s"].catalog.values()
    more = type(entry)()
    more.CopyFrom(entry)
    more.workers_hint += 1
    shard.book.on_catalog("s", [more], shard.now)
    assert round(next_tick_in(shard), 9) == MIN_TICK_INTERVAL_S


def test_ticks_are_often_enough_for_the_clock_of_timeouts_while_one_runs():
    shard = settled_shard()
    shard.book.on_catalog("s", [], shard.now, [PoisonReport(fingerprint=1)])
    assert next_tick_in(shard) == TIMEOUT_TICK_INTERVAL_S  # a lost model is awaited
    for _ in range(int(2 * MODEL_TIMEOUT_S)):
        shard.pass_time(1.0)
    assert next_tick_in(shard) == MAX_TICK_INTERVAL_S
    shard.disconnect("s")
    assert next_tick_in(shard) == TIMEOUT_TICK_INTERVAL_S  # the poison reports of a lost scheduler hold for a while
    shard.pass_time(LOST_REPORT_TTL_S - 1)
    assert next_tick_in(shard) == TIMEOUT_TICK_INTERVAL_S
    shard.pass_time(1.0)
    assert next_tick_in(shard) == MAX_TICK_INTERVAL_S


def test_many_running_tickets_without_reports_expire_in_ticks_that_follow_soon(monkeypatch):
    monkeypatch.setattr("penstock.queue.accounting.MAX_EXPIRED_PER_CALL", 1)
    shard = settled_shard()
    shard.credit(2)
    for ticket_id in ("a", "b"):
        shard.enqueue(ticket_id)
        shard.place(ticket_id)
    shard.pass_time(REPORT_TIMEOUT_S)
    assert len(shard.book.accounting) == 1
    assert round(next_tick_in(shard), 9) == MIN_TICK_INTERVAL_S


# The scheduler.


def tick_interval(scheduler, now=START_UNIX_S):
    scheduler.tick(now)
    return round(scheduler.next_tick_at - now, 9)


def test_a_scheduler_at_rest_and_one_with_free_slots_tick_rarely(scheduler):
    attach(scheduler, slots=4)
    assert tick_interval(scheduler) == REST_TICK_INTERVAL_S
    offer(scheduler, tokens=32)
    assert scheduler.next_tick_at == START_UNIX_S + REST_TICK_INTERVAL_S
    scheduler.on_lease_started("w", "s-1")
    assert tick_interval(scheduler) == REST_TICK_INTERVAL_S


def test_a_scheduler_with_few_free_slots_ticks_often_at_once(scheduler):
    attach(scheduler, slots=4)
    scheduler.tick(START_UNIX_S)
    for number in (1, 2):
        offer(scheduler, f"t-{number}", tokens=32)
        scheduler.on_lease_started("w", f"s-{number}")
    assert scheduler.next_tick_at == START_UNIX_S + TICK_INTERVAL_S
    assert tick_interval(scheduler) == TICK_INTERVAL_S
    scheduler.on_leases_released("w", ["s-1", "s-2"])
    assert tick_interval(scheduler) == REST_TICK_INTERVAL_S


def test_a_waiting_ticket_makes_ticks_frequent(scheduler):
    attach(scheduler, slots=4)
    scheduler.tick(START_UNIX_S)
    scheduler.on_head("q", Head(model=MODEL, waiting=1, tokens=9), START_UNIX_S)
    assert scheduler.next_tick_at == START_UNIX_S + TICK_INTERVAL_S
    assert tick_interval(scheduler) == TICK_INTERVAL_S
    scheduler.on_head("q", Head(model=MODEL), START_UNIX_S)
    assert tick_interval(scheduler) == REST_TICK_INTERVAL_S


def test_changes_of_shards_and_workers_are_reported_soon(scheduler):
    attach(scheduler, slots=4)
    changes = [
        lambda: attach(scheduler, "x", slots=4),
        lambda: scheduler.on_worker_lost("x"),
        lambda: scheduler.on_queue_connected("q2"),
        lambda: scheduler.on_queue_disconnected("q2"),
    ]
    for number, change in enumerate(changes):
        now = START_UNIX_S + number
        assert tick_interval(scheduler, now) == REST_TICK_INTERVAL_S
        change()
        assert scheduler.next_tick_at == now + TICK_INTERVAL_S


def test_an_unstarted_lease_expires_soon_after_its_ttl_although_ticks_are_rare_before(scheduler):
    scheduler.leases = replace(scheduler.leases, clock=StallFreeClock(0.5))
    scheduler.__post_init__()
    attach(scheduler, slots=8)
    scheduler.tick(START_UNIX_S)
    offer(scheduler, tokens=32)
    effects, now = [], START_UNIX_S
    while not any(isinstance(each, Revoke) for each in effects):
        now = scheduler.next_tick_at
        effects = scheduler.tick(now)
    assert START_UNIX_S + LEASE_TTL_S <= now <= START_UNIX_S + LEASE_TTL_S + REST_TICK_INTERVAL_S
