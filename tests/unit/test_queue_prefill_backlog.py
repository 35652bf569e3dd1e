"""Prompts that prefill at the same worker share its steps: when each has its first token, and what delays it."""

from math import inf

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.mesh.prefill_rank import DEFAULT_RANK, EXPRESS_RANK
from penstock.mesh.v1 import queue_pb2 as pb
from penstock.queue.frames import MAX_BACKLOG_TOKENS, MAX_PREFILL_BACKLOGS, MAX_WORKER_ID_CHARS, pool_stats_of
from penstock.queue.prediction.pool_stats import WorkerCapacity
from penstock.queue.prediction.prefill_backlog import PrefillBacklog, RemotePrompt
from penstock.queue.prediction.prefill_sharing import StepCosts, completions
from penstock.queue.prediction.worker_backlog import PendingPrompt
from penstock.worker.engine.batching.policy import ContinuousBatching

BUDGET_TOKENS = 500
STEP_COSTS = StepCosts(BUDGET_TOKENS, 0.01, 0.0001, 0.06, BUDGET_TOKENS / 0.06)


def backlog_of(*prompts, workers=1, now=0.0):
    found = PrefillBacklog()
    for each in prompts:
        found.on_offered(each, now, workers, STEP_COSTS)
    return found


def join(found, prompt, *, now=0.0, workers=1, is_express=False, reserved=0):
    return found.estimate_join(prompt, reserved, is_express=is_express, now=now, workers=workers, steps=STEP_COSTS)


def seconds(tokens):
    """Return the s until a busy worker ends the step in which it completes so many tokens."""
    return (tokens / BUDGET_TOKENS + 0.5) * STEP_COSTS.full_step_time


def by_steps(lefts, express):
    """Return the tokens that a worker has computed at the end of the step in which each prompt is done."""
    batching, lefts, computed, found = ContinuousBatching(token_budget=BUDGET_TOKENS), list(lefts), 0, [0] * len(lefts)
    ranks = [EXPRESS_RANK if each else DEFAULT_RANK for each in express]
    while any(lefts):
        places = [place for place, left in enumerate(lefts) if left]
        chunks = batching.split_prefill([lefts[each] for each in places], 0, [ranks[each] for each in places])
        computed += sum(chunks)
        for place, chunk in zip(places, chunks, strict=True):
            lefts[place] -= chunk
            if chunk and not lefts[place]:
                found[place] = computed
    return found


def differ(one, other, tokens):
    return any(abs(first - second) > tokens for first, second in zip(one, other, strict=True))


def is_near_tie(lefts, express):
    """Return whether one step more or less of a prompt decides which prompt is the shortest."""
    exact = list(map(float, lefts))
    found = completions(list(exact), express)
    for place, left in enumerate(exact):
        for change in (-2 * BUDGET_TOKENS, -BUDGET_TOKENS, BUDGET_TOKENS, 2 * BUDGET_TOKENS):
            other = [*exact[:place], max(1.0, left + change), *exact[place + 1 :]]
            if differ(found, completions(other, express), (len(lefts) + 2) * BUDGET_TOKENS):
                return True
    return False


@given(st.lists(st.integers(1, 20_000), min_size=1, max_size=6), st.booleans())
def test_prompts_are_done_when_the_workers_own_policy_has_computed_them(lefts, are_express):
    express = [are_express] * len(lefts)
    assume(not is_near_tie(lefts, express))
    found, exact = completions(list(map(float, lefts)), express), by_steps(lefts, express)
    assert max(found) == pytest.approx(sum(lefts))
    assert not differ(found, exact, len(lefts) * BUDGET_TOKENS)


def test_express_prompts_are_done_before_all_others():
    assert completions([900.0, 500.0, 4_000.0], [False, False, True]) == pytest.approx(
        [5_400, 4_666.7, 4_000], rel=1e-3
    )


@given(st.lists(st.floats(1, 20_000), min_size=1, max_size=6), st.floats(0, 30_000))
def test_computing_a_part_first_does_not_change_when_the_rest_is_complete(prompts, spent):
    lefts, whole = list(prompts), completions(list(prompts), [False] * len(prompts))
    completions(lefts, [False] * len(prompts), spent)
    assert sum(lefts) == pytest.approx(max(0.0, sum(prompts) - spent), abs=1e-3)
    rest = completions(list(lefts), [False] * len(prompts))
    # Of two with equally many tokens left, rounding decides which one is the shorter.
    before = sorted(end for end, left in zip(whole, lefts, strict=True) if left > 1e-3)
    after = sorted(spent + end for end, left in zip(rest, lefts, strict=True) if left > 1e-3)
    assert after == pytest.approx(before, rel=1e-6, abs=1e-2)


def test_a_new_prompt_delays_prompts_with_more_tokens_left_and_waits_for_those_with_fewer():
    short, long = PendingPrompt(1_000), PendingPrompt(6_000)
    found = backlog_of(short, long)
    assert long.expected_at == pytest.approx(seconds(7_000), rel=0.04)
    joined = join(found, 3_000)
    delays = {id(each.prompt): each.expected_at - each.undelayed_at for each in joined.delays}
    assert delays == {
        id(short): pytest.approx(0.0),
        id(long): pytest.approx(3_000 / STEP_COSTS.tokens_per_second, rel=0.02),
    }
    assert seconds(3_900) < joined.ttft < seconds(5_500), "the oldest prompt has its share in the same steps"


