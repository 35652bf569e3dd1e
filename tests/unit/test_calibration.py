"""The step-time model: fitted to steps, written to a file, and read by the simulator and the worker."""

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from penstock.cli.__main__ import cli
from penstock.simulator.calibration.fit import MeasuredStep, fit_step_time, fit_with_validation
from penstock.simulator.calibration.result import BLOCK_SIZE, cached_lengths, kv_blocks_for, points_for
from penstock.worker.config import WorkerConfig
from penstock.worker.engine.simulated.step_time import (
    FIELD_BY_KEY,
    StepTimeModel,
    StepWork,
    prefill_reads,
    read_step_time_model,
    step_time_toml,
)
from tiny_model import write_tiny_model

STEP_TIME = StepTimeModel(
    base_s=0.011,
    per_prefill_token_s=0.00025,
    per_decode_seq_s=0.00017,
    per_context_token_s=1.2e-6,
    per_prefill_context_token_s=1.1e-7,
)
STEP_WORKS = [
    *(StepWork(0, seqs, seqs * context, 0) for seqs in (1, 2, 8, 32) for context in (64, 512, 4096)),
    *(StepWork(chunk, 0, 0, prefill_reads(start, chunk)) for chunk in (16, 64, 512) for start in (0, 2048)),
    *(StepWork(chunk, 8, 4096, prefill_reads(0, chunk)) for chunk in (32, 256)),
]

ONE_PROMPT = """
duration = 10.0
[[tenants]]
name = "a"
arrivals = { kind = "regular", rate = 0.5 }
prompt = { tokens = 100 }
output = { tokens = 1 }
"""

terms = st.floats(1e-7, 1e-2)


def terms_of(model):
    return [getattr(model, field) for field in FIELD_BY_KEY.values()]


@given(
    st.builds(StepTimeModel, base_s=terms, per_prefill_token_s=terms, per_decode_seq_s=terms, per_context_token_s=terms)
)
def test_a_fit_recovers_the_model_of_exact_steps(model):
    found = fit_step_time([MeasuredStep(work, model.duration_s(work)) for work in STEP_WORKS])
    for work in STEP_WORKS:
        assert found.duration_s(work) == pytest.approx(model.duration_s(work), rel=1e-6)


def test_a_fit_recovers_the_model_under_noise_of_five_percent():
    noise = random.Random(3)
    steps = [MeasuredStep(work, STEP_TIME.duration_s(work) * noise.uniform(0.95, 1.05)) for work in STEP_WORKS * 4]
    found = fit_with_validation(steps)
    assert terms_of(found.step_time) == pytest.approx(terms_of(STEP_TIME), rel=0.1)
    assert 0 < found.median_error < found.p95_error < 0.08


@settings(max_examples=50)
@given(st.lists(st.floats(0.001, 1.0), min_size=len(STEP_WORKS), max_size=len(STEP_WORKS)))
def test_no_term_of_a_fit_is_negative(seconds):
    found = fit_step_time([MeasuredStep(work, each) for work, each in zip(STEP_WORKS, seconds, strict=True)])
    assert min(terms_of(found)) >= 0


def test_an_outlier_shows_in_the_error_and_not_in_its_own_prediction():
    steps = [MeasuredStep(work, STEP_TIME.duration_s(work)) for work in STEP_WORKS]
    steps[3] = MeasuredStep(STEP_WORKS[3], 2 * STEP_TIME.duration_s(STEP_WORKS[3]))
    found = fit_with_validation(steps)
    assert found.held_out_predictions[3] == pytest.approx(STEP_TIME.duration_s(STEP_WORKS[3]), rel=0.01)
    assert found.relative_errors[3] == pytest.approx(0.5, abs=0.01)


def test_too_few_steps_are_rejected():
    with pytest.raises(ValueError, match="too few"):
        fit_with_validation([MeasuredStep(STEP_WORKS[0], 1.0)] * 9)


