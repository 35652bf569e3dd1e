"""What becomes of a ticket: waiting, offered, leased, shed, withdrawn."""

import pytest

from penstock.chassis.errors import DeadlineExceeded, NotFound, Overloaded, Unavailable
from penstock.queue import effects as out
from penstock.queue.moves import DROPS
from penstock.queue.policies.order import Key
from penstock.queue.timers import PAUSE
from queue_tickets import (
    BATCH,
    INTERACTIVE,
    MEMORY,
    PATIENCE,
    START,
    WARM_UP,
    Shard,
    leased,
    offered,
    only,
    recalls,
    sheds,
)


@pytest.fixture
def shard():
    shard = Shard()
    shard.join()
    return shard


# Enqueue.


def test_a_ticket_waits_and_hears_how_many_are_ahead(shard):
    assert shard.enqueue("a") == [out.Queued("e", "a", 0, None)]
    assert shard.enqueue("b") == [out.Queued("e", "b", 1, None)]
    assert repr(shard.book) == "<TicketBook 2 waiting, 0 offered, 0 placed>"


def test_the_predicted_wait_is_the_work_ahead_at_the_measured_rate(shard):
    shard.credit(0, rate=50.0)
    shard.enqueue("a", tokens=100), shard.enqueue("b", tokens=300)
    assert only(out.Queued, shard.enqueue("c")).predicted_wait == pytest.approx(400 / 50)


def test_without_a_rate_from_schedulers_the_pace_of_grants_predicts(shard):
    shard.enqueue("first", tokens=100)
    for number in range(20):
        shard.enqueue(f"t{number}", tokens=100)
        assert shard.credit(1)
        shard.place(shard.said[-1].ticket.ticket_id)
        shard.now += 0.5
    wait = only(out.Queued, shard.enqueue("last")).predicted_wait
    assert wait == pytest.approx(100 / 200, rel=0.15)  # one waits; 200 tokens left per second


def test_the_same_attempt_again_changes_nothing(shard):
    shard.enqueue("a"), shard.enqueue("a")
    assert shard.credit(5) == ["a"]
    assert shard.enqueue("a") == [out.Queued("e", "a", 0, None)]
    assert repr(shard.book) == "<TicketBook 0 waiting, 1 offered, 0 placed>"


def test_a_newer_attempt_replaces_the_older_and_recalls_its_offer(shard):
    shard.enqueue("a"), shard.credit(1)
    effects = shard.enqueue("a", attempt=2)
    assert recalls(effects) == [("s", ("a",))]
    assert repr(shard.book) == "<TicketBook 1 waiting, 0 offered, 0 placed>"


def test_a_ticket_moves_over_to_its_edges_new_stream(shard):
    shard.enqueue("a", edge="e"), shard.enqueue("a", edge="f")
    shard.hear(shard.book.edge_lost("e"))
    assert shard.credit(1) == ["a"]
    assert leased(shard.place("a")) == ["lease"]
    assert only(out.Leased, shard.said).edge == "f"


def test_an_enqueue_after_the_lease_recalls_the_lease(shard):
    shard.enqueue("a"), shard.credit(1), shard.place("a")
    assert recalls(shard.enqueue("a", attempt=2)) == [("s", ("a",))]
    assert shard.credit(1) == ["a"]


# Offers and leases.


def test_a_placed_ticket_is_leased_to_its_edge_and_forgotten(shard):
    shard.enqueue("a"), shard.credit(1)
    shard.now += 2.5
    placed = shard.place("a")
    assert (leased(placed), only(out.Leased, placed).waited) == (["lease"], 2.5)
    assert only(out.Left, placed).reason == ""
    assert repr(shard.book) == "<TicketBook 0 waiting, 0 offered, 1 placed>"
    assert shard.book.tally.leased == 1


def test_the_wait_of_a_resumed_ticket_is_that_of_its_present_attempt(shard):
    shard.now += 60
    shard.enqueue("a", attempt=2, enqueued=START), shard.credit(1)
    shard.now += 1
    assert only(out.Leased, shard.place("a", attempt=2)).waited == pytest.approx(1.0)


def test_no_more_is_offered_than_there_is_credit_for(shard):
    for number in range(5):
        shard.enqueue(f"t{number}")
    assert shard.credit(2) == ["t0", "t1"]
    assert shard.credit(1) == ["t2"]


