"""One load of mixed lengths through continuous and through static batches of the same engine.

A static batch as most are still computes a row that has finished until the longest is done. Ours, `naive`, does not,
so it is measured as well: what it still wastes is slots.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from penstock.proofs.engine.bench import SLOTS, Bench
from penstock.simulator.calibration.timed_engine import Turn, cores_had, settled
from penstock.simulator.traffic.lengths import LogNormal
from penstock.worker.engine.batching import BatchingPolicy, ContinuousBatching, StaticBatching
from penstock.worker.engine.interface import SequenceSpec

PROMPT = LogNormal(mean=32, sigma=0.7, low=8, high=128)
OUTPUT = LogNormal(mean=48, sigma=1.4, low=4, high=512)
PADDED = 3 * SLOTS  # requests, as no batch that pads knows of the next; they take the longest by far


@dataclass(frozen=True, slots=True)
class Flow:
    """How a load went through: after each step the s that it had taken and the tokens made that were asked for.

    The s are those of an engine that has the machine to itself.
    """

    seconds: Sequence[float]
    tokens: Sequence[int]

    @property
    def rate(self) -> float:
        """Tokens/s."""
        return self.tokens[-1] / self.seconds[-1]


def requests(ids: Sequence[int], seed: int, count: int) -> list[SequenceSpec]:
    rng = random.Random(seed)
    return [
        SequenceSpec(
            seq_id=number,
            token_ids=rng.choices(ids, k=PROMPT.draw(rng)),
            max_output_tokens=OUTPUT.draw(rng),
            ignore_eos=True,
        )
        for number in range(count)
    ]


def padded(outputs: Sequence[int], size: int) -> list[int]:
    """Tokens computed for each of the requests when every static batch of `size` runs as long as its longest."""
    return [
        max(outputs[start : start + size])
        for start in range(0, len(outputs), size)
        for _ in outputs[start : start + size]
    ]


def measure_flows(bench: Bench, seed: int, count: int, say: Callable[[str], None]) -> dict[str, Flow]:
    context = bench.card.context_length
    specs = [_of_length(spec, spec.max_output_tokens, context) for spec in requests(bench.ids, seed, count)]
    wanted = [spec.max_output_tokens for spec in specs]
    kinds: dict[str, tuple[BatchingPolicy, list[int]]] = {
        "continuous": (ContinuousBatching(), wanted),
        "naive": (StaticBatching(), wanted),
        "padded": (StaticBatching(), padded(wanted[:PADDED], SLOTS)),
    }
    taken = {}
    for name, (batching, outputs) in kinds.items():
        say(f"{len(outputs)} requests of mixed lengths through {name} batches")
        longer = [_of_length(spec, output, context) for spec, output in zip(specs, outputs, strict=False)]
        bench.begin(longer, batching=batching)
        taken[name] = _steps(bench, wanted)
    cores = cores_had([turn for steps in taken.values() for turn, _ in steps])
    return {name: flow_of(steps, cores) for name, steps in taken.items()}


def _steps(bench: Bench, wanted: Sequence[int]) -> list[tuple[Turn, int]]:
    """Every step to the end, and the tokens of it that were asked for."""
    steps = []
    while bench.watched.engine.has_work:
        result, turn = bench.watched.step()
        places = zip(result.seq_ids, result.indexes, strict=True)
        steps.append((turn, sum(index < wanted[seq_id] for seq_id, index in places)))
    return steps


def flow_of(steps: Sequence[tuple[Turn, int]], cores: float) -> Flow:
    return Flow(
        seconds=list(accumulate(settled([turn], cores, fewest=1) for turn, _ in steps)),
        tokens=list(accumulate(tokens for _, tokens in steps)),
    )


def _of_length(spec: SequenceSpec, output: int, context: int) -> SequenceSpec:
    return replace(spec, max_output_tokens=min(output, context - len(spec.token_ids)))
