"""Plots of simulations: goodput over load or time, TTFT over time, service by tenant, depth by class."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.bench.plot import new_figure
from penstock.bench.report import Slo
from penstock.bench.statistics import quantile
from penstock.simulator.capacity_plan import CapacityPlan
from penstock.simulator.report.figures import meets_slo
from penstock.simulator.scenario import PRIORITIES
from penstock.simulator.simulation import Simulation

MAX_BUCKETS = 120  # over the duration; none is shorter than 1 s


def plot_simulations(runs: Sequence[tuple[Simulation, Mapping[str, Any]]], knee: float, path: Path) -> None:
    """Write a PNG or SVG, by the suffix of `path`. Plots over time show the last run, which has the highest load."""
    last = runs[-1][0]
    title = f"{last.scenario.name}: {last.scenario.queues.policy}, seed {last.scenario.seed}"
    with new_figure(path, 2, 2, width=12.0, height=8.0, title=title) as (goodput, ttft, service, depth):
        if len(runs) > 1:
            _plot_goodput_over_load(goodput, [figures for _, figures in runs], knee)
        else:
            _plot_goodput_over_time(goodput, last)
        _plot_ttft(ttft, last)
        _plot_service(service, last)
        _plot_depth(depth, last)


def plot_capacity_plan(plan: CapacityPlan, path: Path) -> None:
    """Plot the result of each number of workers."""
    counts = sorted(plan.trials)
    with new_figure(path, width=7.0, height=4.5) as (axes,):
        for label, name in (
            ("answered within the SLO", "good_share"),
            ("rejected", "rejected_share"),
            ("slots in use", "slot_utilization"),
        ):
            shares = [100 * getattr(plan.trials[count], name) for count in counts]
            axes.plot(counts, shares, marker="o", label=label)
        axes.axhline(100 * plan.target_share, color="grey", linestyle="--", label="target")
        if plan.workers:
            axes.axvline(plan.workers, color="grey", linestyle=":", label=f"{plan.workers} workers")
        axes.set(xlabel="workers", ylabel="%", ylim=(0, 103), xticks=counts)


def _plot_goodput_over_load(axes: Any, figures: Sequence[Mapping[str, Any]], knee: float) -> None:
    loads = [each["load"] / knee for each in figures]
    for label, name in (
        ("weighted tokens/s", "goodput_weighted_tokens_per_s"),
        ("requests/s", "goodput_requests_per_s"),
    ):
        peak = max(each[name] for each in figures) or 1.0
        axes.plot(loads, [each[name] / peak for each in figures], marker="o", label=f"{label}, peak {peak:,.1f}")
    axes.set(title="Goodput", xlabel="offered load / FIFO's knee", ylabel="share of peak", ylim=(0, 1.05))


def _plot_goodput_over_time(axes: Any, run: Simulation) -> None:
    targets, requests = run.scenario.targets, run.ledger.requests
    slo, width = Slo(ttft=targets.ttft, tpot=targets.tbt), _bucket_s(run)
    good = [each.transcript.started_at for each in requests if meets_slo(each, slo)]
    for label, times in (("offered", [each.transcript.started_at for each in requests]), ("within the SLO", good)):
        counts = Counter(int(at / width) for at in times)
        places = range(math.ceil(run.scenario.duration / width))
        axes.plot([place * width for place in places], [counts[place] / width for place in places], label=label)
    axes.set(title="Requests, by arrival", xlabel="s", ylabel="requests/s", ylim=(0, None))


def _plot_ttft(axes: Any, run: Simulation) -> None:
    buckets, width = dict[float, list[float]](), _bucket_s(run)
    for each in run.ledger.requests:
        if (wait := each.transcript.ttft) is not None:
            buckets.setdefault(each.transcript.started_at // width * width, []).append(wait)
    for share in (0.5, 0.9, 0.99):
        axes.plot(list(buckets), [quantile(each, share) for each in buckets.values()], label=f"P{share * 100:.0f}")
    axes.axhline(run.scenario.targets.ttft, color="grey", linestyle="--", label="SLO")
    axes.set(title="Time to first token, by arrival", xlabel="s", ylabel="s")


def _plot_service(axes: Any, run: Simulation) -> None:
    for tenant, sums in run.ledger.service.cumulative().items():
        axes.plot(run.depth_samples.times[: len(sums)], sums, label=tenant)
    axes.set(title="Service by tenant", xlabel="s", ylabel="weighted tokens")


def _plot_depth(axes: Any, run: Simulation) -> None:
    names = {priority: name for name, priority in PRIORITIES.items()}
    for priority in sorted({each for depth in run.depth_samples.depth for each in depth}):
        depths = [depth.get(priority, 0) for depth in run.depth_samples.depth]
        axes.plot(run.depth_samples.times, depths, label=names[priority])
    axes.set(title="Tickets waiting, by class", xlabel="s", ylabel="tickets")


def _bucket_s(run: Simulation) -> float:
    return max(1.0, run.scenario.duration / MAX_BUCKETS)


BUCKET_S = 4.0  # s
COLORS = "tab:red", "tab:blue"


def plot_comparison(other: Simulation, own: Simulation, path: Path) -> None:
    """Write a PNG or SVG, by the suffix of `path`; `own` is drawn over `other`."""
    offered = _rates_over_time([each.transcript.started_at for each in own.ledger.requests])
    with new_figure(path, columns=2, width=10.0, height=3.8) as (rates, ttft):
        rates.plot(*offered, "--", color="grey", label="offered")
        for run, color in zip((other, own), COLORS, strict=True):
            _draw(run, color, rates, ttft)
        ttft.axhline(own.scenario.targets.ttft, color="grey", linestyle="--", label="SLO")
        rates.set(title="Answered within the SLO, by arrival", xlabel="s", ylabel="requests/s")
        ttft.set(title="Time to first token", xlabel="s", ylabel="s")


def _draw(run: Simulation, color: str, rates: Any, firsts: Any) -> None:
    targets, policy = run.scenario.targets, run.scenario.queues.policy
    slo = Slo(ttft=targets.ttft, tpot=targets.tbt)
    rates.plot(
        *_rates_over_time(
            [each.transcript.started_at for each in run.ledger.requests if meets_slo(each, slo)], run.scenario.duration
        ),
        color=color,
        label=policy,
    )
    ttft_by_arrival = [
        (each.transcript.started_at, first)
        for each in run.ledger.requests
        if (first := each.transcript.ttft) is not None
    ]
    firsts.scatter(
        [at for at, _ in ttft_by_arrival], [first for _, first in ttft_by_arrival], s=3, color=color, label=policy
    )


def _rates_over_time(times: list[float], duration: float = 0.0) -> tuple[list[float], list[float]]:
    """Return the start and the requests/s of each bucket, including empty ones."""
    counts = Counter(int(at / BUCKET_S) for at in times)
    last = max([int(duration / BUCKET_S), *counts])
    return [place * BUCKET_S for place in range(last)], [counts[place] / BUCKET_S for place in range(last)]
