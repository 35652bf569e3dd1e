"""Admission by TTFT targets and deadlines, expiration of waiting tickets, and token limits."""

import pytest

from penstock.chassis.durations import seconds_of
from penstock.queue import effects as out
from penstock.queue.accounting import ServedTicket
from penstock.queue.admission.admission import TtftTargets
from penstock.queue.frames import to_edge
from penstock.queue.models.model_queue import MAX_POOL_STATS_AGE_S
from penstock.queue.prediction.pool_stats import PoolStats, SlotRelease
from queue_tickets import BATCH, INTERACTIVE, STANDARD, ShardDriver, only, sheds

TOKENS_PER_S = 1_000.0  # ten tickets
TTFT_TARGET_S = 2.0


def shard_at_full_speed(**fields):
    """A shard with a measured service rate of full batches."""
    shard = ShardDriver(
        ttft_targets=TtftTargets({STANDARD: TTFT_TARGET_S, INTERACTIVE: TTFT_TARGET_S}, headroom=0.9), **fields
    )
    shard.connect()
    shard.book.model_queues["m"].forecast.service_rate.saturated = TOKENS_PER_S
    report(shard)
    return shard


def report(shard, scheduler="s", **fields):
    shard.book.on_pool_stats(scheduler, "m", PoolStats(shard.now, tokens_per_second=TOKENS_PER_S, **fields))


def enqueue_many(shard, count, **fields):
    return [effect for number in range(count) for effect in shard.enqueue(f"t{number}", **fields)]


def error_of(effects):
    return only(out.Shed, effects).error


def test_a_ticket_that_would_miss_its_ttft_target_is_rejected_at_once():
    shard = shard_at_full_speed()
    rejected = sheds(enqueue_many(shard, 40))
    assert set(rejected.values()) == {"OVERLOADED"}
    assert len(rejected) == 40 - 18, "18 tickets of 0.1 s fit into 0.9 of 2 s"
    assert rejected == {f"t{number}": "OVERLOADED" for number in range(18, 40)}


def test_a_rejection_names_the_time_at_which_a_retry_would_be_in_time():
    shard = shard_at_full_speed()
    enqueue_many(shard, 18)
    error = error_of(shard.enqueue("late", tokens=100))
    assert error.retry_after == pytest.approx(0.1)
    assert "1.9 s" in str(error)
    assert "retry in 0.1 s" in str(error)


def test_a_rejection_has_windows_for_similar_tickets():
    shard = shard_at_full_speed()
    enqueue_many(shard, 18)
    [by_target] = to_edge(only(out.Shed, shard.enqueue("late", deadline=shard.now + 60))).shed.rejection_windows
    [by_deadline] = to_edge(only(out.Shed, shard.enqueue("hurried", deadline=shard.now + 1))).shed.rejection_windows
    assert (seconds_of(by_target.duration), by_target.is_deadline_bound) == (pytest.approx(0.1, abs=1e-6), False)
    assert (seconds_of(by_deadline.duration), by_deadline.is_deadline_bound) == (pytest.approx(1.0, abs=1e-6), True)
    assert (by_target.min_prompt_tokens, by_target.min_output_tokens) == (1, 1), (
        "the window holds for any size, because of the work ahead"
    )


def test_the_last_ticket_that_fits_has_the_rejection_window_of_tickets_behind_it():
    shard = shard_at_full_speed()
    queued = [to_edge(only(out.Queued, shard.enqueue(f"t{number}"))).queued for number in range(18)]
    assert not any(each.rejection_windows for each in queued[:-1])
    [window] = queued[-1].rejection_windows
    assert to_edge(only(out.Shed, shard.enqueue("late"))).shed.rejection_windows == [window]


def test_rejection_windows_last_as_long_as_similar_tickets_would_be_late():
    shard = shard_at_full_speed()
    report(shard, prefill_tokens_per_second=100)
    windows = error_of(shard.enqueue("long", tokens=310)).rejection_windows()
    assert {each.min_prompt_tokens for each in windows} == {300, 600, 1_200}
    assert not sheds(shard.enqueue("shorter", tokens=160))
    enqueue_many(shard, 14)
    windows = list(error_of(shard.enqueue("long again", tokens=310)).rejection_windows())
    for each in windows:
        rejected = error_of(shard.enqueue(f"of {each.min_prompt_tokens}", tokens=each.min_prompt_tokens + 10))
        assert list(rejected.rejection_windows())[-1].duration >= each.duration > 0
    assert {each.min_prompt_tokens for each in windows} == {150, 300, 600, 1_200}
    assert windows == sorted(windows), "windows of smaller sizes are shorter"


