"""The measured cells and their figures. Pure, and only with the standard library, because every driver imports it."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

SPECIAL_IDS = 300  # ids below are special tokens or single bytes in every model compared


@dataclass(frozen=True, slots=True)
class BenchCell:
    """Requests that start at once, each with random prompt ids and a fixed number of output tokens."""

    concurrency: int
    prompt_tokens: int
    output_tokens: int

    def __str__(self) -> str:
        return f"{self.concurrency} x ({self.prompt_tokens} + {self.output_tokens})"

    @property
    def mid_run_context(self) -> int:
        """Return the positions that a decode step in the middle of the run reads of each sequence."""
        return self.prompt_tokens + self.output_tokens // 2

    @property
    def total_output_tokens(self) -> int:
        return self.concurrency * self.output_tokens

    def prompts(self, vocab_size: int) -> list[list[int]]:
        """Return equal prompts for every engine, without common prefixes."""
        draw = random.Random(f"{self.concurrency} {self.prompt_tokens}")  # noqa: S311 - not used for security
        return [draw.choices(range(SPECIAL_IDS, vocab_size), k=self.prompt_tokens) for _ in range(self.concurrency)]


@dataclass(frozen=True, slots=True)
class CellTrace:
    """The measurement of one cell by a driver."""

    token_times: Sequence[Sequence[float]]  # of each sequence's tokens, in s since the requests were submitted
    cpu_s: float  # of all threads of its process
    first_tokens: Sequence[int]  # of each sequence


@dataclass(frozen=True, slots=True)
class CellFigures:
    throughput: float  # output tokens/s, prefill included
    prefill: float  # prompt tokens/s until the last sequence has its first token
    step_ms: float  # median of the decode steps with all sequences
    cpu_ms_per_token: float  # CPU time per output token, prefill included
    cpu_wait_share: float  # share of its runnable time that the engine waited for a core


def figures_of(cell: BenchCell, trace: CellTrace, cpu_wait_share: float) -> CellFigures:
    """Raises ValueError if the trace has other numbers of tokens than the cell."""
    counts = [len(times) for times in trace.token_times]
    if counts != [cell.output_tokens] * cell.concurrency:
        raise ValueError(f"requested {cell.concurrency} x {cell.output_tokens} tokens and received {counts}")
    begun = max(times[0] for times in trace.token_times)
    return CellFigures(
        throughput=cell.total_output_tokens / max(times[-1] for times in trace.token_times),
        prefill=cell.concurrency * cell.prompt_tokens / begun,
        step_ms=1000 * median(decode_gaps(trace.token_times)),
        cpu_ms_per_token=1000 * trace.cpu_s / cell.total_output_tokens,
        cpu_wait_share=cpu_wait_share,
    )


def decode_gaps(times: Sequence[Sequence[float]]) -> list[float]:
    """Return the s between a sequence's tokens while all sequences decode; if they never do at once, while any does."""
    begun, ended = max(each[0] for each in times), min(each[-1] for each in times)
    gaps = list(_token_gaps(times))
    return [after - before for before, after in gaps if before >= begun and after <= ended] or [
        after - before for before, after in gaps
    ]


def _token_gaps(times: Sequence[Sequence[float]]) -> Iterator[tuple[float, float]]:
    for each in times:
        yield from pairwise(each)


def generation_cells(concurrent: Sequence[int]) -> list[BenchCell]:
    return [BenchCell(count, prompt_tokens=128, output_tokens=128) for count in concurrent]


def context_cells(concurrent: Sequence[int]) -> list[BenchCell]:
    """Return cells for decode steps at a context of 1,024."""
    return [BenchCell(count, prompt_tokens=1008, output_tokens=32) for count in concurrent]
