"""Pictures of simulations: goodput over load or time, TTFT over time, service by tenant, depth by class."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.cli.bench.report import quantile
from penstock.simulator.scenario import PRIORITIES
from penstock.simulator.simulation import Simulation

BUCKET = 1.0  # s


def plot_simulations(runs: Sequence[tuple[Simulation, Mapping[str, Any]]], knee: float, path: Path) -> None:
    """Write a PNG or SVG, by the suffix of `path`. What is over time is of the last run, which has the most load."""
    import matplotlib as mpl  # noqa: PLC0415  # half a second, for those alone who ask for a picture

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    last = runs[-1][0]
    figure, ((goodput, ttft), (service, depth)) = plt.subplots(2, 2, figsize=(12, 8), layout="constrained")
    if len(runs) > 1:
        _goodput_over_load(goodput, [figures for _, figures in runs], knee)
    else:
        _goodput_over_time(goodput, last)
    _ttft(ttft, last)
    _service(service, last)
    _depth(depth, last)
    for axes in (goodput, ttft, service, depth):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(f"{last.scenario.name}: {last.scenario.queues.policy}, seed {last.scenario.seed}")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _goodput_over_load(axes: Any, figures: Sequence[Mapping[str, Any]], knee: float) -> None:
    loads = [each["load"] / knee for each in figures]
    for label, name in (
        ("weighted tokens/s", "goodput_weighted_tokens_per_s"),
        ("requests/s", "goodput_requests_per_s"),
    ):
        peak = max(each[name] for each in figures) or 1.0
        axes.plot(loads, [each[name] / peak for each in figures], marker="o", label=f"{label}, peak {peak:,.1f}")
    axes.set(title="Goodput", xlabel="offered load / FIFO's knee", ylabel="share of peak", ylim=(0, 1.05))


def _goodput_over_time(axes: Any, run: Simulation) -> None:
    targets = run.scenario.targets
    answered = [each.history for each in run.ledger.requests if each.history.outcome == "ok"]
    good = [each.ended for each in answered if (each.ttft or 0.0) <= targets.ttft and (each.tpot or 0.0) <= targets.tbt]
    begun = [each.history.started for each in run.ledger.requests]
    for label, times in (("offered", begun), ("within the SLO", good)):
        buckets = _bucketed([(at, 1.0) for at in times])
        axes.plot(list(buckets), [len(each) / BUCKET for each in buckets.values()], label=label)
    axes.set(title="Requests", xlabel="s", ylabel="requests/s")


def _ttft(axes: Any, run: Simulation) -> None:
    waits = [(each.history.started, each.history.ttft) for each in run.ledger.requests]
    buckets = _bucketed([(at, wait) for at, wait in waits if wait is not None])
    for share in (0.5, 0.9, 0.99):
        axes.plot(list(buckets), [quantile(each, share) for each in buckets.values()], label=f"P{share * 100:.0f}")
    axes.axhline(run.scenario.targets.ttft, color="grey", linestyle="--", label="SLO")
    axes.set(title="Time to first token, by arrival", xlabel="s", ylabel="s")


def _service(axes: Any, run: Simulation) -> None:
    for tenant, sums in run.ledger.served.sums().items():
        axes.plot(run.samples.times[: len(sums)], sums, label=tenant)
    axes.set(title="Service by tenant", xlabel="s", ylabel="weighted tokens")


def _depth(axes: Any, run: Simulation) -> None:
    names = {priority: name for name, priority in PRIORITIES.items()}
    for priority in sorted({each for depth in run.samples.depth for each in depth}):
        depths = [depth.get(priority, 0) for depth in run.samples.depth]
        axes.plot(run.samples.times, depths, label=names[priority])
    axes.set(title="Tickets waiting, by class", xlabel="s", ylabel="tickets")


def _bucketed(values: Sequence[tuple[float, float]]) -> dict[float, list[float]]:
    buckets: dict[float, list[float]] = {}
    for at, value in sorted(values):
        buckets.setdefault(at // BUCKET * BUCKET, []).append(value)
    return buckets
