"""Reports of the dispatcher to shards by plain calls: pool statistics, service and slot releases."""

from dispatch_mesh import LEASE_TTL_S, MODEL, START_UNIX_S, profile_of, ticket_of
from penstock.mesh.v1.queue_pb2 import Head
from penstock.mesh.v1.scheduler_pb2 import LoadReport, Progress, RunningLease
from penstock.scheduler.effects import GrantCredit, SendPoolStats, SendServiceReport
from penstock.scheduler.fleet.worker import MIN_REPORTED_STEPS
from penstock.scheduler.leases import LeaseEntry
from penstock.scheduler.reports.service_reports import (
    ABSENT_QUEUE_TTL_S,
    MAX_FULL_TICKETS,
    MAX_FULL_TICKETS_PER_SLICE,
    MAX_NUMBERED_TICKETS,
    RESEND_WINDOW_S,
    ServiceReports,
)
from scheduler_calls import NOW, attach, offer, only, pool_stats, progress, served, service_reports


def test_credit_carries_the_rate_of_all_workers(scheduler):
    attach(scheduler, "w")
    scheduler.on_load_report("w", LoadReport(tokens_per_second=100.0))
    assert only(GrantCredit, attach(scheduler, "x")).tokens_per_second == 100.0
    scheduler.on_load_report("x", LoadReport(tokens_per_second=50.0))
    assert only(GrantCredit, attach(scheduler, "y", slots=8)).tokens_per_second == 150.0


def test_service_is_reported_to_the_shard_of_the_ticket(scheduler):
    attach(scheduler)
    scheduler.on_queue_connected("q2")
    offer(scheduler, "a", attempt=3)
    offer(scheduler, "b", queue="q2")
    scheduler.on_progress("w", progress(served("s-1", 30, 1), served("s-2", 20, 0)))
    scheduler.on_progress("w", progress(served("s-1", 31, 5), served("unknown", 9, 9)))
    assert service_reports(scheduler.tick(START_UNIX_S)) == [("q", "a", 3, 31, 5, False), ("q2", "b", 1, 20, 0, False)]
    assert service_reports(scheduler.tick(START_UNIX_S + 1)) == []


def test_the_end_of_a_lease_is_reported_once_with_its_service(scheduler):
    attach(scheduler)
    offer(scheduler)
    scheduler.on_lease_started("w", "s-1")
    scheduler.on_progress("w", progress(served("s-1", 31, 1)))
    scheduler.on_leases_released("w", ["s-1"], [served("s-1", 31, 2)])
    assert service_reports(scheduler.tick(START_UNIX_S)) == [("q", "t", 1, 31, 2, True)]
    assert len(scheduler.service_reports) == 0


def test_an_expired_lease_is_reported_as_ended_without_service(scheduler):
    attach(scheduler)
    offer(scheduler)
    assert service_reports(scheduler.tick(START_UNIX_S + LEASE_TTL_S)) == [("q", "t", 1, 0, 0, True)]


def test_leases_of_a_lost_worker_are_reported_as_ended_with_their_service(scheduler):
    attach(scheduler)
    offer(scheduler)
    scheduler.on_lease_started("w", "s-1")
    scheduler.on_progress("w", progress(served("s-1", 31, 7)))
    scheduler.on_worker_lost("w")
    assert service_reports(scheduler.tick(START_UNIX_S)) == [("q", "t", 1, 31, 7, True)]


def test_adopted_leases_are_reported_to_their_shard(scheduler):
    profile = profile_of(slots=2)
    profile.running.append(RunningLease(lease_id="x-9", kv_blocks=2, ticket_id="t", attempt=2, queue_id="q"))
    scheduler.on_worker_attached("w", "w", "w:1", profile)
    assert service_reports(scheduler.tick(START_UNIX_S)) == [
        ("q", "t", 2, 0, 0, False)
    ]  # its former scheduler has reported its end
    scheduler.on_progress("w", progress(served("x-9", 40, 8)))
    assert service_reports(scheduler.tick(START_UNIX_S)) == [("q", "t", 2, 40, 8, False)]
    scheduler.on_leases_released("w", ["x-9"])
    assert service_reports(scheduler.tick(START_UNIX_S)) == [("q", "t", 2, 40, 8, True)]
    assert len(scheduler.leases) == 0


