"""Reports of placed prompts: every shard learns what other shards have placed, and skips its own prompts."""

from math import inf

from penstock.chassis.durations import NANOS_PER_S
from penstock.mesh.limits.bounds import PLACED
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.queue.frames import remote_prompts_of
from penstock.queue.prediction.prefill_backlog import RemotePrompt
from penstock.scheduler.reports.placed_prompts import MIN_INTERVAL_S, PlacedPromptReports


def ticket(*, promise_s=0.0, express=False, share=0.875):
    nanos = round(promise_s * NANOS_PER_S)
    return Ticket(model="m", priority=2, express=express, first_token_nanos=nanos, usable_share=share)


def test_each_shard_receives_the_prompts_of_the_others_with_their_promises():
    reports = PlacedPromptReports()
    reports.record("a", "w1", 700, ticket(promise_s=2.0), 10.0)
    reports.record("b", "w2", 900, ticket(express=True), 10.0)
    found = {each.queue: each.prompts for each in reports.pop_due("abc", 10.5)}
    first, second = RemotePrompt("w1", 700, 2, False, 1.5, 0.875), RemotePrompt("w2", 900, 2, True, inf, 0.875)
    assert {queue: list(remote_prompts_of(prompts, queue)) for queue, prompts in found.items()} == {
        "a": [second],
        "b": [first],
        "c": [first, second],
    }
    assert first.rank > second.rank


def test_a_first_token_that_is_overdue_is_still_promised():
    reports = PlacedPromptReports()
    reports.record("a", "w1", 700, ticket(promise_s=0.1), 10.0)
    [prompt] = remote_prompts_of(reports.pop_due("b", 11.0)[0].prompts, "b")
    assert 0 < prompt.due_in < 0.01


def test_a_report_is_sent_at_once_after_a_pause_and_otherwise_later():
    reports = PlacedPromptReports()
    assert not reports.pop_due("ab", 1.0)
    for now, is_sent in ((1.0, True), (1.0 + MIN_INTERVAL_S / 2, False), (1.0 + 1.5 * MIN_INTERVAL_S, True)):
        reports.record("a", "w", 700, ticket(), now)
        assert bool(reports.pop_due("ab", now)) == is_sent
    assert not reports.pop_due("ab", 9.0), "every prompt is sent once"


def test_a_report_is_bounded_and_has_the_newest_prompts():
    reports = PlacedPromptReports()
    for number in range(PLACED + 10):
        reports.record("a", f"w{number}", number, ticket(), 1.0)
    [sent] = reports.pop_due("b", 1.0)
    assert len(sent.prompts.prompts) == PLACED
    assert sent.prompts.prompts[-1].prompt_tokens == PLACED + 9
