"""Measures decode steps of the engine, and their roofline on this machine's memory."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from penstock.proofs.engine.engine_bench import EngineBench
from penstock.proofs.engine.roofline import read_bandwidth, roofline_s, step_work
from penstock.simulator.calibration.timed_engine import (
    StepTiming,
    effective_cores,
    typical_duration_s,
    undisturbed_steps,
)
from penstock.worker.engine.interface import SequenceSpec

BATCH_SIZES = (1, 8, 32)
PROMPT_TOKENS = 128
STEPS_PER_ROUND = 20  # measured for each batch size
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """A decode step of `batch` sequences. Times in s."""

    batch: int
    step_s: float
    outside_forward_share: float  # share of the step that is not the model's forward
    roofline_s: float


def measure_decode_steps(bench: EngineBench, report_progress: Callable[[str], None]) -> list[DecodeStep]:
    """Measure steps and memory bandwidth alternately, so that a disturbance affects both."""
    report_progress("decode steps and their roofline")
    timings: dict[int, list[StepTiming]] = {batch: [] for batch in BATCH_SIZES}
    bandwidth: dict[int, float] = dict.fromkeys(BATCH_SIZES, 0.0)
    context = PROMPT_TOKENS + STEPS_PER_ROUND // 2
    work = {batch: step_work(bench.shape, bench.dtype, batch, context) for batch in BATCH_SIZES}
    for _ in range(ROUNDS):
        for batch in BATCH_SIZES:
            timings[batch] += bench.decode_steps(decode_requests(bench, batch), STEPS_PER_ROUND)
            measured = read_bandwidth(work[batch].bytes_read, bench.threads, bench.device)
            bandwidth[batch] = max(bandwidth[batch], measured)
    cores = effective_cores([timing for each in timings.values() for timing in each])
    return [
        _decode_step(batch, timings[batch], cores, roofline_s(work[batch], bytes_per_s=bandwidth[batch]))
        for batch in BATCH_SIZES
    ]


def decode_requests(bench: EngineBench, batch: int) -> list[SequenceSpec]:
    rng = random.Random(batch)
    return [
        SequenceSpec(
            seq_id=seq_id,
            token_ids=rng.choices(bench.token_ids, k=PROMPT_TOKENS),
            max_output_tokens=2 * STEPS_PER_ROUND,
            ignore_eos=True,
        )
        for seq_id in range(batch)
    ]


def _decode_step(batch: int, timings: Sequence[StepTiming], cores: float, roofline: float) -> DecodeStep:
    undisturbed = undisturbed_steps(timings) or timings
    outside = median((timing.wall_s - timing.forward_s) / timing.wall_s for timing in undisturbed)
    return DecodeStep(batch, typical_duration_s(timings, cores), outside, roofline)
