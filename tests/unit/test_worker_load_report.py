"""The load report: the fullness and throughput of a worker."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.engine.interface import Capacity, StepResult
from penstock.worker.engine_host.state import EngineState
from penstock.worker.scheduler_session.load_report import MAX_STEPS_BETWEEN_REPORTS, LoadReport, load_report_of
from penstock.worker.scheduler_session.throughput import EngineThroughput

ENGINE_CAPACITY = Capacity(
    slots=8,
    slots_free=5,
    blocks=100,
    blocks_free=60,
    blocks_cached=10,
    blocks_promised=25,
    block_size=16,
    waiting=2,
    running=3,
    prefill_backlog_tokens=77,
)
REPORT = LoadReport(running=5, free_kv_blocks=35, prefill_backlog_tokens=77, step_time=0.01, tokens_per_second=100.0)


def test_promised_blocks_are_not_free():
    load = load_report_of(ENGINE_CAPACITY, EngineThroughput())
    assert load == LoadReport(
        running=5, free_kv_blocks=35, prefill_backlog_tokens=77, step_time=None, tokens_per_second=0.0
    )


def test_promises_beyond_the_free_blocks_leave_zero():
    assert load_report_of(replace(ENGINE_CAPACITY, blocks_promised=61), EngineThroughput()).free_kv_blocks == 0


def test_any_change_of_a_count_is_reported_and_a_small_one_of_throughput_is_not():
    assert REPORT.differs_from(None)
    assert replace(REPORT, free_kv_blocks=34).differs_from(REPORT)
    assert replace(REPORT, step_time=0.02).differs_from(REPORT)
    assert replace(REPORT, tokens_per_second=120.0).differs_from(REPORT)
    assert not replace(REPORT, step_time=0.0105, tokens_per_second=105.0).differs_from(REPORT)


def test_the_first_step_sets_the_throughput():
    throughput = EngineThroughput()
    throughput.record(StepResult(1, prefill_tokens=30, decode_seqs=10), 0.02)
    assert throughput.step_time == 0.02
    assert throughput.tokens_per_second == 2000.0


def test_a_step_without_work_does_not_count():
    throughput = EngineThroughput()
    throughput.record(StepResult(1, prefill_tokens=30, decode_seqs=10), 0.02)
    throughput.record(StepResult(2), 5.0)
    assert throughput.step_time == 0.02


def test_long_steps_weigh_by_their_time():
    throughput = EngineThroughput()
    for number in range(200):
        throughput.record(StepResult(number, decode_seqs=10), 0.01 if number % 2 else 0.03)
    assert 480 < throughput.tokens_per_second < 520  # 20 tokens in 40 ms, not the mean of 1000 and 333


def test_the_prefill_rate_is_that_of_steps_that_prefill():
    throughput = EngineThroughput()
    throughput.record(StepResult(1, decode_seqs=10), 0.01)
    assert throughput.prefill_tokens_per_second == 0.0
    throughput.record(StepResult(2, prefill_tokens=90, decode_seqs=10), 0.03)
    throughput.record(StepResult(3, decode_seqs=10), 0.01)
    assert throughput.prefill_tokens_per_second == 3000.0
    assert replace(REPORT, prefill_tokens_per_second=1.0).differs_from(REPORT)


def test_the_time_per_prompt_token_is_separated_from_the_base_time_of_a_step():
    throughput = EngineThroughput()
    for number in range(200):
        prompt = 100 * (number % 5)
        throughput.record(StepResult(number, prefill_tokens=prompt, decode_seqs=10), 0.01 + 0.0001 * prompt)
    assert throughput.prefill_token_time == pytest.approx(0.0001, rel=0.01)
    assert throughput.decode_step_time == pytest.approx(0.01, rel=0.05)
    assert throughput.max_step_tokens == 410


def test_equal_steps_give_no_time_per_prompt_token():
    throughput = EngineThroughput()
    for number in range(50):
        throughput.record(StepResult(number, decode_seqs=10), 0.01)
    assert throughput.prefill_token_time == 0
    assert throughput.decode_step_time == pytest.approx(0.01)


@given(st.lists(st.tuples(st.integers(0, 10_000), st.floats(1e-6, 10.0)), max_size=60))
def test_no_steps_make_a_part_of_a_step_negative(steps):
    throughput = EngineThroughput()
    for number, (prompt, took) in enumerate(steps):
        throughput.record(StepResult(number, prefill_tokens=prompt, decode_seqs=1), took)
    assert throughput.prefill_token_time >= 0
    assert (throughput.decode_step_time or 0.0) >= 0


def test_steps_are_reported_at_intervals_without_another_change():
    assert not replace(REPORT, steps=MAX_STEPS_BETWEEN_REPORTS - 1).differs_from(REPORT)
    assert replace(REPORT, steps=MAX_STEPS_BETWEEN_REPORTS).differs_from(REPORT)


def test_a_prompt_on_its_way_to_the_engine_is_backlog_until_a_step_that_began_after_it_was_sent():
    state = EngineState(capacity=ENGINE_CAPACITY)
    backlog = ENGINE_CAPACITY.prefill_backlog_tokens
    state.on_sent(1, 500, now=10.00)
    assert state.load.prefill_backlog_tokens == backlog + 500
    state.on_step(StepResult(1), ENGINE_CAPACITY, duration_s=0.06, ended_at=10.05)
    assert state.load.prefill_backlog_tokens == backlog + 500, "that step had begun before"
    state.on_step(StepResult(2), ENGINE_CAPACITY, duration_s=0.06, ended_at=10.11)
    assert state.load.prefill_backlog_tokens == backlog


def test_a_prompt_that_the_engine_rejects_or_loses_is_no_backlog():
    state = EngineState(capacity=ENGINE_CAPACITY)
    for seq_id in (1, 2):
        state.on_sent(seq_id, 500, now=10.00)
    state.on_add_rejected(1)
    assert state.load.prefill_backlog_tokens == ENGINE_CAPACITY.prefill_backlog_tokens + 500
    state.on_lost()
    state.capacity = ENGINE_CAPACITY
    assert state.load.prefill_backlog_tokens == ENGINE_CAPACITY.prefill_backlog_tokens
