"""Transitions of a ticket: waiting, offered, leased, withdrawn."""

import pytest

from penstock.chassis.errors import Unavailable
from penstock.queue import effects as out
from penstock.queue.poison import REPORT_DELAY_S
from penstock.queue.tickets.expirations import DECLINE_PAUSE_S
from queue_tickets import (
    LEASE_MEMORY_S,
    MODEL_TIMEOUT_S,
    START_UNIX_S,
    leased,
    offered,
    only,
    sheds,
    withdrawn_offers,
)

# Enqueue.


def test_a_queued_ticket_has_the_number_of_tickets_ahead(shard):
    assert shard.enqueue("a") == [out.Queued("e", "a", 0, None)]
    assert shard.enqueue("b") == [out.Queued("e", "b", 1, None)]
    assert repr(shard.book) == "<TicketBook 2 waiting, 0 offered, 0 placed>"


def test_the_predicted_wait_is_the_work_ahead_at_the_measured_rate(shard):
    shard.credit(0, rate=50.0)
    shard.enqueue("a", tokens=100), shard.enqueue("b", tokens=300)
    assert only(out.Queued, shard.enqueue("c")).predicted_wait == pytest.approx(400 / 50)


def test_without_rates_from_schedulers_the_own_throughput_predicts(shard):
    shard.enqueue("first", tokens=100)
    for number in range(20):
        shard.enqueue(f"t{number}", tokens=100)
        assert shard.credit(1)
        shard.place(shard.effects[-1].ticket.ticket_id)
        shard.now += 0.5
    wait = only(out.Queued, shard.enqueue("last")).predicted_wait
    assert wait == pytest.approx(100 / 200, rel=0.15)  # one waits; 200 tokens left per second


def test_the_same_attempt_again_changes_nothing(shard):
    shard.enqueue("a"), shard.enqueue("a")
    assert shard.credit(5) == ["a"]
    assert shard.enqueue("a") == [out.Queued("e", "a", 0, None)]
    assert repr(shard.book) == "<TicketBook 0 waiting, 1 offered, 0 placed>"


def test_a_newer_attempt_replaces_an_older_one_and_withdraws_its_offer(shard):
    shard.enqueue("a"), shard.credit(1)
    effects = shard.enqueue("a", attempt=2)
    assert withdrawn_offers(effects) == [("s", ("a",))]
    assert repr(shard.book) == "<TicketBook 1 waiting, 0 offered, 0 placed>"


def test_a_ticket_moves_to_the_new_stream_of_its_edge(shard):
    shard.enqueue("a", edge="e"), shard.enqueue("a", edge="f")
    shard.record(shard.book.on_edge_disconnected("e"))
    assert shard.credit(1) == ["a"]
    assert leased(shard.place("a")) == ["lease"]
    assert only(out.Leased, shard.effects).edge == "f"


def test_an_enqueue_after_the_lease_withdraws_the_lease(shard):
    shard.enqueue("a"), shard.credit(1), shard.place("a")
    assert withdrawn_offers(shard.enqueue("a", attempt=2)) == [("s", ("a",))]
    assert shard.credit(1) == ["a"]


# Offers and leases.


def test_a_placed_ticket_is_leased_to_its_edge_and_leaves_the_book(shard):
    shard.enqueue("a"), shard.credit(1)
    shard.now += 2.5
    placed = shard.place("a")
    assert (leased(placed), only(out.Leased, placed).waited) == (["lease"], 2.5)
    assert only(out.TicketRemoved, placed).reason == ""
    assert repr(shard.book) == "<TicketBook 0 waiting, 0 offered, 1 placed>"
    assert shard.book.counters.leased == 1


def test_the_wait_of_a_resumed_ticket_is_that_of_its_present_attempt(shard):
    shard.now += 60
    shard.enqueue("a", attempt=2, enqueued=START_UNIX_S), shard.credit(1)
    shard.now += 1
    assert only(out.Leased, shard.place("a", attempt=2)).waited == pytest.approx(1.0)


def test_offers_do_not_exceed_credit(shard):
    for number in range(5):
        shard.enqueue(f"t{number}")
    assert shard.credit(2) == ["t0", "t1"]
    assert shard.credit(1) == ["t2"]


def test_credit_is_per_model(shard):
    shard.serve("s", ["m", "n"])
    shard.enqueue("a", model="n")
    assert shard.credit(5, model="m") == []
    assert shard.credit(1, model="n") == ["a"]


def test_credit_to_return_is_returned_if_no_ticket_uses_it(shard):
    shard.enqueue("a")
    assert shard.credit(3, return_unused=True) == ["a"]
    assert shard.effects[-1] == out.CreditReturned("s", "m", 2)
    assert offered(shard.enqueue("b")) == []


def test_a_return_request_is_answered_even_if_all_credit_was_used(shard):
    shard.enqueue("a")
    shard.credit(1, return_unused=True)
    assert shard.effects[-1] == out.CreditReturned("s", "m", 0)


def test_a_decline_for_lack_of_capacity_voids_the_other_credit(shard):
    shard.credit(5)
    shard.enqueue("a"), shard.decline("a")
    assert shard.book.schedulers.total_credit == 0
    assert shard.credit(1) == ["a"]


def test_a_repeatedly_declined_ticket_pauses_and_others_pass_it(shard):
    shard.enqueue("a"), shard.enqueue("b")
    for _ in range(2):
        assert shard.credit(1) == ["a"]
        shard.decline("a")
    assert shard.book.model_queues.waiting.tickets == 2
    assert shard.credit(1) == ["b"]
    assert shard.credit(1) == []
    assert offered(shard.pass_time(DECLINE_PAUSE_S)) == ["a"]


