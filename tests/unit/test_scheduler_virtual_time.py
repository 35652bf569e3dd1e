"""The order over shards: virtual time, resumed heads, and heads that do not fit."""

import pytest

from penstock.scheduler.credit.credit_book import CreditBook
from penstock.scheduler.credit.grants import CreditGrant, FreeCapacity, plan_grants
from penstock.scheduler.credit.virtual_time import VirtualTimeSync
from scheduler_calls import LARGE_TOKENS, MODEL, NOW, SMALL_TOKENS, grants, head, offer_one


def test_an_idle_shard_is_lifted_to_the_virtual_time_of_waiting_ones():
    book = CreditBook("ab")
    book.on_head("a", head(5, at=1, virtual=1_000.0), NOW)
    assert grants(book, 1, LARGE_TOKENS) == [CreditGrant("a", 1)]
    offer_one(book, "a", head(4, at=2, virtual=1_100.0))
    book.on_head("b", head(5, at=3, virtual=0.0), NOW)  # its virtual tokens count from its own start
    assert book.shards["b"].virtual_tokens == 1_000.0
    assert grants(book, 1, LARGE_TOKENS) == [CreditGrant("b", 1, return_unused=True)]
    offer_one(book, "b", head(4, at=4, virtual=300.0))
    book.on_credit_returned("b", 0)
    assert grants(book, 1, LARGE_TOKENS) == [CreditGrant("a", 1, return_unused=True)]


def test_an_offset_holds_while_a_shard_waits():
    book = CreditBook("ab")
    book.on_head("a", head(5, virtual=1_000.0), NOW)
    grants(book, 1, LARGE_TOKENS)
    book.on_head("b", head(1, virtual=0.0), NOW)
    book.on_head("b", head(1, virtual=50.0), NOW)
    assert book.shards["b"].virtual_tokens == 1_050.0
    book.on_head("b", head(0), NOW)
    book.on_head("b", head(1, virtual=1_200.0), NOW)
    assert book.shards["b"].virtual_tokens == 1_200.0


def book_after_start(book, **virtual):
    """Let shards start to wait together, and advance them to these virtual tokens."""
    for queue in virtual:
        book.on_head(queue, head(5), NOW)
    for queue, tokens in virtual.items():
        book.on_head(queue, head(5, virtual=tokens), NOW)


def virtual_times(book):
    return {queue: shard.virtual_tokens for queue, shard in book.shards.items()}


def test_shards_that_start_to_wait_together_have_equal_virtual_time():
    book = CreditBook("abc")
    for queue, tokens in ("a", 1_000.0), ("b", 7_000.0), ("c", 0.0):
        book.on_head(queue, head(5, virtual=tokens), NOW)
    assert virtual_times(book) == dict.fromkeys("abc", 7_000.0)
    book.on_head("b", head(0), NOW)
    book.on_head("b", head(2, virtual=9_000.0), NOW)
    assert virtual_times(book) == {"a": 7_000.0, "b": 9_000.0, "c": 7_000.0}, "other shards waited in that time"
    for queue in "abc":
        book.on_head(queue, head(0), NOW)
    book.on_head("a", head(1, virtual=1_200.0), NOW)
    book.on_head("c", head(1, virtual=8_000.0), NOW)
    book.on_head("a", head(1, virtual=1_300.0), NOW)
    assert (virtual_times(book)["a"], virtual_times(book)["c"]) == (8_100.0, 8_000.0)


def test_an_expedited_head_does_not_set_the_virtual_time():
    book = CreditBook("ab")
    book.on_head("a", head(5, virtual=1_000.0), NOW)
    book.on_head("b", head(5, virtual=7_000.0, resumes=True), NOW)
    assert virtual_times(book)["a"] == 1_000.0
    book.on_head("b", head(4, virtual=7_000.0), NOW)
    assert virtual_times(book)["a"] == 7_000.0


def book_with_served_shard(virtual):
    """A book whose shard a was served up to `virtual` and waits."""
    book = CreditBook("ab")
    book.on_head("a", head(5, virtual=virtual), NOW)
    grants(book, 1, LARGE_TOKENS)
    return book


def test_a_lift_by_the_shard_is_subtracted_from_the_offset():
    book = book_with_served_shard(1_000.0)
    book.on_head("b", head(2, virtual=100.0), NOW)
    assert book.shards["b"].virtual_tokens == 1_000.0
    book.on_head("b", head(2, virtual=700.0, lifted=600.0), NOW)
    assert book.shards["b"].virtual_tokens == 1_000.0
    book.on_head("b", head(2, virtual=1_300.0, lifted=1_200.0), NOW)
    assert book.shards["b"].virtual_tokens == 1_300.0


def test_a_resumed_head_goes_first_and_sets_no_virtual_time():
    book = book_with_served_shard(1_000.0)
    book.on_head("b", head(2, virtual=0.0, resumes=True), NOW)
    assert book.shards["b"].sort_key < (2, -(10**9), 0)
    assert book.remote_virtual_time("a") == {}
    book.on_head("b", head(1, virtual=1_200.0), NOW)
    assert book.shards["b"].virtual_tokens == 1_200.0


def test_a_class_that_waits_again_gets_a_new_offset():
    book = book_with_served_shard(1_000.0)
    book.on_head("b", head(2, virtual=900.0), NOW)
    book.on_head("b", head(1, priority=3), NOW)  # no ticket of the higher class waits
    book.virtual_time[2] = 5_000.0  # other shards are served in that time
    book.on_head("b", head(2, virtual=900.0), NOW)
    assert book.shards["b"].virtual_tokens == 5_000.0


