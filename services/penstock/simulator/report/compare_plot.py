"""Plot of one load under two policies: requests within the SLO, and the TTFT of every request."""

from collections import Counter
from pathlib import Path
from typing import Any

from penstock.bench.plot import new_figure
from penstock.bench.report import Slo
from penstock.simulator.report.figures import meets_slo
from penstock.simulator.simulation import Simulation

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
