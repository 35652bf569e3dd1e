"""Plot of a simulation of several regions: what each is offered, answers itself and sends away, over time."""

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from penstock.bench.plot import new_figure
from penstock.bench.report import Slo
from penstock.bench.statistics import quantile
from penstock.simulator.mesh.request import SimRequest
from penstock.simulator.regions.figures import BUCKET_S
from penstock.simulator.regions.simulation import RegionsSimulation
from penstock.simulator.report.figures import meets_slo

Series = tuple[list[float], list[float]]


def plot_regions(run: RegionsSimulation, path: Path) -> None:
    """Write a PNG or SVG, by the suffix of `path`: one row for each region."""
    spills = "" if run.scenario.spills else ", without spilling"
    title = f"{run.scenario.name}: round trip {2e3 * run.scenario.delay:g} ms{spills}"
    rows = len(run.regions)
    with new_figure(path, rows, 2, width=12.0, height=4.0 * rows, title=title) as axes:
        for row, (name, simulation) in enumerate(run.regions.items()):
            rates, firsts = axes[2 * row], axes[2 * row + 1]
            requests, targets = simulation.ledger.client_requests, simulation.scenario.targets
            slo = Slo(ttft=targets.ttft, tpot=targets.tbt)
            duration = simulation.scenario.duration
            for label, chosen in (
                ("offered", requests),
                ("within the SLO", [each for each in requests if meets_slo(each, slo)]),
                ("answered by another region", [each for each in requests if each.is_away]),
            ):
                rates.plot(*_rates(chosen, duration), label=label)
            rates.set(title=f"{name}: requests, by arrival", xlabel="s", ylabel="requests/s", ylim=(0, None))
            for label, chosen in (
                ("at home", [each for each in requests if not each.is_away]),
                ("in another region", [each for each in requests if each.is_away]),
            ):
                firsts.plot(*_p99(chosen), label=label)
            firsts.axhline(targets.ttft, color="grey", linestyle="--", label="SLO")
            firsts.set(title=f"{name}: P99 time to first token", xlabel="s", ylabel="s", ylim=(0, None))


def _rates(requests: Iterable[SimRequest], duration: float) -> Series:
    counts = Counter(int(each.transcript.started_at / BUCKET_S) for each in requests)
    places = range(math.ceil(duration / BUCKET_S))
    return [place * BUCKET_S for place in places], [counts[place] / BUCKET_S for place in places]


def _p99(requests: Iterable[SimRequest]) -> Series:
    found: dict[int, list[float]] = {}
    for each in requests:
        if (first := each.transcript.ttft) is not None:
            found.setdefault(int(each.transcript.started_at / BUCKET_S), []).append(first)
    places = range(max(found, default=-1) + 1)
    firsts = [quantile(found[place], 0.99) if place in found else math.nan for place in places]  # NaN: a gap
    return [place * BUCKET_S for place in places], firsts
