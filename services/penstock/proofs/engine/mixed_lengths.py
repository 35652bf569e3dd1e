"""One load of mixed lengths through continuous and through static batches of the same engine.

A usual static batch pads: it computes a finished row until the longest row ends. The `static` batches of this engine do
not pad, and waste only slots, so both are measured.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from penstock.proofs.engine.engine_bench import SLOTS, EngineBench
from penstock.simulator.calibration.timed_engine import StepTiming, effective_cores, typical_duration_s
from penstock.simulator.traffic.lengths import LogNormal
from penstock.worker.engine.batching.policy import BatchingPolicy, ContinuousBatching, StaticBatching
from penstock.worker.engine.interface import SequenceSpec

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