def test_reports_are_kept_for_an_absent_shard_for_a_while(scheduler):
    attach(scheduler)
    offer(scheduler)
    scheduler.on_queue_disconnected("q")
    assert service_reports(scheduler.tick(START_UNIX_S + LEASE_TTL_S)) == []
    scheduler.on_queue_connected("q")
    assert service_reports(scheduler.tick(START_UNIX_S + LEASE_TTL_S + 1)) == [("q", "t", 1, 0, 0, True)]
    offer(scheduler, now=START_UNIX_S + 10)
    scheduler.on_queue_disconnected("q")
    scheduler.tick(START_UNIX_S + 20)
    scheduler.tick(START_UNIX_S + 20 + ABSENT_QUEUE_TTL_S)
    assert len(scheduler.service_reports) == 0


def test_recent_ends_are_reported_again_after_a_broken_stream(scheduler):
    attach(scheduler)
    offer(scheduler)
    scheduler.on_leases_released("w", ["s-1"])
    assert service_reports(scheduler.tick(START_UNIX_S)) == [("q", "t", 1, 0, 0, True)]
    scheduler.on_queue_disconnected("q")
    scheduler.on_queue_connected("q")
    assert service_reports(scheduler.tick(START_UNIX_S + 0.1)) == [("q", "t", 1, 0, 0, True)]
    assert service_reports(scheduler.tick(START_UNIX_S + 0.1 + RESEND_WINDOW_S)) == []
    scheduler.on_queue_disconnected("q")
    assert len(scheduler.service_reports) == 0


def test_pool_stats_are_sent_on_change_and_once_a_second(scheduler):
    attach(scheduler, "a", slots=2)
    attach(scheduler, "b", slots=2)
    report = LoadReport(running=1, prefill_backlog_tokens=70, tokens_per_second=100.0, prefill_tokens_per_second=500.0)
    report.step_time.FromMilliseconds(20)
    scheduler.on_load_report("a", report)
    slow = LoadReport(running=2, prefill_backlog_tokens=900, tokens_per_second=50.0, prefill_tokens_per_second=500.0)
    scheduler.on_load_report("b", slow)
    stats = only(SendPoolStats, scheduler.tick(START_UNIX_S)).stats
    assert (stats.model, stats.tokens_per_second, stats.prefill_tokens_per_second) == (MODEL, 150.0, 500.0)
    assert (stats.running, stats.slots) == (3, 4)
    assert (stats.next_worker_backlog_tokens, stats.step_time.ToMilliseconds()) == (70, 20)  # of the next worker
    assert {each.worker_id: each.tokens for each in stats.prefill_backlogs} == {"a": 70, "b": 900}
    assert pool_stats(scheduler.tick(START_UNIX_S + 0.9)) == []
    assert pool_stats(scheduler.tick(START_UNIX_S + 1.0)) == [stats]
    scheduler.on_load_report("b", LoadReport(running=3))
    assert [each.running for each in pool_stats(scheduler.tick(START_UNIX_S + 1.1))] == [4]


def test_pool_stats_have_slot_releases_and_step_costs(scheduler):
    attach(scheduler, slots=2, kv_blocks=8)
    for name, answer in (("long", 40), ("short", 10)):
        ticket = ticket_of(name)
        ticket.predicted_output_tokens = answer
        scheduler.on_offer("q", ticket, START_UNIX_S)
    report = LoadReport(steps=7, seconds_per_prefill_token=0.001, max_step_tokens=300)
    report.decode_step_time.FromMilliseconds(10)
    scheduler.on_load_report("w", report)
    stats = only(SendPoolStats, scheduler.tick(START_UNIX_S)).stats
    assert (stats.leases, stats.available_leases, stats.workers) == (2, 0, 1)
    assert (stats.leased_tokens, stats.free_tokens) == (64, 64)
    assert (stats.seconds_per_prefill_token, stats.max_step_tokens, stats.decode_step_time.ToMilliseconds()) == (
        0.001,
        300,
        10,
    )
    assert [(each.ended_leases, each.after.ToMilliseconds()) for each in stats.slot_releases] == [(1, 110), (2, 410)]
    scheduler.on_lease_started("w", "s-1")
    scheduler.on_progress("w", progress(served("s-1", 31, 20)))
    report.steps = 12
    scheduler.on_load_report("w", report)
    stats = only(SendPoolStats, scheduler.tick(START_UNIX_S + 0.1)).stats
    assert [each.after.ToMilliseconds() for each in stats.slot_releases] == [110, 150], (
        "five steps ago 20 tokens were left"
    )