def test_credit_for_one_model_is_for_no_other(shard):
    shard.serve("s", ["m", "n"])
    shard.enqueue("a", model="n")
    assert shard.credit(5, model="m") == []
    assert shard.credit(1, model="n") == ["a"]


def test_credit_given_once_comes_back_where_it_finds_no_ticket(shard):
    shard.enqueue("a")
    assert shard.credit(3, once=True) == ["a"]
    assert shard.said[-1] == out.Returned("s", "m", 2)
    assert offered(shard.enqueue("b")) == []


def test_once_is_answered_even_when_all_was_used(shard):
    shard.enqueue("a")
    shard.credit(1, once=True)
    assert shard.said[-1] == out.Returned("s", "m", 0)


def test_a_decline_for_lack_of_capacity_voids_the_other_credit(shard):
    shard.credit(5)
    shard.enqueue("a"), shard.decline("a")
    assert shard.book.seats.credit == 0
    assert shard.credit(1) == ["a"]


def test_a_ticket_that_is_declined_again_and_again_pauses_and_lets_others_by(shard):
    shard.enqueue("a"), shard.enqueue("b")
    for _ in range(2):
        assert shard.credit(1) == ["a"]
        shard.decline("a")
    assert shard.book.shelves.waiting.tickets == 2
    assert shard.credit(1) == ["b"]
    assert shard.credit(1) == []
    assert offered(shard.wait(PAUSE)) == ["a"]


def test_a_pausing_ticket_can_be_withdrawn(shard):
    shard.enqueue("a")
    for _ in range(2):
        shard.credit(1), shard.decline("a")
    shard.withdraw("a")
    assert shard.wait(PAUSE) == []
    assert repr(shard.book) == "<TicketBook 0 waiting, 0 offered, 0 placed>"


def test_a_ticket_that_no_worker_can_ever_run_is_shed_for_good(shard):
    shard.enqueue("a", tokens=10_000), shard.credit(1)
    error = only(out.Shed, shard.decline("a", "NO_WORKER")).error
    assert (type(error).__mro__[1], error.reason, error.retry_after) == (Unavailable, "NO_WORKER", None)
    assert "10000 tokens" in error.message


def test_what_one_scheduler_cannot_ever_run_goes_to_another_and_only_there(shard):
    shard.join("t")
    shard.enqueue("a"), shard.credit(1, "s")
    assert sheds(shard.decline("a", "NO_WORKER", "s")) == {}
    shard.enqueue("b")
    assert shard.credit(2, "s") == ["b"]
    assert shard.credit(1, "t") == ["a"]


def test_a_ticket_is_shed_once_every_scheduler_has_refused_it(shard):
    shard.join("t")
    shard.enqueue("a"), shard.credit(1, "s"), shard.decline("a", "NO_WORKER", "s")
    shard.credit(1, "t")
    assert sheds(shard.decline("a", "NO_WORKER", "t")) == {"a": "NO_WORKER"}


def test_a_ticket_is_shed_when_the_last_that_might_run_it_is_lost(shard):
    shard.join("t")
    shard.enqueue("a"), shard.credit(1, "s"), shard.decline("a", "NO_WORKER", "s")
    shard.credit(1, "t")
    assert sheds(shard.lose("t")) == {"a": "NO_WORKER"}


def test_a_refusal_is_forgotten_when_the_scheduler_has_other_workers(shard):
    shard.join("t")
    shard.enqueue("a"), shard.credit(1, "s"), shard.decline("a", "NO_WORKER", "s")
    shard.serve("s", ["m"])
    assert shard.credit(1, "s") == ["a"]


def test_a_scheduler_with_other_workers_is_asked_again_for_the_credit_it_gave(shard):
    shard.join("t")
    shard.credit(2, "s"), shard.enqueue("a"), shard.decline("a", "NO_WORKER", "s")
    shard.said.clear()
    shard.serve("s", ["m"])
    assert offered(shard.said) == ["a"]


def test_what_failed_under_every_worker_hears_that_and_when_to_retry(shard):
    shard.enqueue("a", avoid_workers=("w1", "w2"), attempt=3), shard.credit(1)
    error = only(out.Shed, shard.decline("a", "NO_WORKER")).error
    assert "2 workers" in error.message
    assert error.retry_after == PATIENCE


