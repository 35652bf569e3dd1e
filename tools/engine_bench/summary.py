"""The result of a comparison: medians over its rounds, and medians of the ratios within each round."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from engine_bench.cells import BenchCell, CellFigures
from engine_bench.comparison import ComparisonRound, Series
from engine_bench.peers import OURS
from engine_bench.roofline import cell_work, read_shape
from penstock.proofs.engine.throughput import StepWork, roofline_s


@dataclass(frozen=True, slots=True)
class BestPeerRatios:
    """Our engine over the best peer of each round; above 1, ours is faster. None if no round has both."""

    throughput: float | None
    prefill: float | None
    step: float | None
    cpu: float | None


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One cell of one checkpoint in one dtype."""

    model: str
    dtype: str
    cell: BenchCell
    engines: dict[str, CellFigures]  # by peer; medians
    ratios: BestPeerRatios
    roofline_ms: float  # by the highest ceilings of all rounds
    roofline_share: float | None  # the roofline over our step
    first_token_agreement: dict[str, float]  # by peer: share of sequences whose first token is ours


def summarise(series: Sequence[Series]) -> list[SummaryRow]:
    return [_summary_row(each, cell, rounds) for each in series for cell, rounds in each.rounds.items()]


def _summary_row(series: Series, cell: BenchCell, rounds: Sequence[ComparisonRound]) -> SummaryRow:
    engines = {name: _medians(rounds, name) for name in dict.fromkeys(name for each in rounds for name in each.figures)}
    roofline = _roofline_ms(cell_work(read_shape(series.folder), series.dtype, cell), rounds)
    ours = engines.get(OURS.name)
    return SummaryRow(
        model=series.model,
        dtype=series.dtype,
        cell=cell,
        engines=engines,
        ratios=ratios(rounds),
        roofline_ms=roofline,
        roofline_share=roofline / ours.step_ms if ours else None,
        first_token_agreement=dict(_first_token_agreement(series, cell)),
    )


def _medians(rounds: Sequence[ComparisonRound], name: str) -> CellFigures:
    figures = [asdict(each.figures[name]) for each in rounds if name in each.figures]
    return CellFigures(**{key: median(each[key] for each in figures) for key in figures[0]})


def _roofline_ms(work: StepWork, rounds: Sequence[ComparisonRound]) -> float:
    return 1000 * roofline_s(
        work,
        bytes_per_s=max(each.ceilings.bytes_per_s for each in rounds),
        flops_per_s=max(each.ceilings.flops_per_s for each in rounds),
    )


def ratios(rounds: Sequence[ComparisonRound]) -> BestPeerRatios:
    return BestPeerRatios(
        throughput=_median_ratio(rounds, lambda each: each.throughput),
        prefill=_median_ratio(rounds, lambda each: each.prefill),
        step=_median_ratio(rounds, lambda each: 1 / each.step_ms),
        cpu=_median_ratio(rounds, lambda each: 1 / each.cpu_ms_per_token),
    )


def _median_ratio(rounds: Sequence[ComparisonRound], score: Callable[[CellFigures], float]) -> float | None:
    found = []
    for each in rounds:
        peers = [score(value) for name, value in each.figures.items() if name != OURS.name]
        if peers and OURS.name in each.figures:
            found.append(score(each.figures[OURS.name]) / max(peers))
    return median(found) if found else None


def _first_token_agreement(series: Series, cell: BenchCell) -> Iterator[tuple[str, float]]:
    ours = series.first_tokens.get((cell, OURS.name))
    for (of, name), tokens in series.first_tokens.items():
        if of == cell and ours and name != OURS.name:
            yield name, sum(a == b for a, b in zip(ours, tokens, strict=True)) / len(ours)


def to_json(rows: Sequence[SummaryRow], series: Sequence[Series]) -> dict[str, Any]:
    """Return every row, and the rounds of which it is the median."""
    raw = [
        {
            "model": each.model,
            "dtype": each.dtype,
            "cell": asdict(cell),
            "rounds": [asdict(each_round) for each_round in rounds],
        }
        for each in series
        for cell, rounds in each.rounds.items()
    ]
    return {"rows": [asdict(row) for row in rows], "measured": raw}
