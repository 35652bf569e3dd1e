"""The engine proof: its figures, the errors that it detects, and one small run of all of it."""

import pytest
import torch
from rich.console import Console

from penstock.proofs.engine.batch import KV_BLOCKS, BatchStress, count_differences
from penstock.proofs.engine.long_prompt import (
    DECODING_SEQS,
    LONG_PROMPT_TOKENS,
    LongPromptResult,
    run_long_prompt,
    simulated_engine,
)
from penstock.proofs.engine.options import EngineProofOptions
from penstock.proofs.engine.proof import decode_lines, long_prompt_lines, prove, throughput_lines
from penstock.proofs.engine.throughput import (
    DecodeStep,
    ThroughputCurve,
    mixed_requests,
    padded_outputs,
    roofline_s,
    step_work,
    throughput_curve,
)
from penstock.simulator.calibration.timed_engine import StepTiming, effective_cores, typical_duration_s
from penstock.worker.engine.loaders.load import locate_model
from penstock.worker.engine.loaders.load_model import read_checkpoint
from penstock.worker.engine.simulated.step_time import StepWork
from tiny_model import write_tiny_model

IDS = range(3, 300)
NO_WORK = StepWork(0, 0, 0, 0)


def lines_of(lines):
    return {line.figure: line for line in lines}


def test_a_step_reads_every_matrix_but_the_embedding_and_the_kv_of_every_position(tmp_path):
    checkpoint = read_checkpoint(*locate_model(str(write_tiny_model(tmp_path / "tiny"))))
    weights = checkpoint.weights(torch.float32, torch.device("cpu"))
    layers = [(each.qkv, each.out, each.gate_up, each.down) for each in weights.layers]
    matrices = weights.head.nbytes + sum(matrix.nbytes for layer in layers for matrix in layer)
    kv = 3 * 20 * checkpoint.shape.kv_bytes_per_token(torch.float32)
    work = step_work(checkpoint.shape, torch.float32, batch=3, context=20)
    assert work.bytes_read == matrices + kv
    assert roofline_s(work, bytes_per_s=2.0 * (matrices + kv)) == 0.5


def test_a_static_batch_that_pads_computes_every_row_until_its_longest_is_done():
    assert padded_outputs([3, 9, 4, 2, 2], size=2) == [9, 9, 4, 4, 2]


def test_the_load_is_the_same_for_the_same_seed_and_no_other():
    def lengths(seed):
        return [(len(spec.token_ids), spec.max_output_tokens) for spec in mixed_requests(IDS, seed, 50)]

    assert lengths(1) == lengths(1) != lengths(2)
    assert all(8 <= prompt <= 128 and 4 <= output <= 512 for prompt, output in lengths(1))


def test_the_goal_is_against_batches_that_pad():
    curves = {
        "continuous": ThroughputCurve(seconds=[1.0, 2.0], tokens=[300, 600]),
        "static": ThroughputCurve(seconds=[1.0, 2.0, 3.0, 3.5, 4.0, 4.0], tokens=[100, 200, 300, 400, 500, 600]),
        "padded": ThroughputCurve(seconds=[1.0, 2.0, 3.0, 5.9], tokens=[100, 200, 300, 600]),
    }
    lines = lines_of(throughput_lines(curves))
    assert lines["continuous over static batches that do not"].measured == pytest.approx(2.0)
    goal = lines["continuous over static batches that pad"]
    assert (goal.measured, goal.is_met) == (pytest.approx(2.95), False)
    assert lines["steps of static batches over continuous"].measured == pytest.approx(3.0)


def test_a_disturbed_step_of_a_curve_counts_with_its_undisturbed_time():
    undisturbed = StepTiming(wall_s=0.010, cpu_s=0.020, forward_s=0.0, cpu_wait_s=0.0, work=NO_WORK)
    disturbed = StepTiming(wall_s=0.030, cpu_s=0.022, forward_s=0.0, cpu_wait_s=0.02, work=NO_WORK)
    curve = throughput_curve([(undisturbed, 3), (disturbed, 4)], cores=2.0)
    assert curve.seconds == pytest.approx([0.010, 0.021])
    assert curve.tokens == [3, 7]