# Withdrawal.


def test_a_withdrawn_ticket_is_never_offered(shard):
    shard.enqueue("a"), shard.enqueue("b")
    assert shard.withdraw("a")[-1] == out.Withdrawn("e", ("a",))
    assert shard.credit(5) == ["b"]


def test_withdrawing_what_is_not_there_is_acknowledged_as_well(shard):
    assert shard.withdraw("x", "y") == [out.Withdrawn("e", ("x", "y"))]


def test_withdrawing_an_offered_ticket_recalls_it_and_voids_the_place(shard):
    shard.enqueue("a"), shard.credit(1)
    assert recalls(shard.withdraw("a")) == [("s", ("a",))]
    assert shard.place("a") == []
    assert repr(shard.book) == "<TicketBook 0 waiting, 0 offered, 0 placed>"


def test_the_answer_to_an_offer_taken_back_does_not_count_for_the_next_offer(shard):
    shard.enqueue("a"), shard.credit(1), shard.withdraw("a")
    shard.enqueue("a")
    assert shard.credit(1) == ["a"]
    assert shard.place("a", lease_id="of the first offer") == []
    assert leased(shard.place("a", lease_id="of the second")) == ["of the second"]


def test_withdrawing_a_leased_ticket_recalls_the_lease_where_it_was_placed(shard):
    shard.join("t")
    shard.enqueue("a"), shard.credit(1, "t"), shard.place("a", "t")
    assert recalls(shard.withdraw("a")) == [("t", ("a",))]
    assert recalls(shard.withdraw("a")) == []


def test_a_lease_is_remembered_only_for_as_long_as_it_may_not_have_started(shard):
    shard.enqueue("a"), shard.credit(1), shard.place("a")
    shard.wait(MEMORY)
    assert repr(shard.book) == "<TicketBook 0 waiting, 0 offered, 0 placed>"
    assert recalls(shard.withdraw("a")) == []


def test_a_lost_edge_takes_its_tickets_along_and_no_others(shard):
    shard.enqueue("waits", edge="e"), shard.enqueue("other", edge="f")
    shard.enqueue("offered", edge="e", enqueued=START - 2), shard.enqueue("leased", edge="e", enqueued=START - 3)
    assert shard.credit(2) == ["leased", "offered"]
    shard.place("leased")
    effects = shard.hear(shard.book.edge_lost("e"))
    assert {ticket_id for _, ids in recalls(effects) for ticket_id in ids} == {"offered", "leased"}
    assert repr(shard.book) == "<TicketBook 1 waiting, 0 offered, 0 placed>"
    assert shard.credit(5) == ["other"]


# Bounds.


def test_a_full_queue_refuses_with_the_time_in_which_what_waits_is_served():
    shard = Shard(max_depth=2)
    shard.join()
    shard.credit(0, rate=100.0)
    shard.enqueue("a", tokens=150), shard.enqueue("b", tokens=150)
    error = only(out.Shed, shard.enqueue("c")).error
    assert isinstance(error, Overloaded)
    assert (error.reason, error.retry_after) == ("QUEUE_FULL", 3.0)
    assert shard.book.tally.shed == {"QUEUE_FULL": 1}


def test_tokens_are_bounded_as_tickets_are():
    shard = Shard(max_tokens=1_000)
    shard.join()
    shard.enqueue("a", tokens=900)
    assert sheds(shard.enqueue("b", tokens=101)) == {"b": "QUEUE_TOKENS_FULL"}
    assert sheds(shard.enqueue("c", tokens=100)) == {}


def test_what_is_offered_does_not_count_against_the_bounds():
    shard = Shard(max_depth=1)
    shard.join()
    shard.credit(1)
    shard.enqueue("offered")
    assert sheds(shard.enqueue("waits")) == {}
    assert sheds(shard.enqueue("refused")) == {"refused": "QUEUE_FULL"}


def test_resumed_work_is_let_in_above_the_bounds():
    shard = Shard(max_depth=1)
    shard.join()
    shard.enqueue("a")
    assert sheds(shard.enqueue("b", attempt=2)) == {}


