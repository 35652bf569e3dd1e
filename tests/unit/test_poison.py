"""Poison requests, from the worker whose engine crashes to the shard that rejects the next request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.chassis.clocks import StallFreeClock
from penstock.edge.lifecycle.output import GenerationPlan
from penstock.edge.upstreams.hashing import poison_fingerprint
from penstock.mesh.v1.ticket_pb2 import PoisonReport
from penstock.queue import effects as out
from penstock.queue.poison import LOST_REPORT_TTL_S, REPORT_DELAY_S, PoisonRequests
from penstock.queue.tickets.expirations import DECLINE_PAUSE_S
from penstock.scheduler.poison import MAX_REPORTS_PER_WORKER, PoisonReports
from penstock.v1.inference_pb2 import Sampling
from penstock.worker.quarantine.poison_list import MAX_CONFIRMED, MAX_CONFIRMED_PER_TENANT, PoisonList
from penstock.worker.runs import errors
from penstock.worker.runs.effects import AddSequence, RunEnded
from queue_tickets import START_UNIX_S, ShardDriver, entry, leased, sheds, ticket, withdrawn_offers
from worker_runs import LIMITS, expect, make_run, ready_table, rejection_reason, started_run, step_result

SALT = b"tenant"


def plan(**changes):
    sampling = Sampling(temperature=1.0, seed=changes.pop("seed", 1))
    given = {"model": "m", "prompt_ids": [1, 2, 3], "max_output_tokens": 4, "sampling": sampling, "detokenizer": None}
    return GenerationPlan(**{**given, **changes})


def test_a_repeated_request_has_the_same_fingerprint_with_any_seed_and_length():
    first = poison_fingerprint(SALT, plan())
    assert first == poison_fingerprint(SALT, plan(seed=2, max_output_tokens=9, resumed_ids=[7]))
    assert 0 < first < 2**64


@pytest.mark.parametrize("changes", [{"prompt_ids": [1, 2]}, {"model": "n"}, {"ignore_eos": True}])
def test_another_request_has_another_fingerprint(changes):
    assert poison_fingerprint(SALT, plan(**changes)) != poison_fingerprint(SALT, plan())
    assert poison_fingerprint(b"another", plan()) != poison_fingerprint(SALT, plan())


def book_with_suspect(fingerprint=5):
    """A run table whose engine crashed with one run."""
    book = ready_table()
    book.quarantine.max_wait_s = 30.0
    run = started_run(book)
    run.fingerprint = fingerprint
    book.on_engine_lost(errors.engine_died(), 1.0, crashed=True)
    return book, run


def test_a_suspected_request_is_reported_while_tested_and_once_confirmed():
    book, _ = book_with_suspect()
    assert book.quarantine.poison_reports(1.0) == [(5, False, 30.0)]
    book.on_engine_ready(LIMITS, 0.0)
    assert book.quarantine.poison_reports(2.0) == [(5, False, 30.0)]
    book.on_engine_lost(errors.engine_died(), 3.0, crashed=True)
    assert book.quarantine.poison_reports(3.0) == [(5, True, 600.0)]
    assert book.quarantine.poison_reports(603.0) == []


def test_a_request_equal_to_a_confirmed_one_is_not_tested():
    book = ready_table()
    runs = [started_run(book, handle=h, lease=f"l{h}", ticket=f"t{h}") for h in (1, 2, 3)]
    for run, fingerprint in zip(runs, (5, 5, 6), strict=True):
        run.fingerprint = fingerprint
    book.on_engine_lost(errors.engine_died(), 1.0, crashed=True)
    book.on_engine_ready(LIMITS, 0.0)
    ended = book.on_engine_lost(errors.engine_died(), 2.0, crashed=True)
    reasons = {each.run.handle: each.outcome.reason for each in ended if isinstance(each, RunEnded)}
    assert reasons == {1: "ENGINE_CRASHED", 2: "ENGINE_CRASHED"}
    assert book.quarantine.isolation.pending == [runs[2]]


def test_a_cleared_request_is_not_reported_any_more():
    book, run = book_with_suspect()
    book.on_engine_ready(LIMITS, 0.0)
    book.on_step(step_result(1, run), 1.0, 2.0)
    assert book.quarantine.poison_reports(2.0) == []


def test_a_confirmed_request_is_rejected_when_it_is_repeated():
    book, _ = book_with_suspect()
    book.on_engine_ready(LIMITS, 0.0)
    book.on_engine_lost(errors.engine_died(), 3.0, crashed=True)
    book.on_engine_ready(LIMITS, 0.0)
    again = make_run(book, lease="l2", ticket="t2")
    again.fingerprint = 5
    expect(book, "l2", "t2")
    assert rejection_reason(book.start(again, 4.0)) == "ENGINE_CRASHED"


def test_a_suspected_request_is_tested_after_its_client_has_left():
    book, run = book_with_suspect()
    ended, _ = book.cancel(run.stream, run.handle, 1.5)
    assert ended.is_reported
    assert not book.is_idle
    [tried] = book.on_engine_ready(LIMITS, 0.0)
    assert isinstance(tried, AddSequence)
    [orphan] = book.on_engine_lost(errors.engine_died(), 3.0, crashed=True)
    assert isinstance(orphan, RunEnded)
    assert not orphan.is_reported
    assert book.quarantine.poison_reports(3.0)[0].is_confirmed
    assert book.is_idle


def test_a_bounded_number_of_confirmed_requests_is_kept():
    reports = PoisonList()
    for number in range(1, MAX_CONFIRMED + 3):
        run = make_run(ready_table())
        run.fingerprint = number
        reports.confirm(run, 0.0)
    found = {each.fingerprint for each in reports.reports([], 0.0, 1.0)}
    assert found == set(range(3, MAX_CONFIRMED + 3))


def report_of(fingerprint, *, is_confirmed=False, ttl_s=10):
    report = PoisonReport(fingerprint=fingerprint, is_confirmed=is_confirmed)
    report.ttl.seconds = ttl_s
    return report


def confirmed_by_fingerprint(book):
    return {each.fingerprint: each.is_confirmed for each in book.merged()}


def test_the_reports_of_a_worker_are_valid_until_replaced_or_expired():
    book = PoisonReports()
    assert book.apply("w0", [report_of(1), report_of(2)], 0.0)
    assert not book.apply("w0", [report_of(1), report_of(2)], 1.0)
    assert book.apply("w1", [report_of(2, is_confirmed=True, ttl_s=20)], 1.0)
    assert confirmed_by_fingerprint(book) == {1: False, 2: True}
    assert not book.expire(10.9)
    assert book.expire(11.0)
    assert confirmed_by_fingerprint(book) == {2: True}
    assert book.apply("w1", [report_of(3)], 12.0)
    assert book.apply("w1", [], 13.0)
    assert confirmed_by_fingerprint(book) == {2: True}, "a new process does not know the reports of the former one"
    assert book.expire(21.0)
    assert confirmed_by_fingerprint(book) == {}


def test_the_reports_of_a_worker_are_bounded():
    book = PoisonReports()
    for first in range(0, 10_000, 1_000):
        book.apply("w0", [report_of(first + each, is_confirmed=True) for each in range(1, 1_500)], 0.0)
    assert len(confirmed_by_fingerprint(book)) == MAX_REPORTS_PER_WORKER


def shard_requests():
    """The poison requests of a shard with two schedulers that connected long ago."""
    reports = PoisonRequests()
    for scheduler in "ab":
        reports.on_scheduler_connected(scheduler, -60.0)
    return reports


def test_a_shard_rejects_confirmed_requests_and_lets_suspected_ones_retry():
    reports = shard_requests()
    assert reports.apply("a", [report_of(1)]) == {1: False}
    assert reports.apply("b", [report_of(1, is_confirmed=True), report_of(2)]) == {1: True, 2: False}
    assert reports.apply("a", [report_of(1, is_confirmed=True)]) == {}, "unchanged reports are no change"
    assert reports.rejection(1, 0.0).reason == "ENGINE_CRASHED"
    assert reports.rejection(2, 0.0).reason == "SUSPECT"
    assert reports.rejection(2, 0.0).retry_after
    assert reports.rejection(3, 0.0) is None


def test_the_reports_of_a_lost_scheduler_remain_valid_until_their_ttl():
    reports = shard_requests()
    reports.apply("a", [report_of(1, is_confirmed=True), report_of(2)])
    reports.on_scheduler_disconnected("a", 5.0)
    assert [reports.rejection(key, 14.9).reason for key in (1, 2)] == ["ENGINE_CRASHED", "SUSPECT"]
    assert reports.rejection(1, 15.0) is None


@pytest.mark.parametrize("change", ["on_scheduler_connected", "on_scheduler_disconnected"], ids=["connected", "lost"])
@pytest.mark.parametrize("how", [{"avoid_workers": ("w0",)}, {"may_have_run": True}], ids=["worker", "edge"])
def test_a_ticket_with_a_lost_run_waits_while_reports_may_be_missing(how, change):
    reports = shard_requests()
    lost, other = ticket("l", **how), ticket("o")
    assert not reports.is_blocked(lost, 5.0)
    getattr(reports, change)("a", 5.0)
    assert [reports.is_blocked(each, 5.0 + REPORT_DELAY_S - 0.01) for each in (lost, other)] == [True, False]
    assert not reports.is_blocked(lost, 5.0 + REPORT_DELAY_S)


def test_report_timeouts_of_a_shard_exclude_its_stalls():
    reports = PoisonRequests(StallFreeClock(0.5))
    reports.on_scheduler_connected("a", -60.0)
    reports.apply("a", [report_of(1, is_confirmed=True)])
    reports.on_scheduler_disconnected("a", 5.0)
    lost = ticket("l", avoid_workers=("w0",))
    assert reports.is_blocked(lost, 5.0 + REPORT_DELAY_S + 20.0)
    assert reports.rejection(1, 5.0 + LOST_REPORT_TTL_S + 20.0).reason == "ENGINE_CRASHED"


def shard_with_two_waiting():
    shard = ShardDriver()
    shard.connect()
    for ticket_id, fingerprint in (("x", 5), ("y", 6)):
        shard.enqueue(ticket_id, fingerprint=fingerprint)
    return shard


def report_poison(shard, *reports, scheduler="s"):
    return shard.record(shard.book.on_catalog(scheduler, [entry()], shard.now, reports))


def test_a_suspected_waiting_ticket_is_passed_over_and_keeps_its_place():
    shard = shard_with_two_waiting()
    report_poison(shard, report_of(5))
    assert shard.credit(1) == ["y"]
    shard.enqueue("z")
    report_poison(shard)
    shard.pass_time(DECLINE_PAUSE_S)
    assert shard.credit(1) == ["x"]


def test_a_waiting_ticket_is_shed_once_confirmed():
    shard = shard_with_two_waiting()
    assert sheds(report_poison(shard, report_of(5, is_confirmed=True))) == {"x": "ENGINE_CRASHED"}
    assert shard.credit(2) == ["y"]


def test_an_offered_ticket_is_withdrawn_once_confirmed():
    shard = shard_with_two_waiting()
    assert shard.credit(1) == ["x"]
    assert withdrawn_offers(report_poison(shard, report_of(5, is_confirmed=True))) == [("s", ("x",))]


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_an_unstarted_lease_is_withdrawn_once_its_ticket_is_reported(is_confirmed):
    shard = shard_with_two_waiting()
    shard.credit(2)
    shard.place("x"), shard.place("y", lease_id="other")
    assert withdrawn_offers(report_poison(shard, report_of(5, is_confirmed=is_confirmed))) == [("s", ("x",))]
    assert withdrawn_offers(report_poison(shard, report_of(5, is_confirmed=is_confirmed))) == []


@pytest.mark.parametrize(("is_confirmed", "reason"), [(False, "SUSPECT"), (True, "ENGINE_CRASHED")])
def test_a_lease_of_a_lost_scheduler_is_shed_at_its_edge(is_confirmed, reason):
    shard = shard_with_two_waiting()
    shard.connect("t")
    shard.credit(2)
    shard.place("x"), shard.place("y", lease_id="other")
    shard.disconnect("s")
    effects = report_poison(shard, report_of(5, is_confirmed=is_confirmed), scheduler="t")
    assert (sheds(effects), withdrawn_offers(effects)) == ({"x": reason}, [])
    shard.record(shard.book.withdraw("e", ["x"]))
    assert [each.ticket_id for each in shard.book.accounting] == ["y"], "a ticket without a lease has no report"


def test_a_lease_for_a_ticket_reported_since_its_offer_is_not_used():
    shard = shard_with_two_waiting()
    shard.connect("t")
    shard.credit(2)
    report_poison(shard, report_of(5), scheduler="t")
    placed = shard.place("x")
    assert (withdrawn_offers(placed), leased(placed)) == ([("s", ("x",))], [])
    assert leased(shard.place("y")) == ["lease"]
    report_poison(shard, scheduler="t")
    shard.pass_time(DECLINE_PAUSE_S)
    assert shard.credit(1) == ["x"], "it was only paused"
    assert leased(shard.place("x")) == ["lease"]


REPORT_STEPS = st.tuples(st.just("report"), st.sampled_from("st"), st.dictionaries(st.integers(1, 4), st.booleans()))
CREDIT_STEPS = st.tuples(st.just("credit"), st.sampled_from("st"), st.integers(1, 2))
ENQUEUE_STEPS = st.tuples(st.just("enqueue"), st.integers(1, 4), st.booleans())
WAIT_STEPS = st.tuples(st.just("wait"), st.sampled_from([0.05, 0.2, 1.0]), st.none())


def step(shard, kind, first, second):
    match kind:
        case "report":
            reports = [report_of(key, is_confirmed=is_confirmed) for key, is_confirmed in second.items()]
            shard.record(shard.book.on_catalog(first, [entry()], shard.now, reports))
        case "credit":
            shard.credit(second, first)
        case "enqueue":
            name = f"t{len(shard.effects)}"
            shard.enqueue(name, fingerprint=first, avoid_workers=("w0",) if second else ())
        case "wait":
            shard.pass_time(first)


@given(steps=st.lists(REPORT_STEPS | CREDIT_STEPS | ENQUEUE_STEPS | WAIT_STEPS, max_size=40))
def test_reported_tickets_are_not_offered_and_delay_no_others(steps):
    shard, reported = ShardDriver(), {"s": {}, "t": {}}
    shard.connect("s")
    shard.connect("t")
    for kind, first, second in steps:
        reported |= {first: second} if kind == "report" else {}
        known = len(shard.effects)
        step(shard, kind, first, second)
        for each in shard.effects[known:]:
            if isinstance(each, out.Offer):
                assert not any(each.ticket.fingerprint in found for found in reported.values())
                assert not each.ticket.avoid_workers or shard.now >= START_UNIX_S + REPORT_DELAY_S
    for scheduler in "st":
        report_poison(shard, scheduler=scheduler)
    shard.pass_time(REPORT_DELAY_S)
    shard.credit(len(steps))
    assert shard.book.model_queues.waiting.tickets == 0


def test_few_requests_of_one_tenant_are_tested_and_those_of_other_tenants_all():
    book = ready_table()
    bad, good = b"b" * 16, b"g" * 16
    salts = [bad] * 6 + [good]
    runs = [started_run(book, handle=h, lease=f"l{h}", ticket=f"t{h}", cache_salt=salt) for h, salt in enumerate(salts)]
    for number, run in enumerate(runs, 1):
        run.fingerprint = number
    told = {}
    for lost in range(1 + MAX_CONFIRMED_PER_TENANT):
        ended = book.on_engine_lost(errors.engine_died(), float(lost), crashed=True)
        told |= {each.run.handle: each.outcome.reason for each in ended if isinstance(each, RunEnded)}
        [tried] = book.on_engine_ready(LIMITS, float(lost))
        assert tried.spec.cache_salt == (good if lost == MAX_CONFIRMED_PER_TENANT else bad)
    crashed = dict.fromkeys(range(MAX_CONFIRMED_PER_TENANT), "ENGINE_CRASHED")
    assert told == crashed | dict.fromkeys(range(MAX_CONFIRMED_PER_TENANT, 6), "TENANT_ON_PROBATION")
    assert book.quarantine.isolation.suspects == [runs[6]]


def test_requests_of_unknown_tenants_are_all_tested():
    book = ready_table()
    for number in range(1, 7):
        started_run(book, handle=number, lease=f"l{number}", ticket=f"t{number}").fingerprint = number
    for lost in range(6):
        assert not [
            each
            for each in book.on_engine_lost(errors.engine_died(), float(lost), crashed=True)
            if isinstance(each, RunEnded) and each.outcome.reason == "TENANT_ON_PROBATION"
        ]
        book.on_engine_ready(LIMITS, float(lost))
