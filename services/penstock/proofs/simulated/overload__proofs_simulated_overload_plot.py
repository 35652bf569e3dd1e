"""Goodput over offered load: the mesh beside what others do."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

GOODPUT = "goodput_weighted_tokens_per_s"

FiguresBySeed = Mapping[float, Sequence[Mapping[str, Any]]]  # by load, of each seed


def plot_overload(ours: FiguresBySeed, others: Mapping[str, FiguresBySeed], path: Path) -> None:
    """Write a PNG or SVG, by the suffix of `path`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
    peak = max(_median_goodput(ours, load) for load in ours)
    for name, figures in {"penstock": ours, **others}.items():
        bold = {"linewidth": 3, "color": "black"} if name == "penstock" else {"alpha": 0.8}
        shares = [100 * _median_goodput(figures, load) / peak for load in figures]
        axes.plot(list(figures), shares, marker="o", label=name, **bold)
    axes.set(title="Goodput past the knee", xlabel="offered load / FIFO's knee", ylabel="% of penstock's peak")
    axes.set_xscale("log")
    axes.set_xticks(list(ours), [f"{load:g}x" for load in ours])
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _median_goodput(figures: FiguresBySeed, load: float) -> float:
    return median(float(each[GOODPUT]) for each in figures[load])
