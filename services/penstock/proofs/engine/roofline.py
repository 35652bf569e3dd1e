"""Decode steps beside the least time that they can take: what they read, over how fast this machine reads.

Source: Williams, Waterman, Patterson 2009 (Roofline), its memory side.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from penstock.proofs.engine.bench import Bench
from penstock.simulator.calibration.timed_engine import Turn, calm, cores_had, settled
from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.engine.weights import ModelShape

BATCHES = (1, 8, 32)
PROMPT = 128
STEPS = 20  # measured of each batch in a round
ROUNDS = 3
REPEATS = 7
COLUMNS = 1024


@dataclass(frozen=True, slots=True)
class Decode:
    """A decode step of `batch` sequences. Times in s."""

    batch: int
    step: float
    outside: float  # share of the step that is not the model's forward
    roofline: float


def measure_decodes(bench: Bench, say: Callable[[str], None]) -> list[Decode]:
    """Reading and stepping in turns, so that both have the machine's calm moments."""
    say("decode steps beside the roofline")
    turns: dict[int, list[Turn]] = {batch: [] for batch in BATCHES}
    reads: dict[int, float] = dict.fromkeys(BATCHES, 0.0)
    for _ in range(ROUNDS):
        for batch in BATCHES:
            turns[batch] += bench.decode_steps(prompts(bench, batch), STEPS)
            reads[batch] = max(reads[batch], reading_rate(_read_by(bench, batch), bench))
    cores = cores_had([turn for each in turns.values() for turn in each])
    return [_decode(batch, turns[batch], cores, _read_by(bench, batch) / reads[batch]) for batch in BATCHES]


def prompts(bench: Bench, batch: int) -> list[SequenceSpec]:
    rng = random.Random(batch)
    return [
        SequenceSpec(
            seq_id=place, token_ids=rng.choices(bench.ids, k=PROMPT), max_output_tokens=2 * STEPS, ignore_eos=True
        )
        for place in range(batch)
    ]


def _decode(batch: int, turns: Sequence[Turn], cores: float, roofline: float) -> Decode:
    outside = median((turn.wall - turn.forward) / turn.wall for turn in calm(turns) or turns)
    return Decode(batch, settled(turns, cores), outside, roofline)


def _read_by(bench: Bench, batch: int) -> int:
    return step_bytes(bench.shape, bench.dtype, batch, PROMPT + STEPS // 2)


def step_bytes(shape: ModelShape, dtype: torch.dtype, batch: int, context: int) -> int:
    """Every matrix once, the head among them, and the K and V of every position; an embedding is a lookup."""
    q, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    layer = shape.dim * (2 * q + 2 * kv + 3 * shape.hidden)
    weights = shape.layers * layer + shape.vocab_size * shape.dim
    return weights * dtype.itemsize + batch * context * shape.kv_bytes_per_token(dtype)


def reading_rate(size: int, bench: Bench) -> float:
    """Bytes/s over `size` bytes: a matrix times a vector or a sum, whichever this machine does faster."""
    before = torch.get_num_threads()
    torch.set_num_threads(bench.threads)
    try:
        matrix = torch.ones(size // (4 * COLUMNS) + 1, COLUMNS, device=bench.device)
        vector = torch.ones(COLUMNS, device=bench.device)
        return matrix.nbytes / min(_least(lambda: torch.mv(matrix, vector)), _least(matrix.sum))
    finally:
        torch.set_num_threads(before)


def _least(call: Callable[[], torch.Tensor]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call().flatten()[0].item()  # which waits for a GPU
        times.append(time.perf_counter() - start)
    return min(times)
