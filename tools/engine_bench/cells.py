"""What is measured, and what a measurement says. Pure, and of the standard library alone: every driver imports it."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

SPECIAL_IDS = 300  # ids below are special tokens or single bytes in every model compared


@dataclass(frozen=True, slots=True)
class Cell:
    """Requests that start at once, each of `prompt` random ids, each to be given `output` tokens."""

    concurrent: int
    prompt: int  # tokens
    output: int  # tokens

    def __str__(self) -> str:
        return f"{self.concurrent} x ({self.prompt} + {self.output})"

    @property
    def context(self) -> int:
        """Tokens that a decode step in the middle of the run reads of each sequence."""
        return self.prompt + self.output // 2

    @property
    def tokens(self) -> int:
        return self.concurrent * self.output

    def prompts(self, vocab_size: int) -> list[list[int]]:
        """The same for every engine, and no two alike, so that nothing can be shared."""
        draw = random.Random(f"{self.concurrent} {self.prompt}")  # noqa: S311 - nothing is guarded by it
        return [draw.choices(range(SPECIAL_IDS, vocab_size), k=self.prompt) for _ in range(self.concurrent)]


@dataclass(frozen=True, slots=True)
class Trace:
    """What a driver saw of one cell."""

    times: Sequence[Sequence[float]]  # of each sequence's tokens, s since the requests were handed over
    cpu_s: float  # of all threads of its process
    first_tokens: Sequence[int]  # of each sequence


@dataclass(frozen=True, slots=True)
class Figures:
    throughput: float  # output tokens/s, prefill included
    prefill: float  # prompt tokens/s until the last sequence has its first token
    step_ms: float  # median of the decode steps that all sequences took part in
    cpu_ms: float  # CPU time per output token, prefill included
    others: float  # share of the machine that other processes used meanwhile


def figures(cell: Cell, trace: Trace, others: float) -> Figures:
    """Raises ValueError over a trace that has other numbers of tokens than the cell asks for."""
    counts = [len(times) for times in trace.times]
    if counts != [cell.output] * cell.concurrent:
        raise ValueError(f"asked for {cell.concurrent} x {cell.output} tokens and got {counts}")
    begun = max(times[0] for times in trace.times)
    return Figures(
        throughput=cell.tokens / max(times[-1] for times in trace.times),
        prefill=cell.concurrent * cell.prompt / begun,
        step_ms=1000 * median(decode_gaps(trace.times)),
        cpu_ms=1000 * trace.cpu_s / cell.tokens,
        others=others,
    )


def decode_gaps(times: Sequence[Sequence[float]]) -> list[float]:
    """Time between a sequence's tokens, s, while all sequences decode; while any do where all never did at once."""
    begun, ended = max(each[0] for each in times), min(each[-1] for each in times)
    gaps = list(_gaps(times))
    return [after - before for before, after in gaps if before >= begun and after <= ended] or [
        after - before for before, after in gaps
    ]


def _gaps(times: Sequence[Sequence[float]]) -> Iterator[tuple[float, float]]:
    for each in times:
        yield from pairwise(each)


def generation_cells(concurrent: Sequence[int]) -> list[Cell]:
    return [Cell(count, prompt=128, output=128) for count in concurrent]


def context_cells(concurrent: Sequence[int]) -> list[Cell]:
    """Decode steps at a context of 1,024."""
    return [Cell(count, prompt=1008, output=32) for count in concurrent]
