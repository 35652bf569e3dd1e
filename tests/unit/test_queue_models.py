"""Availability of models in the ticket book, and the heads that schedulers receive."""

from penstock.chassis.errors import NotFound
from penstock.queue import effects as out
from penstock.queue.models.model_queue import MAX_UNSERVED_QUEUES
from penstock.queue.policies.policy import SortKey
from penstock.queue.tickets.poison_scans import MAX_DROPPED_PER_SLICE
from queue_tickets import (
    INTERACTIVE,
    MODEL_TIMEOUT_S,
    START_UNIX_S,
    WARM_UP_S,
    ShardDriver,
    only,
    sheds,
)

# Models.


def test_an_unserved_model_is_unknown_after_the_warm_up(shard):
    shard.pass_time(WARM_UP_S)
    error = only(out.Shed, shard.enqueue("a", model="x")).error
    assert (isinstance(error, NotFound), error.reason) == (True, "MODEL_UNKNOWN")


def test_any_model_is_awaited_during_the_warm_up():
    shard = ShardDriver()
    shard.connect(models=("other",))
    assert sheds(shard.enqueue("a")) == {}
    shard.connect("t")
    assert shard.credit(1, "t") == ["a"]


def test_tickets_wait_for_a_scheduler_that_reconnects(shard):
    shard.enqueue("before")
    shard.pass_time(60)
    shard.disconnect("s")
    assert sheds(shard.enqueue("after", enqueued=START_UNIX_S + 60)) == {}
    shard.pass_time(MODEL_TIMEOUT_S - 1)
    shard.connect("t")
    assert sheds(shard.pass_time(60)) == {}
    assert shard.credit(5, "t") == ["before", "after"]


def test_a_model_that_moves_between_schedulers_stays_available(shard):
    shard.connect("t", models=("other",))
    shard.pass_time(60)
    shard.serve("s", ())
    assert sheds(shard.enqueue("a")) == {}
    shard.serve("t", ("m", "other"))
    assert shard.credit(1, "t") == ["a"]


def test_tickets_for_an_unavailable_model_are_shed_after_a_timeout(shard):
    shard.enqueue("a"), shard.disconnect("s")
    assert sheds(shard.pass_time(MODEL_TIMEOUT_S - 0.1)) == {}
    assert sheds(shard.pass_time(0.1)) == {"a": "NO_WORKER"}
    assert only(out.Shed, shard.effects).error.retry_after == MODEL_TIMEOUT_S


def test_sheds_of_a_timed_out_model_are_spread_over_ticks_and_stop_when_it_is_served():
    shard = ShardDriver(max_depth=10_000)
    shard.connect()
    for number in range(MAX_DROPPED_PER_SLICE + 2):
        shard.enqueue(f"t{number}")
    shard.disconnect("s")
    assert len(sheds(shard.pass_time(MODEL_TIMEOUT_S))) == MAX_DROPPED_PER_SLICE
    shard.connect("t")
    assert sheds(shard.pass_time(0.05)) == {}
    assert shard.credit(5, "t") == [f"t{MAX_DROPPED_PER_SLICE}", f"t{MAX_DROPPED_PER_SLICE + 1}"]


def test_tickets_for_a_timed_out_model_are_rejected_at_once(shard):
    shard.disconnect("s"), shard.pass_time(MODEL_TIMEOUT_S)
    assert sheds(shard.enqueue("b")) == {"b": "NO_WORKER"}


def test_a_returned_offer_for_a_lost_model_waits_for_the_timeout(shard):
    shard.enqueue("a"), shard.credit(1)
    shard.serve("s", ()), shard.pass_time(MODEL_TIMEOUT_S)
    shard.decline("a")
    assert sheds(shard.pass_time(MODEL_TIMEOUT_S - 0.1)) == {}
    assert sheds(shard.pass_time(0.1)) == {"a": "NO_WORKER"}


def test_the_catalog_is_the_union_over_schedulers_and_sent_on_change(shard):
    shard.effects.clear()
    shard.connect("t", models=("m", "n"))
    entries = only(out.CatalogUpdate, shard.effects).entries
    assert [(each.model, each.workers_hint) for each in entries] == [("m", 2), ("n", 1)]
    shard.effects.clear()
    shard.serve("t", ("m", "n"))
    assert shard.effects == []
    shard.disconnect("t")
    assert [(each.model, each.workers_hint) for each in only(out.CatalogUpdate, shard.effects).entries] == [("m", 1)]