def test_rejection_windows_are_shorter_if_predictions_are_corrected_upwards():
    shard = shard_at_full_speed()
    forecast = shard.book.model_queues["m"].forecast
    for _ in range(500):
        forecast.record_ratio(1.0, 2.0)
    enqueue_many(shard, 10)
    [window] = error_of(shard.enqueue("late")).rejection_windows()
    assert window.duration == pytest.approx((forecast.correction - 1.8) / forecast.correction)


def test_the_rejection_window_of_a_full_shard_ends_when_a_place_is_free():
    shard = shard_at_full_speed(max_depth=3)
    enqueue_many(shard, 3, priority=BATCH)
    [window] = error_of(shard.enqueue("late", priority=BATCH)).rejection_windows()
    assert 0 < window.duration <= 0.1


def test_an_expired_ticket_has_no_rejection_window():
    shard = shard_at_full_speed()
    shard.enqueue("t", priority=BATCH, deadline=shard.now + 1.0)
    assert not to_edge(only(out.Shed, shard.pass_time(1.1))).shed.rejection_windows


def test_only_deadlines_that_cannot_be_met_are_rejected():
    shard = shard_at_full_speed()
    enqueue_many(shard, 9, priority=BATCH)
    assert sheds(shard.enqueue("soon", priority=BATCH, deadline=shard.now + 1.0)) == {"soon": "OVERLOADED"}
    assert not sheds(shard.enqueue("later", priority=BATCH, deadline=shard.now + 1.2))


def test_a_class_without_a_ttft_target_waits_without_limit():
    shard = shard_at_full_speed()
    assert not sheds(enqueue_many(shard, 200, priority=BATCH))


def test_only_work_ahead_in_the_order_counts():
    shard = shard_at_full_speed()
    enqueue_many(shard, 200, priority=BATCH)
    assert not sheds(shard.enqueue("better class", priority=INTERACTIVE))
    for number in range(17):
        assert not sheds(shard.enqueue(f"greedy {number}"))
    assert sheds(shard.enqueue("greedy 18")) == {"greedy 18": "OVERLOADED"}
    assert not sheds(shard.enqueue("modest", tenant_id="modest"))


def test_resumed_and_readmitted_tickets_are_not_rejected_as_late():
    shard = shard_at_full_speed()
    enqueue_many(shard, 18)
    assert not sheds(shard.enqueue("resumed", attempt=2))
    assert not sheds(shard.enqueue("from a shard that died", is_readmitted=True))
    assert sheds(shard.enqueue("an old ticket that no shard admitted", enqueued=shard.now - 5))


def test_without_recent_statistics_only_queue_limits_reject():
    shard = shard_at_full_speed(max_depth=50)
    shard.pass_time(MAX_POOL_STATS_AGE_S + 0.1)
    rejected = sheds(enqueue_many(shard, 60, enqueued=shard.now))
    assert set(rejected.values()) == {"QUEUE_FULL"}
    assert len(rejected) == 10


def test_without_measured_rates_only_queue_limits_reject():
    shard = ShardDriver(max_depth=50, ttft_targets=TtftTargets({STANDARD: TTFT_TARGET_S}))
    shard.connect()
    assert set(sheds(enqueue_many(shard, 60)).values()) == {"QUEUE_FULL"}


def test_frozen_reports_do_not_stop_offers():
    shard = shard_at_full_speed()
    shard.enqueue("a", priority=BATCH)
    shard.pass_time(10 * MAX_POOL_STATS_AGE_S)
    assert shard.credit(1) == ["a"]


def test_a_ticket_past_its_ttft_target_is_not_offered():
    shard = shard_at_full_speed()
    enqueue_many(shard, 3)
    shard.now += TTFT_TARGET_S
    assert shard.credit(3) == []
    assert sheds(shard.effects) == {f"t{number}": "OVERLOADED" for number in range(3)}


def test_a_ticket_whose_prefill_would_pass_its_deadline_is_not_offered():
    shard = shard_at_full_speed()
    report(shard, prefill_tokens_per_second=90.0)  # a prompt of 90 takes 1 s
    shard.enqueue("a", deadline=shard.now + 3, priority=BATCH)
    shard.enqueue("b", deadline=shard.now + 9, priority=BATCH)
    shard.now += 2.1
    assert shard.credit(2) == ["b"]
    assert sheds(shard.effects) == {"a": "DEADLINE"}