def test_remote_virtual_time_is_the_larger_of_served_and_waiting():
    book = CreditBook("abc")
    assert book.remote_virtual_time("a") == {}
    book_after_start(book, b=300.0, c=200.0)
    assert (book.remote_virtual_time("a"), book.remote_virtual_time("b"), book.remote_virtual_time("c")) == (
        {2: 200.0},
        {2: 200.0},
        {2: 300.0},
    )
    grants(book, 1, LARGE_TOKENS)  # to c, which has the best head
    book.on_head("c", head(5, virtual=250.0, priority=3), NOW)
    assert book.remote_virtual_time("a") == {2: 300.0, 3: 250.0}
    book.on_head("b", head(0), NOW)
    assert book.remote_virtual_time("a") == {2: 200.0, 3: 250.0}
    assert book.remote_virtual_time("c") == {}
    book.reset()
    assert book.remote_virtual_time("a") == {2: 200.0}


def sized_head(*, tokens, **fields):
    found = head(tokens=tokens, **fields)
    found.tokens = tokens
    return found


def test_a_head_that_does_not_fit_blocks_shards_that_lead_by_half_of_it():
    book = CreditBook("ab")
    book_after_start(book, a=0.0, b=0.0)
    book.on_head("a", sized_head(tokens=LARGE_TOKENS), NOW)
    book.on_head("b", head(5, virtual=LARGE_TOKENS / 2, tokens=SMALL_TOKENS), NOW)
    capacity = FreeCapacity(1, SMALL_TOKENS, SMALL_TOKENS, max_supported_tokens=LARGE_TOKENS)
    assert [grant.queue for grant in plan_grants(book, capacity)] == ["a"]
    book.on_credit_returned("a", 1)
    assert [grant.queue for grant in plan_grants(book, capacity)] == ["b"]
    offer_one(book, "b", head(4, virtual=LARGE_TOKENS / 2 + 1, tokens=SMALL_TOKENS))
    book.on_credit_returned("b", 0)
    assert plan_grants(book, capacity) == []
    book.on_capacity_changed()
    assert [grant.queue for grant in plan_grants(book, capacity)] == ["a"], (
        "more may fit by now, so its head is tried again"
    )


@pytest.mark.parametrize(
    "stuck", [{"tokens": LARGE_TOKENS + 1}, {"tokens": LARGE_TOKENS, "resumes": True}, {"tokens": 0}]
)
def test_a_head_that_no_worker_here_supports_blocks_no_shard(stuck):
    book = CreditBook("ab")
    book.on_head("a", sized_head(**stuck), NOW)
    book.on_head("b", head(5, virtual=2 * LARGE_TOKENS, tokens=SMALL_TOKENS), NOW)
    capacity = FreeCapacity(1, SMALL_TOKENS, SMALL_TOKENS, max_supported_tokens=LARGE_TOKENS)
    assert [grant.queue for grant in plan_grants(book, capacity)] == ["a"]
    book.on_credit_returned("a", 1)
    assert [grant.queue for grant in plan_grants(book, capacity)] == ["b"]


def backlog_head(waiting, *, rate=0.0, prompt_tokens=0, class_waiting=None, **fields):
    found = head(waiting, **fields)
    found.class_waiting = waiting if class_waiting is None else class_waiting
    found.waiting_prompt_tokens, found.tickets_per_virtual_token = prompt_tokens, rate
    return found


def told(sync, book, queue):
    """Return what a shard is told of the tickets that wait at other shards, by class."""
    return {
        each.priority: (each.waiting, each.waiting_prompt_tokens, each.waiting_tokens, each.tickets_per_virtual_token)
        for effect in sync.updates([queue], {MODEL: book})
        for each in effect.times
    }


def test_each_shard_is_told_which_tickets_wait_at_the_others():
    book, sync = CreditBook("abc"), VirtualTimeSync()
    book.on_head("b", backlog_head(4, rate=0.5, prompt_tokens=24), NOW)
    book.on_head("c", backlog_head(6, rate=0.25, prompt_tokens=30), NOW)
    assert told(sync, book, "a") == {2: (10, 54, 100, 0.75)}
    assert told(sync, book, "b") == {2: (6, 30, 60, 0.25)}
    assert told(sync, book, "a") == {}, "nothing has changed"
    book.on_head("c", head(0), NOW)
    assert told(sync, book, "a") == {2: (4, 24, 40, 0.5)}
    book.on_head("b", head(0), NOW)
    assert told(sync, book, "a") == {2: (0, 0, 0, 0.0)}, "no ticket waits any more"


def test_only_the_tickets_of_the_heads_class_are_told():
    book, sync = CreditBook("ab"), VirtualTimeSync()
    book.on_head("b", backlog_head(8, class_waiting=2, prompt_tokens=40, priority=1), NOW)
    assert told(sync, book, "a") == {1: (2, 10, 20, 0.0)}


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1.0])
def test_an_invalid_backlog_of_a_shard_is_bounded(rate):
    book, sync = CreditBook("ab"), VirtualTimeSync()
    book.on_head("b", backlog_head(3, rate=rate, class_waiting=2**31, prompt_tokens=9), NOW)
    assert told(sync, book, "a") == {2: (3, 9, 30, 0.0)}


def test_a_virtual_time_that_was_sent_does_not_decrease():
    book, sync = CreditBook("ab"), VirtualTimeSync()
    book.on_head("b", backlog_head(2, virtual=900.0), NOW)
    (sent,) = sync.updates(["a"], {MODEL: book})
    book.on_head("b", head(0), NOW)
    (later,) = sync.updates(["a"], {MODEL: book})
    assert [each.times[0].virtual_tokens for each in (sent, later)] == [900.0, 900.0]
