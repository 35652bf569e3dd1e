"""Guests, which are requests of other regions: the queue admits them to free capacity, after its own requests."""

import pytest

from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.queue import effects as out
from penstock.queue.admission.admission import GUEST_TARGET_S, TtftTargets
from penstock.queue.prediction.pool_stats import PoolStats
from penstock.queue.ticket import from_frame
from queue_tickets import BATCH, INTERACTIVE, STANDARD, ShardDriver, only, sheds

TOKENS_PER_S = 1_000.0  # ten tickets
TTFT_TARGET_S = 2.0
HEADROOM = 0.9
AWAY_S = 0.2
GUESTS_IN_TIME = 7  # of 0.1 s, within 0.9 of 0.5 of 2 s less 0.2 s
OWN_IN_TIME = 18  # of 0.1 s, within 0.9 of 2 s


def shard_at_full_speed(**fields):
    targets = TtftTargets({STANDARD: TTFT_TARGET_S, INTERACTIVE: TTFT_TARGET_S}, headroom=HEADROOM)
    shard = ShardDriver(ttft_targets=targets, **fields)
    shard.connect()
    forecast = shard.book.model_queues["m"].forecast
    forecast.service_rate.saturated = TOKENS_PER_S
    shard.book.on_pool_stats("s", "m", PoolStats(shard.now, tokens_per_second=TOKENS_PER_S))
    return shard


def enqueue_many(shard, count, name="t", **fields):
    return [effect for number in range(count) for effect in shard.enqueue(f"{name}{number}", **fields)]


def test_a_guest_is_admitted_within_a_share_of_the_target_less_its_time_elsewhere():
    shard = shard_at_full_speed()
    rejected = sheds(enqueue_many(shard, 20, away=AWAY_S))
    assert rejected == {f"t{number}": "OVERLOADED" for number in range(GUESTS_IN_TIME, 20)}


def test_guests_leave_room_for_own_requests():
    shard = shard_at_full_speed()
    enqueue_many(shard, 20, "guest", away=AWAY_S)
    rejected = sheds(enqueue_many(shard, 20))
    assert len(rejected) == 20 - (OWN_IN_TIME - GUESTS_IN_TIME)


def test_a_guest_whose_time_is_spent_elsewhere_is_rejected():
    shard = shard_at_full_speed()
    assert sheds(shard.enqueue("late", away=TTFT_TARGET_S)) == {"late": "OVERLOADED"}
    assert sheds(shard.enqueue("own")) == {}


def test_a_rejected_guest_names_the_time_of_a_retry_and_no_window_for_own_requests():
    shard = shard_at_full_speed()
    enqueue_many(shard, GUESTS_IN_TIME)
    shed = only(out.Shed, shard.enqueue("guest", away=AWAY_S))
    assert shed.error.retry_after == pytest.approx(0.08)
    assert list(shed.error.rejection_windows()) == []


def test_a_guest_of_a_class_without_a_target_must_not_wait_long():
    shard = shard_at_full_speed()
    in_time = int(HEADROOM * (0.5 * GUEST_TARGET_S - AWAY_S) * 10)
    rejected = sheds(enqueue_many(shard, in_time + 5, priority=BATCH, away=AWAY_S))
    assert rejected == {f"t{in_time + number}": "OVERLOADED" for number in range(5)}
    assert sheds(enqueue_many(shard, 20, "own", priority=BATCH)) == {}


def test_an_admitted_guest_whose_worker_is_lost_is_not_rejected_as_late():
    shard = shard_at_full_speed()
    enqueue_many(shard, OWN_IN_TIME)
    assert sheds(shard.enqueue("guest", away=AWAY_S, attempt=2)) == {}


def test_a_guest_evicts_no_ticket():
    shard = shard_at_full_speed(max_depth=2)
    enqueue_many(shard, 2, priority=BATCH, tenant_id="b")
    assert sheds(shard.enqueue("guest", priority=INTERACTIVE, away=AWAY_S)) == {"guest": "QUEUE_FULL"}
    assert sheds(shard.enqueue("own", priority=INTERACTIVE)) == {"t1": "EVICTED"}


def test_a_ticket_is_a_guest_by_its_time_elsewhere():
    guest, own = (from_frame(Ticket(ticket_id="t", away_nanos=nanos), "e", 0.0) for nanos in (500_000_000, 0))
    assert (guest.is_guest, guest.away, own.is_guest) == (True, 0.5, False)