def test_a_higher_class_takes_the_place_of_the_newest_of_the_lowest():
    shard = Shard(max_depth=3)
    shard.join()
    shard.enqueue("old", priority=BATCH, enqueued=START), shard.enqueue("new", priority=BATCH, enqueued=START + 1)
    shard.enqueue("standard")
    assert sheds(shard.enqueue("first", priority=INTERACTIVE)) == {"new": "EVICTED"}
    assert sheds(shard.enqueue("second", priority=INTERACTIVE)) == {"old": "EVICTED"}
    assert sheds(shard.enqueue("third", priority=INTERACTIVE)) == {"standard": "EVICTED"}
    assert sheds(shard.enqueue("fourth", priority=INTERACTIVE)) == {"fourth": "QUEUE_FULL"}


def test_a_large_ticket_evicts_as_many_as_it_needs_of_whatever_model():
    shard = Shard(max_tokens=1_000)
    shard.join(models=("m", "n"))
    for number in range(10):
        shard.enqueue(f"t{number}", priority=BATCH, model="mn"[number % 2], enqueued=START + number)
    effects = shard.enqueue("large", tokens=250, priority=INTERACTIVE)
    assert list(sheds(effects)) == ["t9", "t8", "t7"]
    assert shard.book.shelves.waiting.tokens == 950


def test_nobody_is_evicted_in_vain():
    shard = Shard(max_tokens=1_000)
    shard.join()
    shard.enqueue("standard", tokens=900), shard.enqueue("batch", tokens=100, priority=BATCH)
    effects = shard.enqueue("large", tokens=1_001, priority=INTERACTIVE)
    assert sheds(effects) == {"large": "QUEUE_TOKENS_FULL"}
    assert shard.book.shelves.waiting.tickets == 2


# Deadlines.


def test_a_waiting_ticket_is_shed_at_its_deadline_and_not_before(shard):
    shard.enqueue("a", deadline=START + 3)
    assert shard.wait(2.9) == []
    error = only(out.Shed, shard.wait(0.1)).error
    assert (isinstance(error, DeadlineExceeded), error.reason) == (True, "DEADLINE")


def test_an_offered_ticket_past_its_deadline_is_recalled_as_well(shard):
    shard.enqueue("a", deadline=START + 1), shard.credit(1)
    effects = shard.wait(1.0)
    assert (sheds(effects), recalls(effects)) == ({"a": "DEADLINE"}, [("s", ("a",))])
    assert shard.place("a") == []


def test_a_ticket_that_comes_too_late_is_refused_at_once(shard):
    assert sheds(shard.enqueue("a", deadline=START - 1)) == {"a": "DEADLINE"}


def test_many_deadlines_at_once_are_spread_over_ticks():
    shard = Shard(max_depth=10_000)
    shard.join()
    for number in range(2 * DROPS + 1):
        shard.enqueue(f"t{number}", deadline=START + 1)
    assert [len(sheds(shard.wait(seconds))) for seconds in (1.0, 0.05, 0.05, 0.05)] == [DROPS, DROPS, 1, 0]


def test_deadlines_of_tickets_that_left_do_not_pile_up(shard):
    for number in range(5_000):
        shard.enqueue(f"t{number}", deadline=START + 3_600), shard.withdraw(f"t{number}")
    assert len(shard.book._moves.timers.dues) < 200


# Models.


def test_a_model_that_nobody_serves_is_unknown_once_the_shard_is_warm(shard):
    shard.wait(WARM_UP)
    error = only(out.Shed, shard.enqueue("a", model="x")).error
    assert (isinstance(error, NotFound), error.reason) == (True, "MODEL_UNKNOWN")


def test_right_after_the_start_any_model_may_be_about_to_come():
    shard = Shard()
    shard.join(models=("other",))
    assert sheds(shard.enqueue("a")) == {}
    shard.join("t")
    assert shard.credit(1, "t") == ["a"]


def test_tickets_wait_for_a_scheduler_that_is_gone_for_a_moment(shard):
    shard.enqueue("before")
    shard.wait(60)
    shard.lose("s")
    assert sheds(shard.enqueue("after", enqueued=START + 60)) == {}
    shard.wait(PATIENCE - 1)
    shard.join("t")
    assert sheds(shard.wait(60)) == {}
    assert shard.credit(5, "t") == ["before", "after"]