def test_only_a_prompt_that_is_made_late_counts_as_a_breach():
    tight, late = PendingPrompt(6_000, rank=2, promised_by=1.0), PendingPrompt(6_000, rank=2, promised_by=0.1)
    for prompt, rank, is_breach in ((tight, 2, True), (tight, 1, False), (late, 2, False)):
        [delay] = join(backlog_of(prompt), 3_000).delays
        assert delay.is_breach(rank) == is_breach


def test_a_commitment_blocks_longer_prompts_until_it_has_fewer_tokens_left():
    tight = PendingPrompt(6_000, rank=2, promised_by=1.0)
    found = backlog_of(tight)
    [delay] = join(found, 3_000).delays
    lasts, least = delay.blocked_range(3_000)
    assert lasts == pytest.approx(3_000 / STEP_COSTS.tokens_per_second, rel=0.05)
    assert join(found, least + 10).delays[0].is_breach(2)
    assert not join(found, least // 2).delays[0].is_breach(2)


def test_time_that_has_passed_is_subtracted_from_the_backlog():
    found = backlog_of(PendingPrompt(6_000))
    assert join(found, 9_000, now=0.36).ttft == pytest.approx(seconds(12_000), rel=0.02)
    assert join(found, 500, now=60.0) == join(PrefillBacklog(), 500)


def test_a_prompt_goes_to_an_idle_worker_or_to_the_one_with_least_left():
    found = backlog_of(PendingPrompt(6_000), PendingPrompt(2_000), workers=2)
    assert join(found, 1_000, workers=3).ttft == pytest.approx(
        2 * STEP_COSTS.decode_step_time + 1_000 * STEP_COSTS.seconds_per_prefill_token
    )
    assert [each.prompt.left_tokens for each in join(found, 1_000, workers=2).delays] == [2_000]


def test_a_placement_at_another_worker_moves_the_prompt_there():
    first, second = PendingPrompt(4_000), PendingPrompt(5_000)
    found = backlog_of(first, second, workers=2)
    found.on_placed(first, "w1", "s", 0.0, STEP_COSTS)
    found.on_placed(second, "w1", "s", 0.0, STEP_COSTS)
    assert second.expected_at == pytest.approx(seconds(9_000), rel=0.04)
    assert not join(found, 100, workers=2).delays, "the other worker is idle"
    found.remove(first, 0.0, STEP_COSTS)
    assert [each.prompt for each in join(found, 100, workers=1).delays] == [second]


def test_a_report_corrects_the_backlog_and_reveals_prompts_of_other_shards():
    own = PendingPrompt(6_000)
    found = backlog_of(own)
    found.on_placed(own, "w1", "s", 0.0, STEP_COSTS)
    found.on_report("s", {"w1": 4_000}, 1_000.0, 0.0, STEP_COSTS)
    assert own.left_tokens == 4_000
    found.on_report("s", {"w1": 4_000 + BUDGET_TOKENS - 1}, 1_000.0, 0.0, STEP_COSTS)
    assert len(join(found, 100).delays) == 1, "less than a step may have been computed since"
    found.on_report("s", {"w1": 7_500, "w2": 1_500}, 1_000.0, 0.0, STEP_COSTS)
    assert [each.prompt.left_tokens for each in join(found, 100, workers=2).delays] == [1_000], (
        "those of the other worker"
    )
    found.on_report("another", {}, 1_000.0, 0.0, STEP_COSTS)
    assert own.left_tokens == 4_000
    found.on_report("s", {}, 1_000.0, 0.0, STEP_COSTS)
    assert not join(found, 100).delays, "a worker that is not reported has no backlog"


def test_workers_that_are_no_longer_reported_are_forgotten():
    found = PrefillBacklog()
    for number in range(100):
        found.on_report("s", {f"w{number}": 5_000}, 1_000.0, 0.0, STEP_COSTS)
    assert len(found) == 1


def test_the_shard_keeps_only_valid_fields_of_a_report():
    frame = pb.PoolStats(model="m", prefill_backlogs=[pb.PrefillBacklog(worker_id="w", tokens=2**32 - 1)])
    frame.prefill_backlogs.add(worker_id="", tokens=1)
    frame.prefill_backlogs.add(worker_id="x" * (MAX_WORKER_ID_CHARS + 1), tokens=1)
    frame.prefill_backlogs.add(worker_id="idle")
    assert pool_stats_of(frame, 0.0).prefill_backlogs == {"w": MAX_BACKLOG_TOKENS}
    for number in range(2 * MAX_PREFILL_BACKLOGS):
        frame.prefill_backlogs.add(worker_id=f"w{number}", tokens=7)
    assert len(pool_stats_of(frame, 0.0).prefill_backlogs) <= MAX_PREFILL_BACKLOGS


def test_a_prompt_is_expected_at_a_worker_that_accepts_leases():
    found = PrefillBacklog()
    found.on_report("s", {"full": 100, "free": 9_000}, 1_000.0, 0.0, STEP_COSTS)
    found.on_capacities("s", {"full": WorkerCapacity(0, inf), "free": WorkerCapacity(1, inf)}, 0.0)
    alone = join(found, 1_000, workers=2).ttft
    found.on_capacities("s", {"full": WorkerCapacity(1, inf), "free": WorkerCapacity(1, inf)}, 0.0)
    assert join(found, 1_000, workers=2).ttft < alone


def test_a_prompt_is_not_expected_at_a_worker_whose_free_tokens_it_exceeds():
    found = PrefillBacklog()
    found.on_report("s", {"full": 100, "free": 9_000}, 1_000.0, 0.0, STEP_COSTS)
    found.on_capacities("s", {"full": WorkerCapacity(9, 1_500), "free": WorkerCapacity(9, 90_000)}, 0.0)
    assert join(found, 1_000, workers=2, reserved=1_500).ttft < join(found, 1_000, workers=2, reserved=1_501).ttft
    found.on_offered(PendingPrompt(50, reserved_tokens=200), 0.0, 2, STEP_COSTS)
    assert join(found, 1_000, workers=2, reserved=1_301).ttft == join(found, 1_000, workers=2, reserved=1_501).ttft, (
        "the offered ticket has taken its tokens"
    )


def test_capacities_of_a_lost_scheduler_expire():
    found = PrefillBacklog()
    found.on_capacities("lost", {"w": WorkerCapacity(0, inf)}, 0.0)
    found.on_report("s", {"w": 100_000, "busy": 200_000}, 1_000.0, 3.0, STEP_COSTS)
    joined = join(found, 1_000, now=3.0, workers=2)
    found.on_capacities("s", {"w": WorkerCapacity(0, inf), "busy": WorkerCapacity(1, inf)}, 3.0)
    assert joined.ttft <= join(found, 1_000, now=3.0, workers=2).ttft


def test_prompts_of_other_shards_are_protected_as_own_ones():
    found = PrefillBacklog()
    for due_in in (1.0, inf):
        found.on_placed_elsewhere(RemotePrompt(f"w{due_in}", 6_000, 1, False, due_in, 1.0), "s", 0.0, STEP_COSTS)
    [delay] = join(found, 3_000, workers=1).delays
    assert delay.is_breach(2)
    assert not delay.is_breach(1)
    found.on_report("s", {"w1.0": 6_000, "winf": 5_000}, 1_000.0, 0.0, STEP_COSTS)
    [delay] = join(found, 3_000, workers=1).delays
    assert not delay.is_breach(2), "no first token was promised to the other one"


def test_a_prompt_within_its_safety_margin_is_not_delayed_further():
    prompt = PendingPrompt(6_000, rank=2, promised_by=1.0, usable_share=0.7)
    found = backlog_of(prompt)
    assert 0.7 < prompt.expected_at < 1.0
    assert join(found, 1_000).delays[0].is_breach(2)
    assert not join(found, 9_000).delays[0].is_breach(2), "a longer prompt does not delay it"


def test_a_prompt_that_is_shorter_by_less_than_a_step_may_delay_the_other():
    prompt = PendingPrompt(6_000)
    found = backlog_of(prompt)
    delays = {tokens: join(found, tokens).delays[0] for tokens in (5_000, 6_300, 8_000)}
    delayed = {tokens: each.expected_at > each.undelayed_at for tokens, each in delays.items()}
    assert delayed == {5_000: True, 6_300: True, 8_000: False}


def test_tokens_that_were_computed_of_the_wrong_prompt_are_given_back():
    first, second = (PendingPrompt(tokens, promised_by=9.0) for tokens in (3_000, 3_100))
    found = backlog_of(first, second)
    for prompt in (first, second):
        found.on_placed(prompt, "w", "s", 0.0, STEP_COSTS)
    now = 3_000 / STEP_COSTS.tokens_per_second
    assert [each.prompt for each in join(found, 100, now=now).delays] == [second], "the first one should be complete"
    found.remove(second, now, STEP_COSTS, is_complete=True)
    [delay] = join(found, 100, now=now).delays
    assert delay.prompt is first
    assert first.left_tokens == pytest.approx(3_100 - BUDGET_TOKENS, rel=0.01)


def test_an_excess_of_a_report_belongs_to_a_prompt_whose_first_token_is_not_known():
    first, second = (PendingPrompt(tokens, promised_by=9.0) for tokens in (3_000, 9_000))
    found = backlog_of(first, second)
    for prompt in (first, second):
        found.on_placed(prompt, "w", "s", 0.0, STEP_COSTS)
    now = 3_000 / STEP_COSTS.tokens_per_second
    assert [each.prompt for each in join(found, 100, now=now).delays] == [second]
    found.on_report("s", {"w": 9_000 + BUDGET_TOKENS + 700}, 1_000.0, now, STEP_COSTS)
    assert {id(each.prompt) for each in join(found, 100, now=now).delays} == {id(first), id(second)}
    assert first.left_tokens == pytest.approx(700)
