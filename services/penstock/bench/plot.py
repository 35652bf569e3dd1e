"""Plots: one helper for all figures of the project, and the figure of a bench run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.bench.transcript import Transcript


@contextmanager
def new_figure(
    path: Path, rows: int = 1, columns: int = 1, *, width: float = 11.0, height: float = 4.3, title: str = ""
) -> Iterator[list[Any]]:
    """Yield the axes of a new figure, row by row; then add grids and legends and write a PNG or SVG to `path`."""
    from matplotlib.figure import Figure  # loads for half a second, so only if a plot is drawn

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    yield axes
    for each in axes:
        each.grid(alpha=0.3)
        if each.get_legend() is None and each.get_legend_handles_labels()[1]:
            each.legend()
    if title:
        figure.suptitle(title)
    figure.savefig(path, dpi=150)


def plot_runs(runs: Mapping[str, Sequence[Transcript]], path: Path) -> None:
    """Plot output tokens over time and the distribution of TTFT, one line per run."""
    with new_figure(path, columns=2) as (progress, ttft):
        for name, transcripts in runs.items():
            times, totals = _tokens_over_time(transcripts)
            progress.plot(times, totals, label=f"{name}: {totals[-1] / times[-1]:,.0f} tokens/s" if times[-1] else name)
            waits = sorted(each.ttft for each in transcripts if each.ttft is not None)
            ttft.plot(waits, [(rank + 1) / len(waits) for rank in range(len(waits))], label=name)
        progress.set(title="Output tokens over time", xlabel="s from the start", ylabel="tokens")
        ttft.set(title="Time to first token", xlabel="s", ylabel="share of requests", ylim=(0, 1))


def _tokens_over_time(transcripts: Sequence[Transcript]) -> tuple[list[float], list[float]]:
    """Return times in s from the first request on, and all tokens received until then."""
    begin = min(each.started_at for each in transcripts)
    arrivals = sorted((at - begin, each.tokens / len(each.arrivals)) for each in transcripts for at in each.arrivals)
    times, totals = [0.0], [0.0]
    for at, tokens in arrivals:
        times.append(at)
        totals.append(totals[-1] + tokens)
    return times, totals
