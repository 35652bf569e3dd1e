"""What a comparison says: medians over its rounds, and ratios that are taken within each round before that."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from engine_bench.cells import Cell, Figures
from engine_bench.comparison import Round, Series
from engine_bench.peers import OURS
from engine_bench.roofline import StepWork, read_config, roofline_ms, step_work


@dataclass(frozen=True, slots=True)
class Ratios:
    """Ours against the best peer of each round; above 1 ours is ahead. None: no peer, or not ours, in any round."""

    throughput: float | None
    prefill: float | None
    step: float | None
    cpu: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One cell of one checkpoint in one dtype."""

    model: str
    dtype: str
    cell: Cell
    engines: dict[str, Figures]  # by peer; medians
    ratios: Ratios
    roofline_ms: float  # least time of a decode step, by the machine's best of all rounds
    roofline_share: float | None  # of our step that is the roofline
    agreeing: dict[str, float]  # by peer: share of sequences whose first token is ours


def summarise(series: Sequence[Series]) -> list[Row]:
    return [_row(each, cell, rounds) for each in series for cell, rounds in each.rounds.items()]


def _row(series: Series, cell: Cell, rounds: Sequence[Round]) -> Row:
    engines = {name: _medians(rounds, name) for name in dict.fromkeys(name for each in rounds for name in each.figures)}
    roofline = _roofline(step_work(read_config(series.folder), series.dtype, cell), rounds)
    ours = engines.get(OURS.name)
    return Row(
        model=series.model,
        dtype=series.dtype,
        cell=cell,
        engines=engines,
        ratios=ratios(rounds),
        roofline_ms=roofline,
        roofline_share=roofline / ours.step_ms if ours else None,
        agreeing=dict(_agreeing(series, cell)),
    )


def _medians(rounds: Sequence[Round], name: str) -> Figures:
    played = [asdict(each.figures[name]) for each in rounds if name in each.figures]
    return Figures(**{key: median(each[key] for each in played) for key in played[0]})


def _roofline(work: StepWork, rounds: Sequence[Round]) -> float:
    return roofline_ms(
        work,
        bytes_per_s=max(each.ceilings.bytes_per_s for each in rounds),
        flops_per_s=max(each.ceilings.flops_per_s for each in rounds),
    )


def ratios(rounds: Sequence[Round]) -> Ratios:
    return Ratios(
        throughput=_ratio(rounds, lambda each: each.throughput),
        prefill=_ratio(rounds, lambda each: each.prefill),
        step=_ratio(rounds, lambda each: 1 / each.step_ms),
        cpu=_ratio(rounds, lambda each: 1 / each.cpu_ms),
    )


def _ratio(rounds: Sequence[Round], merit: Callable[[Figures], float]) -> float | None:
    found = []
    for each in rounds:
        peers = [merit(value) for name, value in each.figures.items() if name != OURS.name]
        if peers and OURS.name in each.figures:
            found.append(merit(each.figures[OURS.name]) / max(peers))
    return median(found) if found else None


def _agreeing(series: Series, cell: Cell) -> Iterator[tuple[str, float]]:
    ours = series.first_tokens.get((cell, OURS.name))
    for (of, name), tokens in series.first_tokens.items():
        if of == cell and ours and name != OURS.name:
            yield name, sum(a == b for a, b in zip(ours, tokens, strict=True)) / len(ours)


def as_json(rows: Sequence[Row], series: Sequence[Series]) -> dict[str, Any]:
    """Every row, and the rounds that it is the median of."""
    raw = [
        {
            "model": each.model,
            "dtype": each.dtype,
            "cell": asdict(cell),
            "rounds": [asdict(turn) for turn in rounds],
        }
        for each in series
        for cell, rounds in each.rounds.items()
    ]
    return {"rows": [asdict(row) for row in rows], "measured": raw}