def test_the_expiration_of_late_tickets_does_not_affect_tickets_in_time():
    shard = shard_at_full_speed()
    enqueue_many(shard, 5, tenant_id="late")
    shard.now += TTFT_TARGET_S
    shard.enqueue("a", tenant_id="late", enqueued=shard.now)
    shard.enqueue("b", tenant_id="other", enqueued=shard.now)
    assert shard.credit(2) == ["a", "b"]


@pytest.mark.parametrize(("priority", "lowest", "highest"), [(INTERACTIVE, 1.5, 9.0), (BATCH, 1.0, 1.0)])
def test_predictions_are_corrected_by_observed_waits_of_all_but_batch_tickets(priority, lowest, highest):
    shard = shard_at_full_speed()
    for number in range(200):
        shard.enqueue(f"warm {number}", priority=priority, enqueued=shard.now)
        shard.enqueue(f"more {number}", priority=priority, enqueued=shard.now)
        shard.now += 0.4
        report(shard)
        for ticket_id in shard.credit(2):
            shard.place(ticket_id)
    assert lowest <= shard.book.model_queues["m"].forecast.correction <= highest


def test_batch_tickets_do_not_change_the_prediction_of_others():
    shard = shard_at_full_speed()
    report_worker(shard, leases=8)
    before = only(out.Queued, shard.enqueue("before", priority=INTERACTIVE)).predicted_ttft
    shard.withdraw("before")
    enqueue_many(shard, 2, priority=BATCH, tokens=5_000)
    for ticket_id in shard.credit(2):
        shard.place(ticket_id)
    after = only(out.Queued, shard.enqueue("after", priority=INTERACTIVE)).predicted_ttft
    assert after == pytest.approx(before)


def report_worker(shard, leases=10, every=0.1):
    """Report a worker of ten slots, one of which is released every `gap` s."""
    releases = tuple(SlotRelease(number * every, number) for number in range(1, leases + 1))
    fields = {"decode_step_time": 0.1, "seconds_per_prefill_token": 1e-6, "max_step_tokens": 10_000, "workers": 1}
    report(shard, slots=10, leases=leases, releases=releases, **fields)


def admitted(**fields):
    shard = shard_at_full_speed()
    report_worker(shard, **fields)
    return 60 - len(sheds(enqueue_many(shard, 60)))


def test_admission_follows_the_slot_release_curve():
    assert 10 < admitted(leases=10) < 40
    assert admitted(leases=10, every=0.5) < admitted(leases=10) < admitted(leases=5), "free slots are available at once"


def test_late_first_tokens_reduce_admission():
    shard = shard_at_full_speed()
    report_worker(shard)
    before = 60 - len(sheds(enqueue_many(shard, 60)))
    for name in shard.credit(10):
        shard.place(name)
        shard.book.on_service_report([ServedTicket(name, 90, 10, has_ended=True, attempt=1, first_token_after=5.0)])
    assert shard.book.model_queues["m"].forecast.correction > 1.5
    for name in list(shard.book.tickets):
        shard.withdraw(name)
    report_worker(shard)
    assert 60 - len(sheds(enqueue_many(shard, 60, enqueued=shard.now))) < before


def test_the_edge_receives_the_predicted_wait():
    shard = shard_at_full_speed()
    enqueue_many(shard, 4)
    queued = only(out.Queued, shard.enqueue("a"))
    assert (queued.tickets_ahead, queued.predicted_wait) == (4, pytest.approx(0.5))


# Token limits.


def test_offered_tickets_fit_together():
    shard = shard_at_full_speed()
    enqueue_many(shard, 5)
    assert shard.credit(5, total_tokens=250) == ["t0", "t1"]
    assert shard.credit(0, total_tokens=50) == ["t2"]
    assert shard.credit(0) == []


def test_the_tokens_of_voided_credit_are_voided():
    shard = shard_at_full_speed()
    enqueue_many(shard, 5)
    assert shard.credit(2, total_tokens=10_000) == ["t0", "t1"]
    shard.decline("t0")
    assert shard.credit(3) == [], "no tokens are left"
    assert shard.credit(0, total_tokens=100) == ["t0"]


def test_credit_without_a_token_limit_is_for_tickets_of_any_size():
    shard = shard_at_full_speed()
    enqueue_many(shard, 3)
    assert len(shard.credit(3)) == 3
