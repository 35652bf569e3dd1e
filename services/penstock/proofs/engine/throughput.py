"""Throughput of the engine: decode steps against their roofline, and continuous against static batches.

The roofline of a decode step is the least time for the bytes that it reads and the products that it computes (source:
Williams, Waterman, Patterson 2009, with memory and arithmetic overlapping fully).

A usual static batch pads: it computes a finished row until the longest row ends. The `static` batches of this engine do
not pad, and waste only slots, so both are measured.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median

import torch

from penstock.proofs.engine.engine_bench import SLOTS, EngineBench
from penstock.simulator.calibration.timed_engine import (
    StepTiming,
    effective_cores,
    typical_duration_s,
    undisturbed_steps,
)
from penstock.simulator.traffic.demand import LogNormal
from penstock.worker.engine.batching.policy import BatchingPolicy, ContinuousBatching, StaticBatching
from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.engine.torch.weights import ModelShape

MATRIX_COLUMNS = 1024
REPEATS = 7


@dataclass(frozen=True, slots=True)
class StepWork:
    bytes_read: int  # every matrix once, and the K and V of every position
    flops: int  # two for each weight and row; those of attention are negligible


def step_work(shape: ModelShape, dtype: torch.dtype, batch: int, context: int) -> StepWork:
    """Return the work of a decode step of `batch` sequences that read `context` positions each.

    The head counts as a matrix. An embedding that is not the head is a lookup of one row per sequence: not counted.
    """
    q, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    layer = shape.dim * (2 * q + 2 * kv + 3 * shape.hidden)
    weights = shape.layers * layer + shape.vocab_size * shape.dim
    bytes_read = weights * dtype.itemsize + batch * context * shape.kv_bytes_per_token(dtype)
    return StepWork(bytes_read=bytes_read, flops=2 * weights * batch)


def roofline_s(work: StepWork, *, bytes_per_s: float, flops_per_s: float = float("inf")) -> float:
    return max(work.bytes_read / bytes_per_s, work.flops / flops_per_s)


def read_bandwidth(size: int, threads: int, device: str = "cpu") -> float:
    """Return bytes/s over `size` bytes: by a matrix-vector product or a sum, whichever is faster on this machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        matrix = torch.ones(size // (4 * MATRIX_COLUMNS) + 1, MATRIX_COLUMNS, device=device)
        vector = torch.ones(MATRIX_COLUMNS, device=device)
        return matrix.nbytes / min(best_time_s(lambda: torch.mv(matrix, vector)), best_time_s(matrix.sum))
    finally:
        torch.set_num_threads(before)


def best_time_s(call: Callable[[], torch.Tensor], repeats: int = REPEATS) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        if call().is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


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


PROMPT = LogNormal(mean=32, sigma=0.7, low=8, high=128)
OUTPUT = LogNormal(mean=48, sigma=1.4, low=4, high=512)
PADDED_REQUESTS = 3 * SLOTS  # fewer, because padded batches are the slowest and independent of each other


@dataclass(frozen=True, slots=True)
class ThroughputCurve:
    """Progress of a load: after each step the s since the start, and the requested tokens generated until then.

    The s are those of an engine without other processes on the machine.
    """

    seconds: Sequence[float]
    tokens: Sequence[int]

    @property
    def tokens_per_s(self) -> float:
        return self.tokens[-1] / self.seconds[-1]


def mixed_requests(token_ids: Sequence[int], seed: int, count: int) -> list[SequenceSpec]:
    rng = random.Random(seed)
    return [
        SequenceSpec(
            seq_id=number,
            token_ids=rng.choices(token_ids, k=PROMPT.draw(rng)),
            max_output_tokens=OUTPUT.draw(rng),
            ignore_eos=True,
        )
        for number in range(count)
    ]


def padded_outputs(outputs: Sequence[int], size: int) -> list[int]:
    """Return the tokens computed for each request if every static batch of `size` runs as long as its longest row."""
    return [
        max(outputs[start : start + size])
        for start in range(0, len(outputs), size)
        for _ in outputs[start : start + size]
    ]


def measure_throughput(
    bench: EngineBench, seed: int, count: int, report_progress: Callable[[str], None]
) -> dict[str, ThroughputCurve]:
    context = bench.card.context_length
    specs = [
        _with_output_length(spec, spec.max_output_tokens, context)
        for spec in mixed_requests(bench.token_ids, seed, count)
    ]
    requested = [spec.max_output_tokens for spec in specs]
    kinds: dict[str, tuple[BatchingPolicy, list[int]]] = {
        "continuous": (ContinuousBatching(), requested),
        "static": (StaticBatching(), requested),
        "padded": (StaticBatching(), padded_outputs(requested[:PADDED_REQUESTS], SLOTS)),
    }
    measured = {}
    for name, (batching, outputs) in kinds.items():
        report_progress(f"{len(outputs)} requests of mixed lengths through {name} batches")
        longer = [_with_output_length(spec, output, context) for spec, output in zip(specs, outputs, strict=False)]
        bench.reset(longer, policy=batching)
        measured[name] = _run_steps(bench, requested)
    cores = effective_cores([timing for steps in measured.values() for timing, _ in steps])
    return {name: throughput_curve(steps, cores) for name, steps in measured.items()}


def _run_steps(bench: EngineBench, output_lengths: Sequence[int]) -> list[tuple[StepTiming, int]]:
    """Run to the end; return the timing of each step and its requested tokens."""
    steps = []
    while bench.timed_engine.engine.has_work:
        result, timing = bench.timed_engine.step()
        places = zip(result.seq_ids, result.indexes, strict=True)
        steps.append((timing, sum(index < output_lengths[seq_id] for seq_id, index in places)))
    return steps


def throughput_curve(steps: Sequence[tuple[StepTiming, int]], cores: float) -> ThroughputCurve:
    return ThroughputCurve(
        seconds=list(accumulate(typical_duration_s([timing], cores, min_steps=1) for timing, _ in steps)),
        tokens=list(accumulate(tokens for _, tokens in steps)),
    )


def _with_output_length(spec: SequenceSpec, output: int, context: int) -> SequenceSpec:
    return replace(spec, max_output_tokens=min(output, context - len(spec.token_ids)))