def test_the_time_of_the_first_token_is_reported(scheduler):
    attach(scheduler)
    offer(scheduler)
    first = served("s-1", 31, 1)
    first.first_token_after.FromMilliseconds(120)
    scheduler.on_progress("w", progress(first))
    [reported] = only(SendServiceReport, scheduler.tick(START_UNIX_S)).tickets
    assert reported.first_token_after.ToMilliseconds() == 120


def test_empty_pool_stats_are_sent_once_for_a_model_without_workers(scheduler):
    attach(scheduler)
    scheduler.tick(START_UNIX_S)
    scheduler.on_worker_lost("w")
    assert [(each.model, each.slots) for each in pool_stats(scheduler.tick(START_UNIX_S + 1))] == [(MODEL, 0)]
    assert pool_stats(scheduler.tick(START_UNIX_S + 9)) == []


def test_a_reconnected_shard_receives_pool_stats(scheduler):
    attach(scheduler)
    scheduler.tick(START_UNIX_S)
    scheduler.on_queue_disconnected("q")
    scheduler.on_queue_connected("q")
    assert len(pool_stats(scheduler.tick(START_UNIX_S + 0.1))) == 1


def run_two_until(scheduler, steps, *, waiting):
    """Fill a worker with two decoding leases, release one after `steps` steps, and return the effects."""
    attach(scheduler, slots=2)
    for name in ("a", "b"):
        offer(scheduler, name)
    scheduler.on_head("q", Head(model=MODEL, waiting=waiting, waiting_tokens=32 * waiting, tokens=32, priority=2), NOW)
    scheduler.on_load_report("w", LoadReport(steps=100))
    scheduler.on_progress("w", progress(served("s-1", 31, 10), served("s-2", 31, 10)))
    scheduler.tick(START_UNIX_S)
    scheduler.on_load_report("w", LoadReport(steps=steps))
    return scheduler.on_leases_released("w", ["s-1"], [served("s-1", 31, 20)])


def test_the_only_waiting_shard_receives_worker_steps_before_credit(scheduler):
    first, credit, *_ = run_two_until(scheduler, 110, waiting=5)
    assert isinstance(first, SendServiceReport)
    assert isinstance(credit, GrantCredit)
    assert service_reports([first]) == [("q", "a", 1, 31, 20, True)]
    assert [(each.worker_id, each.steps) for each in first.workers] == [("w", 110)]
    assert [each.worker_steps for each in first.tickets] == [110]
    assert service_reports(scheduler.tick(START_UNIX_S + 0.1)) == [], "it was reported already"


def test_few_new_steps_are_not_reported(scheduler):
    run_two_until(scheduler, 110, waiting=5)
    scheduler.on_load_report("w", LoadReport(steps=110 + MIN_REPORTED_STEPS - 1))
    assert only(GrantCredit, scheduler.on_leases_released("w", ["s-2"])).tickets
    assert service_reports(scheduler.tick(START_UNIX_S)) == [("q", "b", 1, 31, 10, True)]


def test_an_idle_shard_receives_no_worker_steps(scheduler):
    assert only(GrantCredit, run_two_until(scheduler, 110, waiting=0)).tickets
    assert service_reports(scheduler.tick(START_UNIX_S)) == [("q", "a", 1, 31, 20, True)]


def numbered_lease(scheduler):
    """Let a lease get its number 7 at the worker, and 1 at the shard."""
    attach(scheduler)
    offer(scheduler)
    scheduler.on_progress("w", progress(served("s-1", 31, 1, number=7), steps=100))
    [report] = only(SendServiceReport, scheduler.tick(START_UNIX_S)).tickets
    assert (report.ticket_id, report.number, report.worker_steps) == ("t", 1, 100)


def output_reports(effects):
    return [
        (number, tokens, each.worker_steps)
        for effect in effects
        if isinstance(effect, SendServiceReport)
        for each in effect.progress
        for number, tokens in zip(each.ticket_numbers, each.output_tokens, strict=True)
    ]


