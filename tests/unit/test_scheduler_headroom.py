"""Headroom: slots that batch tickets leave to others, in credit and in placement."""

from hypothesis import given
from hypothesis import strategies as st

from dispatch_mesh import MODEL, profile_of, ticket_of
from penstock.mesh.v1.queue_pb2 import Head
from penstock.scheduler.credit.credit_book import CreditBook
from penstock.scheduler.credit.grants import FreeCapacity, plan_grants
from penstock.scheduler.credit.headroom import MAX_SHARE, MAX_TICKETS_SINCE, Headroom
from penstock.scheduler.fleet.placement import LowestTtft
from penstock.scheduler.fleet.pool import Pool
from penstock.scheduler.fleet.worker import Worker
from penstock.v1.inference_pb2 import PRIORITY_BATCH, PRIORITY_INTERACTIVE
from scheduler_calls import NOW

SLOTS, WORKERS = 64, 1


def headroom_after(pattern, times=100):
    """Return the headroom after tickets with this repeated pattern of classes."""
    found = Headroom()
    for number in range(times):
        found.record(pattern[number % len(pattern)])
    return found


def head(waiting, priority, *, of_class=0):
    return Head(
        model=MODEL,
        waiting=waiting,
        class_waiting=of_class or waiting,
        priority=priority,
        arrival_number=1,
        waiting_tokens=100 * waiting,
        tokens=100,
    )


def tickets(book, free):
    """Return the tickets of the next grants, by shard."""
    return {each.queue: each.tickets for each in plan_grants(book, free) if each.tickets}


def space(leases, for_batch):
    return FreeCapacity(leases, 1_000_000, 10_000, 1, 10_000, SLOTS, for_batch, leases - for_batch)


def test_no_slot_is_left_free_unless_both_kinds_of_tickets_are_placed():
    assert headroom_after([PRIORITY_BATCH]).slots_of_each(SLOTS, WORKERS) == 0
    assert headroom_after([PRIORITY_INTERACTIVE]).slots_of_each(SLOTS, WORKERS) == 0
    mixed = headroom_after([PRIORITY_BATCH, PRIORITY_INTERACTIVE])
    assert mixed.slots_of_each(SLOTS, WORKERS) == 8
    for _ in range(MAX_TICKETS_SINCE):
        mixed.record(PRIORITY_BATCH)
    assert mixed.slots_of_each(SLOTS, WORKERS) == 0


def test_more_slots_are_left_free_the_more_tickets_are_of_other_classes():
    patterns = ([PRIORITY_BATCH] * 9 + [PRIORITY_INTERACTIVE], [PRIORITY_BATCH] + [PRIORITY_INTERACTIVE] * 9)
    few, many = (headroom_after(each).slots_of_each(SLOTS, WORKERS) for each in patterns)
    assert 1 <= few < many == int(MAX_SHARE * SLOTS)


@given(st.lists(st.sampled_from([PRIORITY_BATCH, PRIORITY_INTERACTIVE])), st.integers(0, 4_096), st.integers(1, 64))
def test_batch_tickets_keep_most_slots(classes, slots, workers):
    found = Headroom()
    for each in classes:
        found.record(each)
    assert 0 <= found.slots_of_each(slots, workers) * workers <= MAX_SHARE * slots


def test_batch_tickets_get_credit_for_the_slots_beyond_the_headroom():
    book = CreditBook("a")
    book.on_head("a", head(9, PRIORITY_BATCH), NOW)
    assert tickets(book, space(5, for_batch=2)) == {"a": 2}
    book = CreditBook("a")
    book.on_head("a", head(9, PRIORITY_BATCH), NOW)
    assert tickets(book, space(5, for_batch=0)) == {}


def test_other_tickets_get_credit_for_the_headroom_but_not_for_the_batch_tickets_behind_them():
    book = CreditBook("a")
    book.on_head("a", head(9, PRIORITY_INTERACTIVE, of_class=3), NOW)
    assert tickets(book, space(5, for_batch=0)) == {"a": 3}


def test_a_shard_without_waiting_tickets_holds_no_credit_for_the_headroom():
    assert tickets(CreditBook("ab"), space(5, for_batch=2)) == {"a": 2, "b": 2}


def test_one_of_several_shards_gets_the_headroom_for_its_better_ticket():
    book = CreditBook("ab")
    book.on_head("a", head(9, PRIORITY_BATCH), NOW)
    book.on_head("b", head(2, PRIORITY_INTERACTIVE), NOW)
    assert tickets(book, space(5, for_batch=0)) == {"b": 1}, "a turn at a time"
    book = CreditBook("ab")
    for each in "ab":
        book.on_head(each, head(9, PRIORITY_BATCH), NOW)
    assert tickets(book, space(5, for_batch=0)) == {}


def pool_of(*names, slots=4, look_ahead=1):
    pool = Pool(LowestTtft())
    for name in names:
        pool.add(Worker(name, name, f"{name}:1", profile_of(slots=slots, kv_blocks=1_000), look_ahead=look_ahead))
    return pool


def place(pool, number, priority):
    """Return the worker that takes a ticket; empty if none does."""
    ticket = ticket_of(f"t{number}", tokens=16)
    ticket.priority = priority
    if (placed := pool.place(ticket)) is None:
        return ""
    placed.worker.promise(ticket.ticket_id, placed.worker.blocks_for(ticket))
    return placed.worker.key


def test_batch_tickets_are_placed_where_they_leave_the_headroom():
    pool = pool_of("a", "b")
    pool.keep_headroom(1)
    assert pool.batch_leases == 6
    assert sorted(place(pool, number, PRIORITY_BATCH) for number in range(6)) == [*"aaabbb"]
    assert pool.batch_leases == 0
    assert {place(pool, number, PRIORITY_INTERACTIVE) for number in range(6, 10)} == {"a", "b"}


def test_a_batch_ticket_whose_class_is_owed_a_share_takes_a_lease_of_the_headroom():
    pool = pool_of("a")
    pool.keep_headroom(1)
    assert [place(pool, number, PRIORITY_BATCH) for number in range(6)] == ["a"] * 5 + [""]


def test_without_headroom_batch_tickets_take_all_leases():
    pool = pool_of("a")
    assert [place(pool, number, PRIORITY_BATCH) for number in range(6)] == ["a"] * 5 + [""]
    pool.keep_headroom(1)
    pool.keep_headroom(0)
    assert pool.batch_leases == 0
    pool.remove(next(iter(pool)))
    assert pool.batch_leases == 0


def test_a_batch_prompt_is_in_no_backlog_and_fills_the_cache():
    worker = Worker("w", "w", "w:1", profile_of(), look_ahead=0)
    worker.add_unstarted_tokens(500, is_batch=True)
    worker.on_lease_started(500, is_batch=True)
    assert worker.prefill_backlog_tokens == 0
    assert worker.cache_turnover > 0
