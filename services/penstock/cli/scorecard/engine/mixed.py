"""One load of mixed lengths through continuous and through static batches of the same engine.

A static batch as most are still computes a row that has finished until the longest is done. Ours, `naive`, does not,
so it is measured as well: what it still wastes is slots.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from penstock.cli.scorecard.engine.bench import SLOTS, Bench
from penstock.simulator.lengths import LogNormal
from penstock.worker.engine.batching import Batching, Continuous, Naive
from penstock.worker.engine.interface import SequenceSpec

PROMPT = LogNormal(mean=32, sigma=0.7, low=8, high=128)
OUTPUT = LogNormal(mean=48, sigma=1.4, low=4, high=512)


@dataclass(slots=True)
class Flow:
    """How a load went through."""

    tokens: int = 0  # that were asked for
    wall: float = 0.0  # s
    own: float = 0.0  # s of the engine's own: on a CPU of all its threads, as neighbours lengthen the wall time
    steps: int = 0
    curve: list[tuple[float, int]] = field(default_factory=list)  # s from the start and tokens by then


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
    computed = padded(wanted, SLOTS)
    kinds: dict[str, tuple[Batching, list[int]]] = {
        "continuous": (Continuous(), wanted),
        "naive": (Naive(), wanted),
        "padded": (Naive(), computed),
    }
    flows = {}
    for name, (batching, outputs) in kinds.items():
        say(f"{len(specs)} requests of mixed lengths through {name} batches")
        flows[name] = _flow(bench, batching, specs, outputs)
    return flows


def _flow(bench: Bench, batching: Batching, specs: Sequence[SequenceSpec], outputs: Sequence[int]) -> Flow:
    wanted = [spec.max_output_tokens for spec in specs]
    context = bench.card.context_length
    longer = [_of_length(spec, output, context) for spec, output in zip(specs, outputs, strict=True)]
    bench.begin(longer, batching=batching)
    flow = Flow()
    start, cpu = time.perf_counter(), time.process_time()
    while bench.watched.engine.has_work:
        result = bench.watched.engine.step()
        flow.steps += 1
        flow.tokens += sum(index < wanted[seq_id] for seq_id, index in zip(result.seq_ids, result.indexes, strict=True))
        flow.curve.append((time.perf_counter() - start, flow.tokens))
    flow.wall = time.perf_counter() - start
    flow.own = time.process_time() - cpu if bench.device == "cpu" else flow.wall
    return flow


def _of_length(spec: SequenceSpec, output: int, context: int) -> SequenceSpec:
    return replace(spec, max_output_tokens=min(output, context - len(spec.token_ids)))