def test_a_changed_number_of_workers_is_sent_once_at_the_next_tick(shard):
    shard.effects.clear()
    shard.connect("t", models=("m",))
    shard.connect("u", models=("m",))
    assert shard.effects == []
    shard.pass_time(0.05)
    assert [(each.model, each.workers_hint) for each in only(out.CatalogUpdate, shard.effects).entries] == [("m", 3)]
    shard.effects.clear()
    shard.pass_time(0.05)
    assert shard.effects == []


def test_a_connecting_edge_receives_the_catalog(shard):
    assert [each.model for each in only(out.CatalogUpdate, shard.book.on_edge_connected("new")).entries] == ["m"]


# Heads.


def test_a_head_is_sent_once_per_change(shard):
    shard.heads()
    shard.enqueue("a", tokens=100, enqueued=START_UNIX_S + 1)
    assert shard.heads() == [out.Head("s", "m", 1, 100, SortKey(2, 0.0, START_UNIX_S + 1))]
    shard.enqueue("a")
    assert shard.heads() == []
    shard.enqueue("b", tokens=50, priority=INTERACTIVE, enqueued=START_UNIX_S + 2)
    assert shard.heads() == [out.Head("s", "m", 2, 150, SortKey(1, 0.0, START_UNIX_S + 2))]
    shard.withdraw("a", "b")
    assert shard.heads() == [out.Head("s", "m", 0, 0, None)]


def test_after_an_offer_the_head_is_sent_even_if_unchanged(shard):
    shard.enqueue("a"), shard.heads()
    shard.credit(1), shard.enqueue("b")
    assert shard.heads() == [out.Head("s", "m", 1, 100, SortKey(2, 110.0, START_UNIX_S))]


def test_tickets_that_are_offered_at_once_cause_no_head(shard):
    shard.credit(5), shard.heads()
    shard.enqueue("a"), shard.place("a")
    assert shard.heads() == []


def test_heads_are_sent_only_to_schedulers_of_the_model(shard):
    shard.connect("t", models=("n",))
    shard.enqueue("a")
    assert [head.scheduler for head in shard.heads()] == ["s"]


def test_a_connecting_scheduler_receives_the_heads(shard):
    shard.enqueue("a"), shard.heads()
    shard.connect("t")
    assert {head.scheduler: head.waiting for head in shard.heads()} == {"s": 1, "t": 1}


# Versions of a model.


def test_a_ticket_is_offered_to_schedulers_of_its_version_only(shard):
    shard.serve("s", ("m@new",))
    shard.connect("t", models=("m@old",))
    shard.enqueue("a", model="m@old")
    assert shard.credit(1, "s", model="m@new") == []
    assert shard.credit(1, "t", model="m@old") == ["a"]


def test_errors_name_the_model_as_callers_know_it(shard):
    shard.pass_time(WARM_UP_S)
    error = only(out.Shed, shard.enqueue("a", model="m@unknown")).error
    assert error.metadata == {"model": "m"}
    assert "'m'" in error.message


def test_queues_of_replaced_versions_do_not_accumulate(shard):
    for number in range(2 * MAX_UNSERVED_QUEUES):
        shard.serve("s", (f"m@{number}",))
        shard.enqueue(f"t{number}", model=f"m@{number}")
        assert shard.credit(1, model=f"m@{number}") == [f"t{number}"]
    assert len(list(shard.book.model_queues)) <= MAX_UNSERVED_QUEUES + 2


def test_a_queue_with_waiting_tickets_is_kept(shard):
    shard.serve("s", ("m@kept",))
    shard.enqueue("a", model="m@kept")
    for number in range(2 * MAX_UNSERVED_QUEUES):
        shard.serve("s", ("m@kept", f"m@{number}"))
        shard.enqueue(f"t{number}", model=f"m@{number}")
        shard.credit(1, model=f"m@{number}")
    assert shard.credit(1, model="m@kept") == ["a"]