def test_a_step_time_model_survives_its_file(tmp_path):
    path = tmp_path / "step_time.toml"
    path.write_text(step_time_toml(STEP_TIME, {"model": 'a "quoted" name', "median_error": 0.03}), encoding="utf-8")
    assert terms_of(read_step_time_model(path)) == pytest.approx(terms_of(STEP_TIME), rel=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"no \[step_time\] table"),
        ("[step_time]\nbase_s = 1", r"step_time\.base_s is unknown; known are base_ms"),
        ("[step_time]\nbase_ms = -1", r"step_time\.base_ms must be a number of ms"),
        ("[step_time]\nbase_ms = nan", r"step_time\.base_ms must be a number of ms"),
        ("[step_time]\nprefill_token_ms = 1", r"step_time\.base_ms must be above 0"),
        ("[step_time", "cannot be read"),
    ],
)
def test_an_invalid_step_time_file_is_rejected_with_its_field(tmp_path, text, message):
    path = tmp_path / "step_time.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_step_time_model(path)


def test_a_missing_step_time_file_is_reported():
    with pytest.raises(ValueError, match=r"nowhere\.toml cannot be read"):
        read_step_time_model(Path("nowhere.toml"))


def invoke(*args):
    """Run the command without log lines, such as that of the first compilation, on its output."""
    with capture_logs():
        return CliRunner().invoke(cli, ["simulate", *map(str, args)])


def test_a_simulation_and_a_simulated_worker_read_a_calibrated_model(tmp_path):
    model, fitted, plot = write_tiny_model(tmp_path / "tiny"), tmp_path / "step_time.toml", tmp_path / "step_time.svg"
    measured = invoke("--calibrate", "--model", model, "--rounds", 1, "--out", fitted, "--plot", plot, "--json")
    assert measured.exit_code == 0, measured.output
    result = json.loads(measured.stdout)
    assert {point["kind"] for point in result["points"]} == {"decode", "prefill", "mixed"}
    assert result["measured"]["points"] == len(result["points"]) >= 10
    assert "<svg" in plot.read_text(encoding="utf-8")
    assert WorkerConfig(sim_step_time_file=str(fitted)).engine_options().step_time == read_step_time_model(fitted)


def test_a_simulation_takes_the_time_of_its_model(tmp_path):
    scenario, fitted = tmp_path / "one.toml", tmp_path / "step_time.toml"
    scenario.write_text(ONE_PROMPT, encoding="utf-8")
    fitted.write_text(
        "[step_time]\nbase_ms = 10\nprefill_token_ms = 1\nprefill_context_token_ms = 0.01", encoding="utf-8"
    )
    figures = json.loads(invoke(scenario, "--step-time", fitted, "--json").stdout)
    step = 0.010 + 100 * 0.001 + prefill_reads(0, 100) * 1e-5
    assert figures["ttft_s"]["p50"] == pytest.approx(step, abs=0.01)  # and a few links


def test_a_worker_with_an_invalid_step_time_file_does_not_start(tmp_path):
    with pytest.raises(ValueError, match="cannot be read as a step time file"):
        WorkerConfig(sim_step_time_file=str(tmp_path / "nowhere.toml"))


def test_a_command_without_scenario_and_calibration_is_rejected_with_a_hint():
    result = invoke()
    assert result.exit_code == 2
    assert "--calibrate" in result.stderr


@pytest.mark.parametrize(("context_length", "slots"), [(256, 40), (8192, 40), (8192, 5)])
def test_points_fit_the_context_and_the_slots_and_their_reads_fit_the_pool(context_length, slots):
    points = points_for(context_length, slots)
    lengths = cached_lengths(points)
    assert {point.kind for point in points} >= {"decode", "prefill"}
    for point in points:
        assert point.start + point.chunk < context_length
        assert all(point.context <= length for length in lengths[: point.seqs])
        assert point.start <= lengths[0]
        assert point.seqs < slots
    assert kv_blocks_for(points) * BLOCK_SIZE > sum(lengths)
