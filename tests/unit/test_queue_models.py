"""The book and its models: unknown, away for a moment, gone for good; and the heads that schedulers are told."""

from penstock.chassis.errors import NotFound
from penstock.queue import effects as out
from penstock.queue.policies.policy import SortKey
from penstock.queue.tickets.transitions import MAX_DROPS_PER_TICK
from queue_tickets import (
    INTERACTIVE,
    PATIENCE_S,
    START_UNIX_S,
    WARM_UP_S,
    ShardDriver,
    only,
    sheds,
)

# Models.


def test_a_model_that_nobody_serves_is_unknown_once_the_shard_is_warm(shard):
    shard.pass_time(WARM_UP_S)
    error = only(out.Shed, shard.enqueue("a", model="x")).error
    assert (isinstance(error, NotFound), error.reason) == (True, "MODEL_UNKNOWN")


def test_right_after_the_start_any_model_may_be_about_to_come():
    shard = ShardDriver()
    shard.connect(models=("other",))
    assert sheds(shard.enqueue("a")) == {}
    shard.connect("t")
    assert shard.credit(1, "t") == ["a"]


def test_tickets_wait_for_a_scheduler_that_is_gone_for_a_moment(shard):
    shard.enqueue("before")
    shard.pass_time(60)
    shard.disconnect("s")
    assert sheds(shard.enqueue("after", enqueued=START_UNIX_S + 60)) == {}
    shard.pass_time(PATIENCE_S - 1)
    shard.connect("t")
    assert sheds(shard.pass_time(60)) == {}
    assert shard.credit(5, "t") == ["before", "after"]


def test_a_model_that_moved_from_one_scheduler_to_another_was_never_unknown(shard):
    shard.connect("t", models=("other",))
    shard.pass_time(60)
    shard.serve("s", ())
    assert sheds(shard.enqueue("a")) == {}
    shard.serve("t", ("m", "other"))
    assert shard.credit(1, "t") == ["a"]


def test_tickets_do_not_wait_for_ever_for_a_model_that_stays_away(shard):
    shard.enqueue("a"), shard.disconnect("s")
    assert sheds(shard.pass_time(PATIENCE_S - 0.1)) == {}
    assert sheds(shard.pass_time(0.1)) == {"a": "NO_WORKER"}
    assert only(out.Shed, shard.effects).error.retry_after == PATIENCE_S


def test_those_who_wait_in_vain_are_told_in_turns_and_no_more_once_the_model_is_back():
    shard = ShardDriver(max_depth=10_000)
    shard.connect()
    for number in range(MAX_DROPS_PER_TICK + 2):
        shard.enqueue(f"t{number}")
    shard.disconnect("s")
    assert len(sheds(shard.pass_time(PATIENCE_S))) == MAX_DROPS_PER_TICK
    shard.connect("t")
    assert sheds(shard.pass_time(0.05)) == {}
    assert shard.credit(5, "t") == [f"t{MAX_DROPS_PER_TICK}", f"t{MAX_DROPS_PER_TICK + 1}"]


def test_once_a_model_stays_away_newcomers_hear_so_at_once(shard):
    shard.disconnect("s"), shard.pass_time(PATIENCE_S)
    assert sheds(shard.enqueue("b")) == {"b": "NO_WORKER"}


def test_an_offer_that_comes_back_after_its_model_went_waits_for_a_bounded_time(shard):
    shard.enqueue("a"), shard.credit(1)
    shard.serve("s", ()), shard.pass_time(PATIENCE_S)
    shard.decline("a")
    assert sheds(shard.pass_time(PATIENCE_S - 0.1)) == {}
    assert sheds(shard.pass_time(0.1)) == {"a": "NO_WORKER"}


def test_the_catalog_is_the_union_over_schedulers_and_told_on_change_alone(shard):
    shard.effects.clear()
    shard.connect("t", models=("m", "n"))
    entries = only(out.CatalogUpdate, shard.effects).entries
    assert [(each.model, each.workers_hint) for each in entries] == [("m", 2), ("n", 1)]
    shard.effects.clear()
    shard.serve("t", ("m", "n"))
    assert shard.effects == []
    shard.disconnect("t")
    assert [(each.model, each.workers_hint) for each in only(out.CatalogUpdate, shard.effects).entries] == [("m", 1)]


def test_an_edge_that_joins_hears_the_catalog(shard):
    assert [each.model for each in only(out.CatalogUpdate, shard.book.on_edge_connected("new")).entries] == ["m"]


# Heads.


def test_the_head_is_told_when_it_changes_and_not_again(shard):
    shard.heads()
    shard.enqueue("a", tokens=100, enqueued=START_UNIX_S + 1)
    assert shard.heads() == [out.Head("s", "m", 1, 100, SortKey(2, 0.0, START_UNIX_S + 1))]
    shard.enqueue("a")
    assert shard.heads() == []
    shard.enqueue("b", tokens=50, priority=INTERACTIVE, enqueued=START_UNIX_S + 2)
    assert shard.heads() == [out.Head("s", "m", 2, 150, SortKey(1, 0.0, START_UNIX_S + 2))]
    shard.withdraw("a", "b")
    assert shard.heads() == [out.Head("s", "m", 0, 0, None)]


def test_after_an_offer_the_head_is_told_even_where_it_looks_the_same(shard):
    shard.enqueue("a"), shard.heads()
    shard.credit(1), shard.enqueue("b")
    assert shard.heads() == [out.Head("s", "m", 1, 100, SortKey(2, 110.0, START_UNIX_S))]


def test_tickets_that_pass_through_at_once_make_no_noise(shard):
    shard.credit(5), shard.heads()
    shard.enqueue("a"), shard.place("a")
    assert shard.heads() == []


def test_heads_go_to_those_alone_that_can_place_the_model(shard):
    shard.connect("t", models=("n",))
    shard.enqueue("a")
    assert [head.scheduler for head in shard.heads()] == ["s"]


def test_a_scheduler_that_joins_hears_what_waits(shard):
    shard.enqueue("a"), shard.heads()
    shard.connect("t")
    assert {head.scheduler: head.waiting for head in shard.heads()} == {"s": 1, "t": 1}