def test_a_model_that_moved_from_one_scheduler_to_another_was_never_unknown(shard):
    shard.join("t", models=("other",))
    shard.wait(60)
    shard.serve("s", ())
    assert sheds(shard.enqueue("a")) == {}
    shard.serve("t", ("m", "other"))
    assert shard.credit(1, "t") == ["a"]


def test_tickets_do_not_wait_for_ever_for_a_model_that_stays_away(shard):
    shard.enqueue("a"), shard.lose("s")
    assert sheds(shard.wait(PATIENCE - 0.1)) == {}
    assert sheds(shard.wait(0.1)) == {"a": "NO_WORKER"}
    assert only(out.Shed, shard.said).error.retry_after == PATIENCE


def test_those_who_wait_in_vain_are_told_in_turns_and_no_more_once_the_model_is_back():
    shard = Shard(max_depth=10_000)
    shard.join()
    for number in range(DROPS + 2):
        shard.enqueue(f"t{number}")
    shard.lose("s")
    assert len(sheds(shard.wait(PATIENCE))) == DROPS
    shard.join("t")
    assert sheds(shard.wait(0.05)) == {}
    assert shard.credit(5, "t") == [f"t{DROPS}", f"t{DROPS + 1}"]


def test_once_a_model_stays_away_newcomers_hear_so_at_once(shard):
    shard.lose("s"), shard.wait(PATIENCE)
    assert sheds(shard.enqueue("b")) == {"b": "NO_WORKER"}


def test_an_offer_that_comes_back_after_its_model_went_waits_for_a_bounded_time(shard):
    shard.enqueue("a"), shard.credit(1)
    shard.serve("s", ()), shard.wait(PATIENCE)
    shard.decline("a")
    assert sheds(shard.wait(PATIENCE - 0.1)) == {}
    assert sheds(shard.wait(0.1)) == {"a": "NO_WORKER"}


def test_the_catalog_is_the_union_over_schedulers_and_told_on_change_alone(shard):
    shard.said.clear()
    shard.join("t", models=("m", "n"))
    entries = only(out.Models, shard.said).entries
    assert [(each.model, each.workers_hint) for each in entries] == [("m", 2), ("n", 1)]
    shard.said.clear()
    shard.serve("t", ("m", "n"))
    assert shard.said == []
    shard.lose("t")
    assert [(each.model, each.workers_hint) for each in only(out.Models, shard.said).entries] == [("m", 1)]


def test_an_edge_that_joins_hears_the_catalog(shard):
    assert [each.model for each in only(out.Models, shard.book.edge_joined("new")).entries] == ["m"]


# Heads.


def test_the_head_is_told_when_it_changes_and_not_again(shard):
    shard.heads()
    shard.enqueue("a", tokens=100, enqueued=START + 1)
    assert shard.heads() == [out.Head("s", "m", 1, 100, Key(2, 0.0, START + 1))]
    shard.enqueue("a")
    assert shard.heads() == []
    shard.enqueue("b", tokens=50, priority=INTERACTIVE, enqueued=START + 2)
    assert shard.heads() == [out.Head("s", "m", 2, 150, Key(1, 0.0, START + 2))]
    shard.withdraw("a", "b")
    assert shard.heads() == [out.Head("s", "m", 0, 0, None)]


def test_after_an_offer_the_head_is_told_even_where_it_looks_the_same(shard):
    shard.enqueue("a"), shard.heads()
    shard.credit(1), shard.enqueue("b")
    assert shard.heads() == [out.Head("s", "m", 1, 100, Key(2, 110.0, START))]


def test_tickets_that_pass_through_at_once_make_no_noise(shard):
    shard.credit(5), shard.heads()
    shard.enqueue("a"), shard.place("a")
    assert shard.heads() == []


def test_heads_go_to_those_alone_that_can_place_the_model(shard):
    shard.join("t", models=("n",))
    shard.enqueue("a")
    assert [head.scheduler for head in shard.heads()] == ["s"]


def test_a_scheduler_that_joins_hears_what_waits(shard):
    shard.enqueue("a"), shard.heads()
    shard.join("t")
    assert {head.scheduler: head.waiting for head in shard.heads()} == {"s": 1, "t": 1}
