"""Express slots: their number, and their exclusion from other credit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_mesh import LEASE_TTL_S, MODEL, START_UNIX_S, profile_of, ticket_of
from penstock.mesh.v1.queue_pb2 import Head
from penstock.scheduler.credit.credit_book import CreditBook
from penstock.scheduler.credit.express_slots import MAX_TICKETS_SINCE_EXPRESS, ExpressSlots
from penstock.scheduler.credit.grants import CreditGrant, FreeCapacity, plan_grants
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.effects import Expect, GrantCredit, Place
from penstock.scheduler.leases import LeaseBook
from scheduler_calls import NOW

SLOT_COUNT = 64
MAX_EXPRESS_SHARE = 1 / 16
LARGE_TICKET_TOKENS = 1_000


def express_slots_after(pattern, times=100, share=MAX_EXPRESS_SHARE):
    """Return express slots after tickets with this repeated pattern of express ones."""
    found = ExpressSlots(share)
    for number in range(times):
        found.record(is_express=pattern[number % len(pattern)])
    return found


def space(room, largest=LARGE_TICKET_TOKENS):
    return FreeCapacity(room, 1_000_000, largest, slots=SLOT_COUNT)


def head(waiting=1, *, express=False, at=100):
    return Head(
        model=MODEL,
        waiting=waiting,
        priority=2,
        age_nanos=round((NOW - at) * 1e9),
        arrival_number=1 + at,
        waiting_tokens=10,
        tokens=10,
        express=express,
    )


def book_that_keeps(kept, queues="a"):
    book = CreditBook(queues, MAX_EXPRESS_SHARE)
    while book.express_slots.slots_to_keep(SLOT_COUNT) < kept:
        book.on_offer("a", 10, is_express=True)
    return book


def tickets(grants):
    """Return regular and express tickets of grants, by shard."""
    found = {}
    for grant in grants:
        if grant.tickets or grant.express_tickets:
            before = found.get(grant.queue, (0, 0))
            found[grant.queue] = before[0] + grant.tickets, before[1] + grant.express_tickets
    return found


def test_no_slot_is_kept_without_express_tickets():
    assert ExpressSlots(MAX_EXPRESS_SHARE).slots_to_keep(SLOT_COUNT) == 0
    assert express_slots_after([False]).slots_to_keep(SLOT_COUNT) == 0


def test_the_number_of_express_slots_grows_with_the_express_share():
    kept = [express_slots_after([True] + [False] * others).slots_to_keep(SLOT_COUNT) for others in (60, 9, 3, 1)]
    assert kept == [1, 2, 4, 4]
    found = express_slots_after([True])
    for _ in range(MAX_TICKETS_SINCE_EXPRESS - 1):
        found.record(is_express=False)
    assert found.slots_to_keep(SLOT_COUNT) == 1
    found.record(is_express=False)
    assert found.slots_to_keep(SLOT_COUNT) == 0


def test_express_slots_stay_within_their_largest_share():
    found = express_slots_after([True], times=300)
    assert [found.slots_to_keep(slots) for slots in (1, 15, 16, 64, 1_024)] == [0, 0, 1, 4, 64]


@given(st.lists(st.booleans(), max_size=200), st.integers(0, 10_000), st.floats(0.0, 0.5))
def test_express_slots_leave_slots_to_other_tickets(express_flags, slots, share):
    found = ExpressSlots(share)
    for is_express in express_flags:
        found.record(is_express=is_express)
    assert 0 <= found.slots_to_keep(slots) <= slots / 2


def test_regular_credit_excludes_express_slots():
    book = book_that_keeps(2)
    book.on_head("a", head(9), NOW)
    assert tickets(plan_grants(book, space(5))) == {"a": (3, 2)}
    for _ in range(3):
        book.on_offer("a", 10)
    book.on_head("a", head(6), NOW)
    assert tickets(plan_grants(book, space(2))) == {}, "the two free slots are express slots"


def test_a_released_slot_becomes_an_express_slot_first():
    book = book_that_keeps(2)
    book.on_head("a", head(9), NOW)
    plan_grants(book, space(2))
    book.on_offer("a", 10, is_express=True, uses_express_credit=True)
    book.on_head("a", head(9), NOW)
    assert tickets(plan_grants(book, space(1))) == {}
    assert tickets(plan_grants(book, space(2))) == {"a": (0, 1)}
    assert tickets(plan_grants(book, space(3))) == {"a": (1, 0)}


def test_every_shard_holds_express_credit_unless_express_tickets_wait():
    book = book_that_keeps(2, "ab")
    assert tickets(plan_grants(book, space(2))) == {"a": (0, 2), "b": (0, 2)}
    book = book_that_keeps(2, "abc")
    book.on_head("b", head(3, express=True, at=9), NOW)
    book.on_head("c", head(3, express=True, at=8), NOW)
    assert tickets(plan_grants(book, space(2))) == {"c": (0, 2)}


def test_express_credit_is_renewed_when_larger_tickets_fit():
    book = book_that_keeps(2)
    book.on_head("a", head(9, express=True), NOW)
    plan_grants(book, space(2, largest=5))
    assert plan_grants(book, space(2, largest=20)) == [CreditGrant("a")]
    assert plan_grants(book, space(2, largest=20)) == []


def test_an_express_head_goes_first_and_sets_no_virtual_time():
    book = CreditBook("ab")
    book.on_head("a", head(5, at=1), NOW)
    book.on_head("b", head(5, express=True, at=9), NOW)
    assert [grant.queue for grant in plan_grants(book, FreeCapacity(1, 1_000_000, LARGE_TICKET_TOKENS))] == ["b"]
    assert book.remote_virtual_time("a") == {}


@pytest.fixture
def scheduler():
    found = Dispatcher(
        leases=LeaseBook(ttl=LEASE_TTL_S, prefix="s"), look_ahead=0, express_slot_share=MAX_EXPRESS_SHARE
    )
    found.on_queue_connected("q")
    found.on_worker_attached("w", "w", "w:1", profile_of(slots=16, kv_blocks=1_000))
    return found


def test_a_lease_carries_the_express_flag_to_edge_and_worker(scheduler):
    effects = scheduler.on_offer("q", ticket_of("t", express=True), START_UNIX_S)
    assert [each.lease.express for each in effects if isinstance(each, Place | Expect)] == [True, True]


def test_the_last_slot_is_left_to_an_express_ticket(scheduler):
    scheduler.on_offer("q", ticket_of("express", express=True), START_UNIX_S)
    for number in range(14):
        scheduler.on_offer("q", ticket_of(f"t{number}"), START_UNIX_S)
    effects = scheduler.on_head("q", Head(model=MODEL, waiting=5, priority=2, waiting_tokens=160, tokens=32), NOW)
    given = [each for each in effects if isinstance(each, GrantCredit)]
    assert scheduler.credit_books[MODEL].shards["q"].held_express_tickets == 1
    assert not any(each.tickets for each in given)
    placed = scheduler.on_offer("q", ticket_of("late", express=True), START_UNIX_S, uses_express_credit=True)
    assert [each.lease.ticket_id for each in placed if isinstance(each, Place)] == ["late"]
