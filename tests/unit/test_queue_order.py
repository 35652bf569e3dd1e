"""The order in which tickets are offered and evicted."""

import pytest

from penstock.queue.policies.factory import PolicyConfig
from penstock.queue.policies.policy import Fit, QueuePosition, SortKey, TicketTotals
from penstock.queue.policies.priority_classes import ClassFifo
from penstock.queue.policies.ranked_queue import MAX_TICKETS_SCANNED, MAX_TIMES_PASSED
from queue_tickets import BATCH, INTERACTIVE, STANDARD, START_UNIX_S, ShardDriver, ticket


@pytest.fixture
def shard():
    shard = ShardDriver()
    shard.connect()
    return shard


def test_within_a_class_the_first_enqueued_ticket_goes_first(shard):
    shard.enqueue("late", enqueued=START_UNIX_S + 2)
    shard.enqueue("from another shard", enqueued=START_UNIX_S - 30)
    shard.enqueue("soon", enqueued=START_UNIX_S + 1)
    assert shard.credit(3) == ["from another shard", "soon", "late"]


def test_equal_enqueue_times_keep_their_order_of_arrival(shard):
    for number in range(20):
        shard.enqueue(f"t{number}")
    assert shard.credit(20) == [f"t{number}" for number in range(20)]


def test_a_higher_class_goes_first_regardless_of_arrival(shard):
    shard.enqueue("batch", priority=BATCH, enqueued=START_UNIX_S)
    shard.enqueue("standard", priority=STANDARD, enqueued=START_UNIX_S + 1)
    shard.enqueue("interactive", priority=INTERACTIVE, enqueued=START_UNIX_S + 2)
    assert shard.credit(3) == ["interactive", "standard", "batch"]


def test_resumed_tickets_go_first_in_their_class_only(shard):
    shard.enqueue("first", enqueued=START_UNIX_S)
    shard.enqueue("resumed", enqueued=START_UNIX_S + 5, attempt=2)
    shard.enqueue("higher class", priority=INTERACTIVE, enqueued=START_UNIX_S + 9)
    assert shard.credit(3) == ["higher class", "resumed", "first"]


def test_a_declined_ticket_returns_to_its_place(shard):
    for name in ("a", "b", "c"):
        shard.enqueue(name)
    assert shard.credit(2) == ["a", "b"]
    shard.decline("b"), shard.decline("a")
    assert shard.credit(3) == ["a", "b", "c"]


def test_tickets_offered_to_a_lost_scheduler_return_to_their_places(shard):
    shard.connect("t")
    for name in ("a", "b", "c"):
        shard.enqueue(name)
    assert shard.credit(2) == ["a", "b"]
    shard.disconnect("s")
    assert shard.credit(3, "t") == ["a", "b", "c"]


def test_present_credit_is_used_at_arrival(shard):
    assert shard.credit(2) == []
    assert [each.ticket.ticket_id for each in shard.enqueue("a")[1:]] == ["a"]
    assert [each.ticket.ticket_id for each in shard.enqueue("b")[1:]] == ["b"]
    assert len(shard.enqueue("c")) == 1


def test_schedulers_with_equal_credit_share_the_tickets(shard):
    shard.connect("t")
    shard.credit(3, "s"), shard.credit(3, "t")
    for number in range(6):
        shard.enqueue(f"t{number}")
    assert [len(shard.book.schedulers[each].offered) for each in ("s", "t")] == [3, 3]


def test_a_ticket_that_does_not_fit_the_credit_leaves_it_to_a_smaller_one(shard):
    shard.enqueue("large", tokens=500)
    shard.enqueue("small", tokens=100)
    assert shard.credit(2, max_tokens=200) == ["small"]
    assert shard.credit(0, max_tokens=500) == ["large"]


def test_a_ticket_that_was_passed_too_often_blocks_the_queue_until_it_fits():
    shard = ShardDriver(policy=PolicyConfig(min_class_share=0.0))
    shard.connect()
    shard.enqueue("large", tokens=500)
    for number in range(MAX_TIMES_PASSED + 5):
        shard.enqueue(f"small {number}")
    shard.enqueue("lower class", priority=BATCH)
    assert len(shard.credit(100, max_tokens=200)) == MAX_TIMES_PASSED
    assert shard.credit(1, max_tokens=499) == []
    assert shard.credit(1, max_tokens=500)[0] == "large"


