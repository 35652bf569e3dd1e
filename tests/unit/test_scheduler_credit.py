"""Credit of shards: idle credit without waiting tickets, and turns in the order of heads if several shards wait."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduler.credit.credit_book import CreditBook
from penstock.scheduler.credit.grants import MAX_IDLE_CREDIT_TICKETS, CreditGrant, FreeCapacity, plan_grants
from scheduler_calls import LARGE_TOKENS, NOW, SMALL_TOKENS, grants, head, offer_one


def test_idle_shards_hold_credit_for_all_free_capacity():
    book = CreditBook("ab")
    assert grants(book, 3, LARGE_TOKENS) == [CreditGrant("a", 3), CreditGrant("b", 3)]
    assert grants(book, 3, LARGE_TOKENS) == []
    assert repr(book) == "<CreditBook 6 held by 2 shards, 0 waiting>"


def test_idle_credit_is_refilled_once_half_of_it_is_used():
    book = CreditBook("a")
    assert grants(book, 10_000, LARGE_TOKENS) == [CreditGrant("a", MAX_IDLE_CREDIT_TICKETS)]
    for _ in range(MAX_IDLE_CREDIT_TICKETS // 2 - 1):
        offer_one(book, "a", head(0))
        assert grants(book, 10_000, LARGE_TOKENS) == []
    offer_one(book, "a", head(0))
    assert grants(book, 10_000, LARGE_TOKENS) == [CreditGrant("a", MAX_IDLE_CREDIT_TICKETS // 2)]


def test_idle_credit_is_refilled_if_its_tokens_or_size_limit_are_low():
    book = CreditBook("a")
    assert plan_grants(book, FreeCapacity(8, 1_000, 300)) == [CreditGrant("a", 8, 1_000)]
    book.on_offer("a", 450)
    assert plan_grants(book, FreeCapacity(7, 1_000, 599)) == []
    assert plan_grants(book, FreeCapacity(8, 1_200, 300)) == [CreditGrant("a", 1, 650)]
    book.on_offer("a", 10)
    assert plan_grants(book, FreeCapacity(8, 1_200, 600)) == [CreditGrant("a", 1, 10)]


def test_the_only_waiting_shard_gets_credit_for_its_waiting_tickets():
    book = CreditBook("a")
    book.on_head("a", head(3), NOW)
    assert grants(book, 2, LARGE_TOKENS) == [CreditGrant("a", 2)]
    assert grants(book, 2, LARGE_TOKENS) == []
    assert grants(book, 9, LARGE_TOKENS) == [CreditGrant("a", 1)]


def test_scarce_capacity_is_reclaimed_from_idle_shards():
    book = CreditBook("ab")
    grants(book, 4, LARGE_TOKENS)
    book.on_head("a", head(9), NOW)
    assert CreditGrant("b", 0, return_unused=True) in grants(book, 4, LARGE_TOKENS)
    assert grants(book, 4, LARGE_TOKENS) == []  # the return is requested once
    book.on_credit_returned("b", 4)
    assert book.held_tickets == 4


def test_idle_shards_keep_credit_if_capacity_suffices():
    book = CreditBook("ab")
    grants(book, 4, LARGE_TOKENS)
    book.on_head("a", head(2), NOW)
    assert grants(book, 4, LARGE_TOKENS) == []
    assert book.shards["b"].held_tickets == 4


def test_the_best_head_of_waiting_shards_gets_the_turn():
    book = CreditBook("abc")
    book.on_head("a", head(5, priority=2, at=1), NOW)
    book.on_head("b", head(5, priority=1, at=9), NOW)
    book.on_head("c", head(5, priority=1, at=8), NOW)
    assert grants(book, 1, LARGE_TOKENS) == [CreditGrant("c", 1, return_unused=True)]


def test_within_a_class_virtual_tokens_come_before_enqueue_time():
    book = CreditBook("ab")
    for virtual in 0, 1:
        book.on_head("a", head(5, at=1, virtual=10.0 * virtual), NOW)
        book.on_head("b", head(5, at=9, virtual=5.0 * virtual), NOW)
    assert grants(book, 1, LARGE_TOKENS) == [CreditGrant("b", 1, return_unused=True)]


def test_the_next_turn_waits_for_the_offer_and_the_next_head():
    book = CreditBook("ab")
    book.on_head("a", head(5, at=1), NOW)
    book.on_head("b", head(5, at=2), NOW)
    assert grants(book, 1, LARGE_TOKENS) == [CreditGrant("a", 1, return_unused=True)]
    assert grants(book, 2, LARGE_TOKENS) == []
    book.on_offer("a", 10)
    book.on_credit_returned("a", 0)
    assert grants(book, 2, LARGE_TOKENS) == []  # its head is older than the offer
    book.on_head("a", head(4, at=3), NOW)
    assert grants(book, 2, LARGE_TOKENS) == [CreditGrant("b", 1, return_unused=True)]


def test_a_turn_that_found_no_ticket_goes_to_the_next_shard():
    book = CreditBook("ab")
    book.on_head("a", head(5, at=1), NOW)
    book.on_head("b", head(5, at=2), NOW)
    grants(book, 1, SMALL_TOKENS)
    book.on_credit_returned("a", 1)
    assert grants(book, 1, SMALL_TOKENS) == [CreditGrant("b", 1, return_unused=True)]
    book.on_credit_returned("b", 1)
    assert grants(book, 1, SMALL_TOKENS) == []
    book.on_capacity_changed()
    assert grants(book, 1, SMALL_TOKENS) == [CreditGrant("a", 1, return_unused=True)]


def test_free_capacity_is_granted_in_large_turns_and_then_one_by_one():
    book = CreditBook("ab")
    book.on_head("a", head(500, at=1), NOW)
    book.on_head("b", head(500, at=2), NOW)
    assert grants(book, 800, LARGE_TOKENS) == [CreditGrant("a", 100, return_unused=True)]
    book.on_credit_returned("a", 100)
    assert grants(book, 7, LARGE_TOKENS) == [CreditGrant("b", 1, return_unused=True)]


def test_capacity_for_all_waiting_tickets_is_granted_to_all_at_once():
    book = CreditBook("ab")
    book.on_head("a", head(5), NOW)
    book.on_head("b", head(6), NOW)
    assert grants(book, 11, LARGE_TOKENS) == [
        CreditGrant("a", 5, return_unused=True),
        CreditGrant("b", 6, return_unused=True),
    ]


def test_credit_of_several_shards_is_reclaimed_once_they_wait():
    book = CreditBook("ab")
    grants(book, 2, LARGE_TOKENS)
    book.on_head("a", head(5, at=1), NOW)
    book.on_head("b", head(5, at=2), NOW)
    assert grants(book, 2, LARGE_TOKENS) == [CreditGrant("a", return_unused=True), CreditGrant("b", return_unused=True)]
    book.on_credit_returned("a", 2)
    assert grants(book, 2, LARGE_TOKENS) == []
    offer_one(book, "b", head(4, at=3))
    offer_one(book, "b", head(3, at=4))  # it has used all credit before the return request
    assert grants(book, 2, LARGE_TOKENS) == []
    book.on_credit_returned("b", 0)
    book.on_capacity_changed()
    assert grants(book, 2, LARGE_TOKENS) == [CreditGrant("a", 1, return_unused=True)]


def test_unused_credit_is_renewed_when_larger_tickets_fit():
    book = CreditBook("a")
    book.on_head("a", head(1), NOW)
    assert grants(book, 1, SMALL_TOKENS) == [CreditGrant("a", 1)]
    assert grants(book, 2, LARGE_TOKENS) == [CreditGrant("a", 0)]
    assert grants(book, 2, LARGE_TOKENS) == []


def test_a_head_with_unused_credit_is_probed_once_without_a_size_limit():
    book = CreditBook("a")
    book.on_head("a", head(1), NOW)
    grants(book, 1, LARGE_TOKENS)
    book.tick()
    assert grants(book, 1, LARGE_TOKENS) == []
    book.tick()
    assert grants(book, 1, LARGE_TOKENS) == [CreditGrant("a", 0, is_unbounded=True)]
    book.tick()
    assert grants(book, 1, LARGE_TOKENS) == []
    book.on_head("a", head(1, at=200), NOW)
    book.tick(), book.tick()
    assert grants(book, 1, LARGE_TOKENS) == [CreditGrant("a", 0, is_unbounded=True)]


def test_a_head_that_does_not_use_its_turns_is_probed_once():
    book = CreditBook("ab")
    book.on_head("a", head(5, at=1), NOW)
    book.on_head("b", head(5, at=2), NOW)
    tried = []
    for _ in range(4):
        book.on_capacity_changed()
        tried += grants(book, 1, LARGE_TOKENS)
        book.on_credit_returned("a", 1)
    assert [grant.is_unbounded for grant in tried] == [False, False, True, False]


def test_a_declined_shard_holds_no_credit():
    book = CreditBook("a")
    grants(book, 5, LARGE_TOKENS)
    book.on_credit_voided("a")
    assert grants(book, 2, LARGE_TOKENS) == [CreditGrant("a", 2)]


def test_a_reconnected_shard_starts_without_credit():
    book = CreditBook("a")
    grants(book, 5, LARGE_TOKENS)
    book.on_queue_disconnected("a")
    book.on_queue_connected("a")
    assert grants(book, 5, LARGE_TOKENS) == [CreditGrant("a", 5)]


def test_a_model_that_is_served_again_gets_new_credit():
    book = CreditBook("a")
    grants(book, 5, LARGE_TOKENS)
    book.on_offer("a", 10)
    book.reset()
    assert grants(book, 5, LARGE_TOKENS) == [CreditGrant("a", 5)]


@given(
    heads=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3), st.integers(0, 9)), min_size=1, max_size=4),
    free_slots=st.integers(0, 40),
)
def test_waiting_shards_never_hold_more_than_the_free_capacity(heads, free_slots):
    book = CreditBook([f"q{number}" for number in range(len(heads))])
    for number, (waiting, priority, at) in enumerate(heads):
        book.on_head(f"q{number}", head(waiting, priority=priority, at=at), NOW)
    grants(book, free_slots, LARGE_TOKENS)
    held = [shard.held_tickets for shard in book.shards.values() if shard.has_waiting]
    assert sum(held) <= free_slots
    assert sum(held) > 0 or not held or free_slots == 0


def test_granted_tokens_fit_together_and_are_used_by_offers():
    book = CreditBook("a")
    book.on_head("a", head(5, tokens=300), NOW)
    assert plan_grants(book, FreeCapacity(8, 1_000, 1_000)) == [CreditGrant("a", 5, 1_000)]
    book.on_offer("a", 300)
    book.on_head("a", head(4, tokens=300), NOW)
    assert book.shards["a"].held_tokens == 700
    assert plan_grants(book, FreeCapacity(8, 700, 700)) == []


def test_freed_tokens_are_granted_to_credit_that_lacks_them():
    book = CreditBook("a")
    book.on_head("a", head(5, tokens=300), NOW)
    plan_grants(book, FreeCapacity(8, 100, 100))
    assert plan_grants(book, FreeCapacity(8, 400, 400)) == [CreditGrant("a", 0, 300)]
    assert plan_grants(book, FreeCapacity(8, 400, 400)) == []


def test_returned_credit_includes_its_tokens():
    book = CreditBook("ab")
    plan_grants(book, FreeCapacity(4, 500, 500))
    book.on_head("a", head(9, tokens=300), NOW)
    plan_grants(book, FreeCapacity(4, 500, 500))
    book.on_credit_returned("b", 4)
    assert (book.shards["b"].held_tickets, book.shards["b"].held_tokens) == (0, 0)


@given(
    free=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    sizes=st.lists(st.integers(1, 60), max_size=40),
    choose=st.randoms(use_true_random=False),
)
def test_tickets_within_the_packable_tokens_always_fit(free, sizes, choose):
    most = choose.randint(1, 60)
    space = FreeCapacity(len(sizes), sum(free), max(free), len(free))
    left, largest = space.packable_tokens(most), min(most, max(free))
    for size in sizes:
        if size <= min(left, largest):
            able = [place for place, tokens in enumerate(free) if tokens >= size]
            assert able
            free[choose.choice(able)] -= size
            left -= size


def test_a_head_that_some_worker_supports_is_not_probed():
    book = CreditBook("a")
    waiting = head(1)
    waiting.tokens = 500
    book.on_head("a", waiting, NOW)
    plan_grants(book, FreeCapacity(1, 100, 100, 1, 500))
    for _ in range(9):
        book.tick()
        assert plan_grants(book, FreeCapacity(1, 100, 100, 1, 500)) == []
    assert plan_grants(book, FreeCapacity(1, 100, 100, 1, 499)) == [CreditGrant("a", 0, 400, is_unbounded=True)]
