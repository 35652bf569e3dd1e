"""Whom workers blame for crashed engines, from the worker that finds it out to the shard that refuses the next one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.chassis.clocks import StallFreeClock
from penstock.edge.lifecycle.plan import GenerationPlan
from penstock.edge.upstreams.hashing import poison_fingerprint
from penstock.mesh.v1.ticket_pb2 import PoisonReport
from penstock.queue import effects as out
from penstock.queue.poison import LOST_REPORT_TTL_S, REPORT_DELAY_S
from penstock.queue.poison import PoisonRequests as ShardBlames
from penstock.queue.tickets.expirations import DECLINE_PAUSE_S
from penstock.scheduler.poison import PoisonReports
from penstock.v1.inference_pb2 import Sampling
from penstock.worker.quarantine.poison_list import MAX_CONFIRMED, PoisonList
from penstock.worker.runs import errors
from penstock.worker.runs.effects import AddSequence, RunEnded
from queue_tickets import START_UNIX_S, ShardDriver, entry, leased, sheds, ticket, withdrawn_offers
from worker_runs import LIMITS, expect, make_run, ready_table, rejection_reason, started_run, step_result

SALT = b"tenant"


def plan(**changes):
    sampling = Sampling(temperature=1.0, seed=changes.pop("seed", 1))
    given = {"model": "m", "prompt_ids": [1, 2, 3], "max_output_tokens": 4, "sampling": sampling, "detokenizer": None}
    return GenerationPlan(**{**given, **changes})


def test_what_a_client_sends_again_has_the_same_fingerprint_whatever_its_seed_and_length():
    first = poison_fingerprint(SALT, plan())
    assert first == poison_fingerprint(SALT, plan(seed=2, max_output_tokens=9, resumed_ids=[7]))
    assert 0 < first < 2**64


@pytest.mark.parametrize("changes", [{"prompt_ids": [1, 2]}, {"model": "n"}, {"ignore_eos": True}])
def test_another_request_has_another_fingerprint(changes):
    assert poison_fingerprint(SALT, plan(**changes)) != poison_fingerprint(SALT, plan())
    assert poison_fingerprint(b"another", plan()) != poison_fingerprint(SALT, plan())


def book_with_suspect(fingerprint=5):
    """A book whose engine crashed under one run."""
    book = ready_table()
    book.quarantine.max_wait_s = 30.0
    run = started_run(book)
    run.fingerprint = fingerprint
    book.on_engine_lost(errors.engine_died(), 1.0, crashed=True)
    return book, run


def test_a_suspect_is_named_while_it_is_tried_and_once_it_is_found_guilty():
    book, _ = book_with_suspect()
    assert book.quarantine.poison_reports(1.0) == [(5, False, 30.0)]
    book.on_engine_ready(LIMITS)
    assert book.quarantine.poison_reports(2.0) == [(5, False, 30.0)]
    book.on_engine_lost(errors.engine_died(), 3.0, crashed=True)
    assert book.quarantine.poison_reports(3.0) == [(5, True, 600.0)]
    assert book.quarantine.poison_reports(603.0) == []


def test_what_is_the_same_as_the_guilty_is_not_tried_as_well():
    book = ready_table()
    runs = [started_run(book, handle=h, lease=f"l{h}", ticket=f"t{h}") for h in (1, 2, 3)]
    for run, fingerprint in zip(runs, (5, 5, 6), strict=True):
        run.fingerprint = fingerprint
    book.on_engine_lost(errors.engine_died(), 1.0, crashed=True)
    book.on_engine_ready(LIMITS)
    ended = book.on_engine_lost(errors.engine_died(), 2.0, crashed=True)
    told = {each.run.handle: each.outcome.reason for each in ended if isinstance(each, RunEnded)}
    assert told == {1: "ENGINE_CRASHED", 2: "ENGINE_CRASHED"}
    assert book.quarantine.isolation.pending == [runs[2]]


def test_a_suspect_that_is_acquitted_is_named_no_more():
    book, run = book_with_suspect()
    book.on_engine_ready(LIMITS)
    book.on_step(step_result(1, run), 1.0, 2.0)
    assert book.quarantine.poison_reports(2.0) == []


def test_the_guilty_are_refused_when_they_come_again():
    book, _ = book_with_suspect()
    book.on_engine_ready(LIMITS)
    book.on_engine_lost(errors.engine_died(), 3.0, crashed=True)
    book.on_engine_ready(LIMITS)
    again = make_run(book, lease="l2", ticket="t2")
    again.fingerprint = 5
    expect(book, "l2", "t2")
    assert rejection_reason(book.start(again, 4.0)) == "ENGINE_CRASHED"


def test_a_suspect_is_tried_though_its_client_left_and_nobody_hears_of_it():
    book, run = book_with_suspect()
    ended, _ = book.cancel(run.stream, run.handle, 1.5)
    assert ended.is_reported
    assert not book.is_idle
    [tried] = book.on_engine_ready(LIMITS)
    assert isinstance(tried, AddSequence)
    [ghost] = book.on_engine_lost(errors.engine_died(), 3.0, crashed=True)
    assert isinstance(ghost, RunEnded)
    assert not ghost.is_reported
    assert book.quarantine.poison_reports(3.0)[0].is_confirmed
    assert book.is_idle


def test_only_so_many_guilty_are_remembered():
    blames = PoisonList()
    for number in range(1, MAX_CONFIRMED + 3):
        run = make_run(ready_table())
        run.fingerprint = number
        blames.confirm(run, 0.0)
    found = {each.fingerprint for each in blames.reports([], 0.0, 1.0)}
    assert found == set(range(3, MAX_CONFIRMED + 3))


def said(fingerprint, *, is_guilty=False, lasts=10):
    blame = PoisonReport(fingerprint=fingerprint, is_confirmed=is_guilty)
    blame.ttl.seconds = lasts
    return blame


def named(book):
    return {each.fingerprint: each.is_confirmed for each in book.merged()}


def test_what_a_worker_said_holds_until_it_says_something_else_or_its_time_is_over():
    book = PoisonReports()
    assert book.apply("w0", [said(1), said(2)], 0.0)
    assert not book.apply("w0", [said(1), said(2)], 1.0)
    assert book.apply("w1", [said(2, is_guilty=True, lasts=20)], 1.0)
    assert named(book) == {1: False, 2: True}
    assert not book.expire(10.9)
    assert book.expire(11.0)
    assert named(book) == {2: True}
    assert book.apply("w1", [said(3)], 12.0)
    assert book.apply("w1", [], 13.0)
    assert named(book) == {2: True}, "the process has forgotten what the one before it found out"
    assert book.expire(21.0)
    assert named(book) == {}


def shard_blames():
    """What a shard has heard of two schedulers, long after they came."""
    blames = ShardBlames()
    for scheduler in "ab":
        blames.on_scheduler_connected(scheduler, -60.0)
    return blames


def test_a_shard_refuses_the_guilty_for_good_and_has_suspects_asked_for_again():
    blames = shard_blames()
    assert blames.apply("a", [said(1)]) == {1: False}
    assert blames.apply("b", [said(1, is_guilty=True), said(2)]) == {1: True, 2: False}
    assert blames.apply("a", [said(1, is_guilty=True)]) == {}, "that is nothing new"
    assert blames.rejection(1, 0.0).reason == "ENGINE_CRASHED"
    assert blames.rejection(2, 0.0).reason == "SUSPECT"
    assert blames.rejection(2, 0.0).retry_after
    assert blames.rejection(3, 0.0) is None


def test_what_a_lost_scheduler_said_holds_for_a_while_as_it_may_be_back():
    blames = shard_blames()
    blames.apply("a", [said(1, is_guilty=True), said(2)])
    blames.on_scheduler_disconnected("a", 5.0)
    assert [blames.rejection(key, 14.9).reason for key in (1, 2)] == ["ENGINE_CRASHED", "SUSPECT"]
    assert blames.rejection(1, 15.0) is None


@pytest.mark.parametrize("change", ["on_scheduler_connected", "on_scheduler_disconnected"], ids=["connected", "lost"])
@pytest.mark.parametrize("how", [{"avoid_workers": ("w0",)}, {"may_have_run": True}], ids=["worker", "edge"])
def test_a_run_that_was_lost_with_its_worker_or_edge_waits_while_some_worker_may_be_out_of_hearing(how, change):
    blames = shard_blames()
    lost, other = ticket("l", **how), ticket("o")
    assert not blames.is_blocked(lost, 5.0)
    getattr(blames, change)("a", 5.0)
    assert [blames.is_blocked(each, 5.0 + REPORT_DELAY_S - 0.01) for each in (lost, other)] == [True, False]
    assert not blames.is_blocked(lost, 5.0 + REPORT_DELAY_S)


def test_a_shard_that_stood_still_counts_from_where_it_goes_on_whom_it_may_not_have_heard():
    blames = ShardBlames(StallFreeClock(0.5))
    blames.on_scheduler_connected("a", -60.0)
    blames.apply("a", [said(1, is_guilty=True)])
    blames.on_scheduler_disconnected("a", 5.0)
    lost = ticket("l", avoid_workers=("w0",))
    assert blames.is_blocked(lost, 5.0 + REPORT_DELAY_S + 20.0)
    assert blames.rejection(1, 5.0 + LOST_REPORT_TTL_S + 20.0).reason == "ENGINE_CRASHED"


def shard_with_two_waiting():
    shard = ShardDriver()
    shard.connect()
    for ticket_id, fingerprint in (("x", 5), ("y", 6)):
        shard.enqueue(ticket_id, fingerprint=fingerprint)
    return shard


def hear_blames(shard, *blames, scheduler="s"):
    return shard.record(shard.book.on_catalog(scheduler, [entry()], shard.now, blames))


def test_a_ticket_that_waits_is_passed_over_while_it_is_a_suspect_and_keeps_its_place():
    shard = shard_with_two_waiting()
    hear_blames(shard, said(5))
    assert shard.credit(1) == ["y"]
    shard.enqueue("z")
    hear_blames(shard)
    shard.pass_time(DECLINE_PAUSE_S)
    assert shard.credit(1) == ["x"]


def test_a_ticket_that_waits_is_refused_once_it_is_found_guilty():
    shard = shard_with_two_waiting()
    assert sheds(hear_blames(shard, said(5, is_guilty=True))) == {"x": "ENGINE_CRASHED"}
    assert shard.credit(2) == ["y"]


def test_a_ticket_that_is_offered_is_taken_back_once_it_is_found_guilty():
    shard = shard_with_two_waiting()
    assert shard.credit(1) == ["x"]
    assert withdrawn_offers(hear_blames(shard, said(5, is_guilty=True))) == [("s", ("x",))]


@pytest.mark.parametrize("is_guilty", [False, True])
def test_a_lease_that_may_not_have_started_is_taken_back_once_its_ticket_is_blamed(is_guilty):
    shard = shard_with_two_waiting()
    shard.credit(2)
    shard.place("x"), shard.place("y", lease_id="other")
    assert withdrawn_offers(hear_blames(shard, said(5, is_guilty=is_guilty))) == [("s", ("x",))]
    assert withdrawn_offers(hear_blames(shard, said(5, is_guilty=is_guilty))) == []


@pytest.mark.parametrize(("is_guilty", "reason"), [(False, "SUSPECT"), (True, "ENGINE_CRASHED")])
def test_a_lease_whose_scheduler_is_gone_is_taken_back_from_the_edge_that_has_it(is_guilty, reason):
    shard = shard_with_two_waiting()
    shard.connect("t")
    shard.credit(2)
    shard.place("x"), shard.place("y", lease_id="other")
    shard.disconnect("s")
    effects = hear_blames(shard, said(5, is_guilty=is_guilty), scheduler="t")
    assert (sheds(effects), withdrawn_offers(effects)) == ({"x": reason}, [])
    shard.record(shard.book.withdraw("e", ["x"]))
    assert [each.ticket_id for each in shard.book.accounting] == ["y"], "whom nobody runs nobody speaks of"


def test_a_lease_that_comes_for_a_ticket_that_was_blamed_meanwhile_is_given_to_nobody():
    shard = shard_with_two_waiting()
    shard.connect("t")
    shard.credit(2)
    hear_blames(shard, said(5), scheduler="t")
    placed = shard.place("x")
    assert (withdrawn_offers(placed), leased(placed)) == ([("s", ("x",))], [])
    assert leased(shard.place("y")) == ["lease"]
    hear_blames(shard, scheduler="t")
    shard.pass_time(DECLINE_PAUSE_S)
    assert shard.credit(1) == ["x"], "it has waited, and nothing else"
    assert leased(shard.place("x")) == ["lease"]


NEWS = st.tuples(st.just("blame"), st.sampled_from("st"), st.dictionaries(st.integers(1, 4), st.booleans()))
CREDIT = st.tuples(st.just("credit"), st.sampled_from("st"), st.integers(1, 2))
ENQUEUE = st.tuples(st.just("enqueue"), st.integers(1, 4), st.booleans())
WAIT = st.tuples(st.just("wait"), st.sampled_from([0.05, 0.2, 1.0]), st.none())


def step(shard, kind, first, second):
    match kind:
        case "blame":
            blames = [said(key, is_guilty=guilt) for key, guilt in second.items()]
            shard.record(shard.book.on_catalog(first, [entry()], shard.now, blames))
        case "credit":
            shard.credit(second, first)
        case "enqueue":
            name = f"t{len(shard.effects)}"
            shard.enqueue(name, fingerprint=first, avoid_workers=("w0",) if second else ())
        case "wait":
            shard.pass_time(first)


@given(steps=st.lists(NEWS | CREDIT | ENQUEUE | WAIT, max_size=40))
def test_nobody_is_offered_what_a_scheduler_blames_and_nobody_else_is_kept_waiting(steps):
    shard, blamed = ShardDriver(), {"s": {}, "t": {}}
    shard.connect("s")
    shard.connect("t")
    for kind, first, second in steps:
        blamed |= {first: second} if kind == "blame" else {}
        known = len(shard.effects)
        step(shard, kind, first, second)
        for each in shard.effects[known:]:
            if isinstance(each, out.Offer):
                assert not any(each.ticket.fingerprint in found for found in blamed.values())
                assert not each.ticket.avoid_workers or shard.now >= START_UNIX_S + REPORT_DELAY_S
    for scheduler in "st":
        hear_blames(shard, scheduler=scheduler)
    shard.pass_time(REPORT_DELAY_S)
    shard.credit(len(steps))
    assert shard.book.model_queues.waiting.tickets == 0
