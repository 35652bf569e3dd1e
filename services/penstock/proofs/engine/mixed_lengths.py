"""One load of mixed lengths through continuous and through static batches of the same engine.

A static batch as most are still computes a row that has finished until the longest is done. Ours, `static`, does not,
so it is measured as well: what it still wastes is slots.
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
PADDED_REQUESTS = 3 * SLOTS  # requests, as no batch that pads knows of the next; they take the longest by far


@dataclass(frozen=True, slots=True)
class ThroughputCurve:
    """How a load went through: after each step the s that it had taken and the tokens made that were asked for.

    The s are those of an engine that has the machine to itself.
    """

    seconds: Sequence[float]
    tokens: Sequence[int]

    @property
    def tokens_per_s(self) -> float:
        """Tokens/s."""
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
    """Tokens computed for each of the requests when every static batch of `size` runs as long as its longest."""
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
    wanted = [spec.max_output_tokens for spec in specs]
    kinds: dict[str, tuple[BatchingPolicy, list[int]]] = {
        "continuous": (ContinuousBatching(), wanted),
        "static": (StaticBatching(), wanted),
        "padded": (StaticBatching(), padded_outputs(wanted[:PADDED_REQUESTS], SLOTS)),
    }
    taken = {}
    for name, (batching, outputs) in kinds.items():
        report_progress(f"{len(outputs)} requests of mixed lengths through {name} batches")
        longer = [_with_output_length(spec, output, context) for spec, output in zip(specs, outputs, strict=False)]
        bench.reset(longer, policy=batching)
        taken[name] = _run_steps(bench, wanted)
    cores = effective_cores([turn for steps in taken.values() for turn, _ in steps])
    return {name: throughput_curve(steps, cores) for name, steps in taken.items()}


def _run_steps(bench: EngineBench, output_lengths: Sequence[int]) -> list[tuple[StepTiming, int]]:
    """Every step to the end, and the tokens of it that were asked for."""
    steps = []
    while bench.timed_engine.engine.has_work:
        result, turn = bench.timed_engine.step()
        places = zip(result.seq_ids, result.indexes, strict=True)
        steps.append((turn, sum(index < output_lengths[seq_id] for seq_id, index in places)))
    return steps


def throughput_curve(steps: Sequence[tuple[StepTiming, int]], cores: float) -> ThroughputCurve:
    return ThroughputCurve(
        seconds=list(accumulate(typical_duration_s([turn], cores, min_steps=1) for turn, _ in steps)),
        tokens=list(accumulate(tokens for _, tokens in steps)),
    )


def _with_output_length(spec: SequenceSpec, output: int, context: int) -> SequenceSpec:
    return replace(spec, max_output_tokens=min(output, context - len(spec.token_ids)))
