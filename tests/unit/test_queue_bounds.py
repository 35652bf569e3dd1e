"""Queue limits and deadlines: rejection, eviction and expiration."""

from penstock.chassis.errors import DeadlineExceeded, Overloaded
from penstock.queue import effects as out
from penstock.queue.tickets.poison_scans import MAX_DROPPED_PER_SLICE
from queue_tickets import (
    BATCH,
    INTERACTIVE,
    START_UNIX_S,
    ShardDriver,
    only,
    sheds,
    withdrawn_offers,
)

# Limits.


def test_a_full_queue_rejects_with_the_time_to_serve_the_waiting_tickets():
    shard = ShardDriver(max_depth=2)
    shard.connect()
    shard.credit(0, rate=100.0)
    shard.enqueue("a", tokens=150), shard.enqueue("b", tokens=150)
    error = only(out.Shed, shard.enqueue("c")).error
    assert isinstance(error, Overloaded)
    assert (error.reason, error.retry_after) == ("QUEUE_FULL", 3.0)
    assert shard.book.counters.shed == {"QUEUE_FULL": 1}


def test_waiting_tokens_are_limited_as_tickets_are():
    shard = ShardDriver(max_tokens=1_000)
    shard.connect()
    shard.enqueue("a", tokens=900)
    assert sheds(shard.enqueue("b", tokens=101)) == {"b": "QUEUE_TOKENS_FULL"}
    assert sheds(shard.enqueue("c", tokens=100)) == {}


def test_offered_tickets_do_not_count_against_the_limits():
    shard = ShardDriver(max_depth=1)
    shard.connect()
    shard.credit(1)
    shard.enqueue("offered")
    assert sheds(shard.enqueue("waits")) == {}
    assert sheds(shard.enqueue("rejected")) == {"rejected": "QUEUE_FULL"}


def test_resumed_tickets_are_admitted_above_the_limits():
    shard = ShardDriver(max_depth=1)
    shard.connect()
    shard.enqueue("a")
    assert sheds(shard.enqueue("b", attempt=2)) == {}


def test_a_higher_class_evicts_the_newest_ticket_of_the_lowest():
    shard = ShardDriver(max_depth=3)
    shard.connect()
    (
        shard.enqueue("old", priority=BATCH, enqueued=START_UNIX_S),
        shard.enqueue("new", priority=BATCH, enqueued=START_UNIX_S + 1),
    )
    shard.enqueue("standard")
    assert sheds(shard.enqueue("first", priority=INTERACTIVE)) == {"new": "EVICTED"}
    assert sheds(shard.enqueue("second", priority=INTERACTIVE)) == {"old": "EVICTED"}
    assert sheds(shard.enqueue("third", priority=INTERACTIVE)) == {"standard": "EVICTED"}
    assert sheds(shard.enqueue("fourth", priority=INTERACTIVE)) == {"fourth": "QUEUE_FULL"}


def test_a_large_ticket_evicts_as_many_tickets_of_any_model_as_it_needs():
    shard = ShardDriver(max_tokens=1_000)
    shard.connect(models=("m", "n"))
    for number in range(10):
        shard.enqueue(f"t{number}", priority=BATCH, model="mn"[number % 2], enqueued=START_UNIX_S + number)
    effects = shard.enqueue("large", tokens=250, priority=INTERACTIVE)
    assert list(sheds(effects)) == ["t9", "t8", "t7"]
    assert shard.book.model_queues.waiting.tokens == 950


def test_no_ticket_is_evicted_if_eviction_does_not_suffice():
    shard = ShardDriver(max_tokens=1_000)
    shard.connect()
    shard.enqueue("standard", tokens=900), shard.enqueue("batch", tokens=100, priority=BATCH)
    effects = shard.enqueue("large", tokens=1_001, priority=INTERACTIVE)
    assert sheds(effects) == {"large": "QUEUE_TOKENS_FULL"}
    assert shard.book.model_queues.waiting.tickets == 2


# Deadlines.


def test_a_waiting_ticket_is_shed_at_its_deadline_and_not_before(shard):
    shard.enqueue("a", deadline=START_UNIX_S + 3)
    assert shard.pass_time(2.9) == []
    error = only(out.Shed, shard.pass_time(0.1)).error
    assert (isinstance(error, DeadlineExceeded), error.reason) == (True, "DEADLINE")


def test_an_offered_ticket_past_its_deadline_is_withdrawn(shard):
    shard.enqueue("a", deadline=START_UNIX_S + 1), shard.credit(1)
    effects = shard.pass_time(1.0)
    assert (sheds(effects), withdrawn_offers(effects)) == ({"a": "DEADLINE"}, [("s", ("a",))])
    assert shard.place("a") == []


def test_a_ticket_past_its_deadline_is_rejected_at_once(shard):
    assert sheds(shard.enqueue("a", deadline=START_UNIX_S - 1)) == {"a": "DEADLINE"}


def test_many_deadlines_at_once_are_spread_over_ticks():
    shard = ShardDriver(max_depth=10_000)
    shard.connect()
    for number in range(2 * MAX_DROPPED_PER_SLICE + 1):
        shard.enqueue(f"t{number}", deadline=START_UNIX_S + 1)
    assert [len(sheds(shard.pass_time(seconds))) for seconds in (1.0, 0.05, 0.05, 0.05)] == [
        MAX_DROPPED_PER_SLICE,
        MAX_DROPPED_PER_SLICE,
        1,
        0,
    ]


def test_deadlines_of_removed_tickets_do_not_accumulate(shard):
    for number in range(5_000):
        shard.enqueue(f"t{number}", deadline=START_UNIX_S + 3_600), shard.withdraw(f"t{number}")
    assert len(shard.book._transitions.expirations.lease_deadlines) < 200
