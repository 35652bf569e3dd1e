"""Decode steps beside the least time that they can take: what they read, over how fast this machine reads.

Source: Williams, Waterman, Patterson 2009 (Roofline), its memory side.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from penstock.proofs.engine.engine_bench import EngineBench
from penstock.simulator.calibration.timed_engine import (
    StepTiming,
    effective_cores,
    typical_duration_s,
    undisturbed_steps,
)
from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.engine.torch.weights import ModelShape

BATCH_SIZES = (1, 8, 32)
PROMPT_TOKENS = 128
STEPS_PER_ROUND = 20  # measured of each batch in a round
ROUNDS = 3
REPEATS = 7
MATRIX_COLUMNS = 1024


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """A decode step of `batch` sequences. Times in s."""

    batch: int
    step_s: float
    outside_forward_share: float  # share of the step that is not the model's forward
    roofline_s: float


def measure_decode_steps(bench: EngineBench, report_progress: Callable[[str], None]) -> list[DecodeStep]:
    """Reading and stepping in turns, so that both have the machine's calm moments."""
    report_progress("decode steps beside the roofline")
    turns: dict[int, list[StepTiming]] = {batch: [] for batch in BATCH_SIZES}
    reads: dict[int, float] = dict.fromkeys(BATCH_SIZES, 0.0)
    for _ in range(ROUNDS):
        for batch in BATCH_SIZES:
            turns[batch] += bench.decode_steps(decode_requests(bench, batch), STEPS_PER_ROUND)
            reads[batch] = max(reads[batch], read_bandwidth(_bytes_read(bench, batch), bench))
    cores = effective_cores([turn for each in turns.values() for turn in each])
    return [_decode_step(batch, turns[batch], cores, _bytes_read(bench, batch) / reads[batch]) for batch in BATCH_SIZES]


def decode_requests(bench: EngineBench, batch: int) -> list[SequenceSpec]:
    rng = random.Random(batch)
    return [
        SequenceSpec(
            seq_id=place,
            token_ids=rng.choices(bench.token_ids, k=PROMPT_TOKENS),
            max_output_tokens=2 * STEPS_PER_ROUND,
            ignore_eos=True,
        )
        for place in range(batch)
    ]


def _decode_step(batch: int, timings: Sequence[StepTiming], cores: float, roofline_s: float) -> DecodeStep:
    outside = median((turn.wall_s - turn.forward_s) / turn.wall_s for turn in undisturbed_steps(timings) or timings)
    return DecodeStep(batch, typical_duration_s(timings, cores), outside, roofline_s)


def _bytes_read(bench: EngineBench, batch: int) -> int:
    return step_bytes(bench.shape, bench.dtype, batch, PROMPT_TOKENS + STEPS_PER_ROUND // 2)


def step_bytes(shape: ModelShape, dtype: torch.dtype, batch: int, context: int) -> int:
    """Every matrix once, the head among them, and the K and V of every position; an embedding is a lookup."""
    q, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    layer = shape.dim * (2 * q + 2 * kv + 3 * shape.hidden)
    weights = shape.layers * layer + shape.vocab_size * shape.dim
    return weights * dtype.itemsize + batch * context * shape.kv_bytes_per_token(dtype)


def read_bandwidth(size: int, bench: EngineBench) -> float:
    """Bytes/s over `size` bytes: a matrix times a vector or a sum, whichever this machine does faster."""
    before = torch.get_num_threads()
    torch.set_num_threads(bench.threads)
    try:
        matrix = torch.ones(size // (4 * MATRIX_COLUMNS) + 1, MATRIX_COLUMNS, device=bench.device)
        vector = torch.ones(MATRIX_COLUMNS, device=bench.device)
        return matrix.nbytes / min(_best_time(lambda: torch.mv(matrix, vector)), _best_time(matrix.sum))
    finally:
        torch.set_num_threads(before)


def _best_time(call: Callable[[], torch.Tensor]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call().flatten()[0].item()  # which waits for a GPU
        times.append(time.perf_counter() - start)
    return min(times)
