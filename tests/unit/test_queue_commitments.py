"""TTFT commitments: shorter prompts that would make longer ones late are rejected, within the breach budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.chassis.durations import seconds_of
from penstock.queue import effects as out
from penstock.queue.admission.admission import TtftTargets
from penstock.queue.frames import to_edge
from penstock.queue.prediction.commitments import (
    BREACH_BUDGET_PER_COMMITMENT,
    MAX_BREACH_BUDGET,
    MAX_COMMITMENTS,
    Commitment,
    TtftCommitments,
)
from penstock.queue.prediction.pool_stats import PoolStats
from queue_tickets import STANDARD, START_UNIX_S, ShardDriver, only, sheds

TTFT_TARGETS = TtftTargets({STANDARD: 2.0}, headroom=0.95)
SLOW_POOL = PoolStats(
    START_UNIX_S,
    slots=100,
    workers=1,
    decode_step_time=0.1,
    seconds_per_prefill_token=0.001,
    max_step_tokens=150,
    step_time=0.1,
)  # 600 tokens/s
LONG_COMMITMENT = Commitment(rank=2, prompt_tokens=1_000, expected_at=0.6, due_at=1.0)


def commitments_of(*commitments, budget=0.0):
    found = TtftCommitments()
    for first in commitments:
        found.commit(Commitment(first.rank, first.prompt_tokens, first.expected_at, first.due_at))
    found.breach_budget = budget
    return found


def is_allowed(found, rank, prompt, prefill_delay, starts_at, *, workers=1):
    return found.breach_budget >= found.expected_breaches(rank, prompt, prefill_delay, starts_at, workers=workers)


def admit(found, rank, prompt, prefill_delay, starts_at, *, now=0.0, workers=1):
    """Record an admitted prompt, as `Admission.on_admitted` does."""
    found.record_breaches(found.expected_breaches(rank, prompt, prefill_delay, starts_at, workers=workers))
    found.delay_overtaken(prompt, prefill_delay, starts_at, now, workers=workers)


def test_shorter_prompts_are_admitted_while_longer_ones_stay_in_time():
    assert is_allowed(commitments_of(LONG_COMMITMENT), 2, 100, prefill_delay=0.1, starts_at=0.0)
    found = commitments_of(LONG_COMMITMENT)
    for _ in range(4):
        found.delay_overtaken(100, prefill_delay=0.09, starts_at=0.0, now=0.0)
    assert not is_allowed(found, 2, 100, prefill_delay=0.09, starts_at=0.0), "five times 0.09 s exceed 0.4 s"


@pytest.mark.parametrize(
    ("prompt", "prefill_s", "starts_at"),
    [(1_000, 0.5, 0.0), (1_200, 0.5, 0.0), (100, 0.5, 0.7), (100, 0.5, 0.3)],
    ids=["as long", "longer", "starts after its first token", "nearly done"],
)
def test_commitments_that_a_prompt_does_not_pass_do_not_block_it(prompt, prefill_s, starts_at):
    assert is_allowed(commitments_of(LONG_COMMITMENT), 2, prompt, prefill_s, starts_at)


def test_a_prompt_passes_commitments_that_are_open_when_it_starts():
    assert is_allowed(commitments_of(LONG_COMMITMENT), 2, 100, prefill_delay=0.1, starts_at=0.25)
    tight = Commitment(2, 1_000, 0.6, 0.65)
    assert not is_allowed(commitments_of(tight), 2, 100, prefill_delay=0.1, starts_at=0.25)
    assert is_allowed(commitments_of(tight), 2, 100, prefill_delay=0.1, starts_at=0.35)


def test_a_higher_class_is_not_blocked_by_a_lower_one():
    tight = Commitment(
        LONG_COMMITMENT.rank,
        LONG_COMMITMENT.prompt_tokens,
        LONG_COMMITMENT.expected_at,
        LONG_COMMITMENT.expected_at + 0.01,
    )
    assert not is_allowed(commitments_of(tight), 2, 100, prefill_delay=0.1, starts_at=0.0)
    assert is_allowed(commitments_of(tight), 1, 100, prefill_delay=0.1, starts_at=0.0)


def test_the_breach_budget_allows_a_late_commitment_after_many_kept_ones():
    tight = Commitment(2, 1_000, 0.6, 0.61)
    found = commitments_of(tight, tight, budget=1.0)
    assert not is_allowed(found, 2, 100, prefill_delay=0.1, starts_at=0.0), "two would exceed the budget"
    found = commitments_of(tight, budget=1.0)
    assert is_allowed(found, 2, 100, prefill_delay=0.1, starts_at=0.0)
    admit(found, 2, 100, prefill_delay=0.1, starts_at=0.0)
    assert found.breach_budget == 0.0
    assert is_allowed(found, 2, 100, prefill_delay=0.1, starts_at=0.0)


@given(st.lists(st.tuples(st.integers(1, 4_000), st.floats(0.001, 0.2)), max_size=60), st.integers(0, 40))
def test_breaches_stay_within_their_share_of_commitments(prompts, kept):
    found, made, broken = commitments_of(budget=0.0), 0, 0
    for first in [LONG_COMMITMENT] * kept:
        found.commit(Commitment(first.rank, first.prompt_tokens, first.expected_at, first.due_at))
        made += 1
    for number, (prompt, prefill_s) in enumerate(prompts):
        now, before = number / 100, found.breach_budget
        if is_allowed(found, 2, prompt, prefill_s, now):
            admit(found, 2, prompt, prefill_s, now, now=now)
            broken += round(before - found.breach_budget)
            found.commit(Commitment(2, prompt, now + prefill_s, now + 1.0))
            made += 1
    assert broken <= BREACH_BUDGET_PER_COMMITMENT * made
    assert found.breach_budget <= MAX_BREACH_BUDGET


def test_a_blocked_range_begins_above_the_prompt_that_uses_the_slack_to_the_end():
    found = commitments_of(Commitment(2, 152, 1.0, 1.15))
    assert found.blocked_range(2, 151, 0.151, 0.0).min_prompt_tokens == 151
    assert is_allowed(found, 2, 150, 0.150, 0.0)


def test_in_a_fleet_a_prompt_probably_joins_another_worker_than_the_commitments_that_it_passes():
    tight = Commitment(2, 1_000, 0.6, 0.61)
    assert not is_allowed(commitments_of(tight, budget=0.2), 2, 100, prefill_delay=0.1, starts_at=0.0)
    assert is_allowed(commitments_of(tight, budget=0.2), 2, 100, prefill_delay=0.1, starts_at=0.0, workers=8)
    assert commitments_of(*[tight] * 8).expected_breaches(2, 100, 0.1, 0.0, workers=8) == 1.0
    found = commitments_of(*[LONG_COMMITMENT] * 8)
    for _ in range(31):
        admit(found, 2, 100, prefill_delay=0.09, starts_at=0.0, workers=8)
    assert len(found) == 8, "each has moved by 31 eighths of 0.09 s, less than the slack of 0.4 s"


def test_commitments_are_bounded():
    found = TtftCommitments()
    for number in range(5 * MAX_COMMITMENTS):
        found.commit(Commitment(2, 100, number + 1.0, number + 2.0))
        assert len(found) <= 2 * MAX_COMMITMENTS


def test_a_short_prompt_is_rejected_if_it_would_make_a_long_one_late():
    """The TTFT of a long prompt is 1.7 of its 2 s, and each short one delays it by 0.15 s."""
    shard, alone = ShardDriver(ttft_targets=TTFT_TARGETS), ShardDriver(ttft_targets=TTFT_TARGETS)
    for each in (shard, alone):
        each.connect()
        each.book.on_pool_stats("s", "m", SLOW_POOL)
    assert not sheds(shard.enqueue("long", tokens=1_010))
    rejected = [found for number in range(4) if sheds(found := shard.enqueue(f"short-{number}"))]
    assert 1 <= len(rejected) <= 3
    assert "make admitted requests late" in str(only(out.Shed, rejected[0]).error)
    assert not any(sheds(alone.enqueue(f"short-{number}")) for number in range(4)), "only the long prompt is passed"


commitments = st.builds(
    lambda prompt, expected, spare: Commitment(2, prompt, expected, expected + spare),
    *(st.integers(50, 1_000), st.floats(0.1, 2.0), st.floats(0.0, 0.3)),
)


@given(
    st.lists(commitments, max_size=8),
    st.floats(0, MAX_BREACH_BUDGET),
    st.integers(1, 500),
    st.floats(0, 1),
    st.integers(1, 4),
    st.data(),
)
def test_a_blocked_range_holds_for_its_whole_duration_and_sizes(  # noqa: PLR0917  # drawn by hypothesis
    open_commitments, budget, prompt, at, workers, data
):
    found, per_token = commitments_of(*open_commitments, budget=budget), 0.001
    block = found.blocked_range(2, prompt, prompt * per_token, at, workers=workers)
    assert (block is None) == is_allowed(found, 2, prompt, prompt * per_token, at, workers=workers)
    if block:
        shorter = data.draw(st.integers(block.min_prompt_tokens, prompt))
        later = at + data.draw(st.floats(0, 0.99)) * block.duration
        assert not is_allowed(found, 2, shorter, shorter * per_token, later, workers=workers)


def test_a_rejection_for_others_has_windows_by_prompt_length():
    shard = ShardDriver(ttft_targets=TTFT_TARGETS)
    shard.connect()
    shard.book.on_pool_stats("s", "m", SLOW_POOL)
    shard.enqueue("long", tokens=1_010)
    while not (rejected := sheds(effects := shard.enqueue(f"short-{len(shard.effects)}"))):
        pass
    first, *longer = to_edge(only(out.Shed, effects)).shed.rejection_windows
    assert first.min_prompt_tokens <= 90 == first.max_prompt_tokens
    assert 0 < seconds_of(first.duration) < 2.0
    assert [each.max_prompt_tokens for each in longer] == [180, 360][: len(longer)]
    assert set(rejected.values()) == {"OVERLOADED"}