def test_blocked_credit_is_used_once_the_blocking_ticket_goes_elsewhere():
    shard = ShardDriver(policy=PolicyConfig(min_class_share=0.0))
    shard.connect(), shard.connect("t")
    shard.enqueue("large", tokens=500)
    for number in range(MAX_TIMES_PASSED + 5):
        shard.enqueue(f"small {number}")
    assert len(shard.credit(100, "s", max_tokens=200)) == MAX_TIMES_PASSED
    assert len(shard.credit(1, "t", max_tokens=500)) == 1 + 5


def test_a_blocked_class_does_not_block_higher_classes(shard):
    shard.enqueue("large", tokens=500)
    for number in range(MAX_TIMES_PASSED + 1):
        shard.enqueue(f"small {number}")
    shard.credit(MAX_TIMES_PASSED, max_tokens=200)
    shard.enqueue("above", priority=INTERACTIVE, enqueued=START_UNIX_S + 9)
    assert shard.credit(9, max_tokens=200) == ["above"]


def test_a_bounded_number_of_tickets_is_scanned_for_one_that_fits():
    looked_at = []

    def fit(each):
        looked_at.append(each.ticket_id)
        return Fit.NEVER

    order = ClassFifo()
    for number in range(3 * MAX_TICKETS_SCANNED):
        order.push(ticket(f"t{number}", arrival_number=number))
    assert order.pop_fitting(fit) is None
    assert looked_at == [f"t{number}" for number in range(MAX_TICKETS_SCANNED)]
    assert order.totals.tickets == 3 * MAX_TICKETS_SCANNED


def test_a_ticket_too_large_for_one_scheduler_goes_to_the_other(shard):
    shard.connect("t")
    shard.enqueue("large", tokens=500)
    assert shard.credit(9, "s", max_tokens=200) == []
    assert shard.credit(1, "t", max_tokens=500) == ["large"]
    assert shard.book.tickets["large"].offered_to == "t"


def test_work_ahead_counts_higher_classes_and_the_own():
    order = ClassFifo()
    for number, priority in enumerate([INTERACTIVE, STANDARD, STANDARD, BATCH]):
        order.push(ticket(f"t{number}", priority=priority, tokens=100, arrival_number=number))
    order.push(ticket("resumed", attempt=2, tokens=50, arrival_number=9))
    assert order.position_of(ticket("new")) == QueuePosition(4, 350)
    assert order.position_of(ticket("new", attempt=2)) == QueuePosition(2, 150)
    assert order.position_of(ticket("new", priority=BATCH)) == QueuePosition(5, 450)


def test_the_newest_of_the_lowest_class_is_evicted_first_and_resumed_tickets_never():
    order = ClassFifo()
    order.push(ticket("old", priority=BATCH, enqueued=START_UNIX_S, arrival_number=1))
    order.push(ticket("new", priority=BATCH, enqueued=START_UNIX_S + 1, arrival_number=2))
    order.push(ticket("resumed", priority=BATCH, enqueued=START_UNIX_S + 2, arrival_number=3, attempt=2))
    order.push(ticket("better class", priority=STANDARD, enqueued=START_UNIX_S + 3, arrival_number=4))
    evicted = []
    while found := order.next_victim(INTERACTIVE):
        evicted.append(found[0].ticket_id)
        order.remove(found[0])
    assert evicted == ["new", "old", "better class"]
    assert order.evictable(INTERACTIVE) == TicketTotals(0, 0)
    assert order.head()[1] == SortKey(BATCH, 0.0, START_UNIX_S + 2)


def test_no_ticket_is_evicted_for_its_own_class():
    order = ClassFifo()
    order.push(ticket("a", priority=STANDARD, arrival_number=1))
    assert order.next_victim(STANDARD) is None
    assert order.evictable(STANDARD) == TicketTotals(0, 0)


def test_a_returned_ticket_can_be_evicted():
    order = ClassFifo()
    first, second = ticket("first", arrival_number=1), ticket("second", arrival_number=2)
    order.push(first), order.push(second)
    assert order.next_victim(INTERACTIVE)[0] is second
    order.remove(second), order.remove(first)
    order.push(first)
    assert order.next_victim(INTERACTIVE)[0] is first


def test_withdrawn_tickets_do_not_accumulate():
    order = ClassFifo()
    kept = ticket("kept", arrival_number=0)
    order.push(kept)
    for number in range(10_000):
        each = ticket(f"t{number}", arrival_number=number + 1)
        order.push(each), order.remove(each)
    assert len(order[STANDARD].tenant_queue._heap) < 200
    assert order.head()[0] is kept