def test_output_of_a_numbered_lease_is_reported_by_number(scheduler):
    numbered_lease(scheduler)
    scheduler.on_progress("w", progress(n7=20, n8=9, steps=120))
    report = only(SendServiceReport, scheduler.tick(START_UNIX_S + 1))
    assert output_reports([report]) == [(1, 20, 120)], "number 8 is unknown"
    assert report.tickets == ()
    assert len(scheduler.service_reports) == 0


def test_output_is_reported_before_the_end_of_the_same_lease(scheduler):
    numbered_lease(scheduler)
    scheduler.on_progress("w", progress(n7=20))
    scheduler.on_leases_released("w", ["s-1"], [served("s-1", 31, 22)])
    scheduler.on_progress("w", progress(n7=99))
    report = only(SendServiceReport, scheduler.tick(START_UNIX_S + 1))
    assert [each[:2] for each in output_reports([report])] == [(1, 20)]
    assert service_reports([report]) == [("q", "t", 1, 31, 22, True)]


def test_a_new_stream_of_a_shard_receives_running_leases_in_full(scheduler):
    numbered_lease(scheduler)
    scheduler.on_progress("w", progress(n7=20))
    scheduler.on_queue_disconnected("q")
    scheduler.on_queue_connected("q")
    scheduler.on_progress("w", progress(n7=30))
    report = only(SendServiceReport, scheduler.tick(START_UNIX_S + 1))
    assert output_reports([report]) == []
    assert [(each.ticket_id, each.output_tokens, each.number) for each in report.tickets] == [("t", 30, 2)]


def test_a_new_stream_of_a_worker_forgets_its_numbers(scheduler):
    numbered_lease(scheduler)
    scheduler.on_worker_lost("w")
    profile = profile_of(slots=2)
    profile.running.append(RunningLease(lease_id="s-1", kv_blocks=2, ticket_id="t", attempt=1, queue_id="q"))
    scheduler.on_worker_attached("w/2", "w", "w:1", profile)
    scheduler.tick(START_UNIX_S + 1)
    scheduler.on_progress("w/2", progress(n7=30))
    assert output_reports(scheduler.tick(START_UNIX_S + 2)) == []


def test_many_leases_are_reported_in_slices_and_in_frames_of_a_bounded_size():
    reports, count = ServiceReports(), 2 * MAX_FULL_TICKETS_PER_SLICE + 1
    for queue in ("q", "q2"):
        reports.on_queue_connected(queue)
    for number in range(count):
        reports.record(lease_entry(number, "q2" if number == 1 else "q"))
    slices = [reports.pop_due(["q", "q2"], 0.0)]
    while reports.is_slice_due:
        slices.append(reports.pop_slice(["q", "q2"]))
    sizes = [[len(each.tickets) for each in found] for found in slices]
    assert [sum(each) for each in sizes] == [MAX_FULL_TICKETS_PER_SLICE] * 2 + [1]
    assert max(map(max, sizes)) == MAX_FULL_TICKETS
    sent = [each.ticket_id for found in slices for report in found for each in report.tickets]
    assert sorted(sent) == sorted(f"t{number}" for number in range(count))


def test_output_by_number_is_split_into_frames_of_a_bounded_size():
    reports, entries = ServiceReports(), [lease_entry(number) for number in range(2 * MAX_NUMBERED_TICKETS + 1)]
    reports.on_queue_connected("q")
    for entry in entries:
        reports.record(entry)
    reports.pop_due(["q"], 0.0)
    while reports.is_slice_due:
        reports.pop_slice(["q"])
    numbered = dict(enumerate(entries, 1))
    for start in range(1, 1 + len(entries), 100):
        numbers = range(start, min(start + 100, 1 + len(entries)))
        reports.record_output(numbered, Progress(lease_numbers=numbers, output_tokens=numbers), steps=9)
    sizes = [sum(len(each.ticket_numbers) for each in report.progress) for report in reports.pop_due(["q"], 1.0)]
    assert sum(sizes) == len(entries)
    assert max(sizes) < MAX_NUMBERED_TICKETS + 100


def lease_entry(number, queue="q"):
    return LeaseEntry(f"s-{number}", f"t{number}", 1, queue, "w", "w", 2)