def test_a_paused_ticket_can_be_withdrawn(shard):
    shard.enqueue("a")
    for _ in range(2):
        shard.credit(1), shard.decline("a")
    shard.withdraw("a")
    assert shard.pass_time(DECLINE_PAUSE_S) == []
    assert repr(shard.book) == "<TicketBook 0 waiting, 0 offered, 0 placed>"


def test_a_ticket_that_no_worker_can_ever_run_is_shed_without_a_retry_time(shard):
    shard.enqueue("a", tokens=10_000), shard.credit(1)
    error = only(out.Shed, shard.decline("a", "NO_WORKER")).error
    assert (type(error).__mro__[1], error.reason, error.retry_after) == (Unavailable, "NO_WORKER", None)
    assert "10000 tokens" in error.message


def test_a_ticket_refused_by_one_scheduler_goes_to_another(shard):
    shard.connect("t")
    shard.enqueue("a"), shard.credit(1, "s")
    assert sheds(shard.decline("a", "NO_WORKER", "s")) == {}
    shard.enqueue("b")
    assert shard.credit(2, "s") == ["b"]
    assert shard.credit(1, "t") == ["a"]


def test_a_ticket_is_shed_once_every_scheduler_has_refused_it(shard):
    shard.connect("t")
    shard.enqueue("a"), shard.credit(1, "s"), shard.decline("a", "NO_WORKER", "s")
    shard.credit(1, "t")
    assert sheds(shard.decline("a", "NO_WORKER", "t")) == {"a": "NO_WORKER"}


def test_a_ticket_is_shed_when_the_last_scheduler_that_did_not_refuse_it_is_lost(shard):
    shard.connect("t")
    shard.enqueue("a"), shard.credit(1, "s"), shard.decline("a", "NO_WORKER", "s")
    shard.credit(1, "t")
    assert sheds(shard.disconnect("t")) == {"a": "NO_WORKER"}


def test_a_refusal_ends_when_the_workers_of_the_scheduler_change(shard):
    shard.connect("t")
    shard.enqueue("a"), shard.credit(1, "s"), shard.decline("a", "NO_WORKER", "s")
    shard.serve("s", ["m"])
    assert shard.credit(1, "s") == ["a"]


def test_a_refused_ticket_is_offered_again_on_existing_credit_after_workers_change(shard):
    shard.connect("t")
    shard.credit(2, "s"), shard.enqueue("a"), shard.decline("a", "NO_WORKER", "s")
    shard.effects.clear()
    shard.serve("s", ["m"])
    assert offered(shard.effects) == ["a"]


def test_a_ticket_that_failed_on_every_worker_is_shed_with_a_retry_time(shard):
    shard.pass_time(REPORT_DELAY_S)
    shard.enqueue("a", avoid_workers=("w1", "w2"), attempt=3), shard.credit(1)
    error = only(out.Shed, shard.decline("a", "NO_WORKER")).error
    assert "2 workers" in error.message
    assert error.retry_after == MODEL_TIMEOUT_S


# Withdrawal.


def test_a_withdrawn_ticket_is_never_offered(shard):
    shard.enqueue("a"), shard.enqueue("b")
    assert shard.withdraw("a")[-1] == out.Withdrawn("e", ("a",))
    assert shard.credit(5) == ["b"]


def test_withdrawing_an_unknown_ticket_is_acknowledged(shard):
    assert shard.withdraw("x", "y") == [out.Withdrawn("e", ("x", "y"))]


def test_withdrawing_an_offered_ticket_withdraws_the_offer_and_ignores_its_lease(shard):
    shard.enqueue("a"), shard.credit(1)
    assert withdrawn_offers(shard.withdraw("a")) == [("s", ("a",))]
    assert shard.place("a") == []
    assert repr(shard.book) == "<TicketBook 0 waiting, 0 offered, 0 placed>"


def test_the_answer_to_a_void_offer_does_not_count_for_the_next_offer(shard):
    shard.enqueue("a"), shard.credit(1), shard.withdraw("a")
    shard.enqueue("a")
    assert shard.credit(1) == ["a"]
    assert shard.place("a", lease_id="of the first offer") == []
    assert leased(shard.place("a", lease_id="of the second")) == ["of the second"]


def test_withdrawing_a_leased_ticket_reaches_the_scheduler_that_placed_it(shard):
    shard.connect("t")
    shard.enqueue("a"), shard.credit(1, "t"), shard.place("a", "t")
    assert withdrawn_offers(shard.withdraw("a")) == [("t", ("a",))]
    assert withdrawn_offers(shard.withdraw("a")) == []


def test_recent_leases_expire(shard):
    shard.enqueue("a"), shard.credit(1), shard.place("a")
    shard.pass_time(LEASE_MEMORY_S)
    assert repr(shard.book) == "<TicketBook 0 waiting, 0 offered, 0 placed>"
    assert withdrawn_offers(shard.withdraw("a")) == []


def test_the_loss_of_an_edge_removes_only_its_tickets(shard):
    shard.enqueue("waits", edge="e"), shard.enqueue("other", edge="f")
    (
        shard.enqueue("offered", edge="e", enqueued=START_UNIX_S - 2),
        shard.enqueue("leased", edge="e", enqueued=START_UNIX_S - 3),
    )
    assert shard.credit(2) == ["leased", "offered"]
    shard.place("leased")
    effects = shard.record(shard.book.on_edge_disconnected("e"))
    assert {ticket_id for _, ids in withdrawn_offers(effects) for ticket_id in ids} == {"offered", "leased"}
    assert repr(shard.book) == "<TicketBook 1 waiting, 0 offered, 0 placed>"
    assert shard.credit(5) == ["other"]