@pytest.mark.parametrize(("outside", "is_met"), [(0.1, True), (0.101, False)])
def test_a_tenth_of_a_step_of_eight_may_be_spent_outside_the_forward(outside, is_met):
    lines = lines_of(decode_lines([DecodeStep(1, 0.01, 0.5, 0.008), DecodeStep(8, 0.012, outside, 0.009)]))
    assert lines["time outside the forward at batch 8"].is_met is is_met
    assert lines["of the roofline reached at batch 8"].measured == pytest.approx(75.0)


@pytest.mark.parametrize(
    ("text", "wrong"), [([1, 2, 3], 0), ([1, 9, 3], 1), ([1, 2], 1), ([1, 2, 3, 4], 1), ([2, 3], 3)]
)
def test_changed_missing_and_additional_tokens_all_count_as_different(text, wrong):
    assert count_differences(text, [1, 2, 3]) == wrong


def test_a_prompt_of_fifty_thousand_tokens_gets_all_that_the_decodes_leave():
    assert all(line.is_met for line in long_prompt_lines(run_long_prompt()))
    assert run_long_prompt().steps * (512 - DECODING_SEQS) >= LONG_PROMPT_TOKENS


def test_a_long_prompt_that_delays_others_misses_the_goals():
    verdicts = [
        line.is_met for line in long_prompt_lines(LongPromptResult(steps=102, missed_decodes=1, steps_over_budget=1))
    ]
    assert verdicts == [False, False, False]


class FaultyEngine:
    """An engine that drops or changes the first token of every hundredth step."""

    def __init__(self, inner, fault):
        self.inner, self.fault = inner, fault

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def step(self):
        result = self.inner.step()
        if result.step % 100 == 0 and result.tokens:
            if self.fault == "swallow":
                for each in (result.seq_ids, result.tokens, result.indexes):
                    del each[0]
            else:
                result.tokens[0] = 2
        return result


def test_a_stressed_batch_loses_no_token_and_frees_every_block():
    stress = BatchStress(simulated_engine(KV_BLOCKS, 32, 128), 1_000, IDS)
    stress.run()
    assert stress.errors == stress.counts["changed"] == stress.counts["blocks not freed"] == 0
    assert min(stress.counts[name] for name in ("preempted", "cached", "cancelled")) > 10


@pytest.mark.parametrize("fault", ["swallow", "change"])
def test_batch_stress_detects_tokens_that_an_engine_drops_or_changes(fault):
    stress = BatchStress(FaultyEngine(simulated_engine(KV_BLOCKS, 32, 128), fault), 500, IDS)
    stress.run()
    assert stress.errors > 0 if fault == "swallow" else stress.counts["changed"] > 0


def test_steps_that_other_processes_disturbed_do_not_change_the_typical_duration():
    quiet = [StepTiming(wall_s=0.010, cpu_s=0.0198, forward_s=0.0, cpu_wait_s=0.0001, work=NO_WORK)] * 5
    disturbed = [StepTiming(wall_s=0.020, cpu_s=0.0200, forward_s=0.0, cpu_wait_s=0.018, work=NO_WORK)] * 20
    cores = effective_cores(quiet + disturbed)
    assert cores == pytest.approx(1.98)
    assert typical_duration_s(quiet + disturbed, cores) == pytest.approx(0.010)
    assert typical_duration_s(disturbed, cores) == pytest.approx(0.0101, rel=0.01)  # by CPU time, where none was quiet


def test_the_whole_proof_runs_on_a_small_model_and_meets_every_exact_goal(tmp_path):
    model = write_tiny_model(tmp_path / "tiny", context=512)
    picture = tmp_path / "engine.svg"
    options = EngineProofOptions(requests=32, stress_requests=400, real_stress_requests=64, plot=picture)
    card = prove(options, str(model), Console(quiet=True))
    exact = [line for line in card.lines if line.goal == "0"]
    assert len(exact) == 10
    assert not [line for line in exact if not line.is_met]
    assert not card.void_reason
    assert "<svg" in picture.read_text(encoding="utf-8")
