"""Figures of a simulation of several regions: those of each region, and what has crossed between them."""

from collections import Counter
from typing import Any

from penstock.bench.report import Slo
from penstock.bench.statistics import quantile
from penstock.simulator.mesh.request import SimRequest
from penstock.simulator.regions.simulation import RegionsSimulation
from penstock.simulator.report.figures import figures_of, meets_slo
from penstock.simulator.simulation import Simulation

BUCKET_S = 10.0  # s, over which the share of guests is averaged


def regions_figures(run: RegionsSimulation) -> dict[str, Any]:
    """Return the figures as plain JSON. Requests of the warm-up are not counted."""
    regions = {name: _region_figures(run, name, each) for name, each in run.regions.items()}
    requests = sum(each["requests"] for each in regions.values())
    good = sum(each["goodput_share"] * each["requests"] for each in regions.values())
    away = sum(each["away"] for each in regions.values())
    return {
        "goodput_share": good / max(1, requests),
        "away_share": away / max(1, requests),
        "regions": regions,
        "spills": run.scenario.spills,
        "round_trip_s": 2 * run.scenario.delay,
        "simulated_s": run.events.now,
        "events": run.events.events_run,
    }


def counted_requests(simulation: Simulation) -> list[SimRequest]:
    """Return the requests of the clients of one region, without those of the warm-up."""
    warm_up = simulation.scenario.warm_up
    return [each for each in simulation.ledger.client_requests if each.transcript.started_at >= warm_up]


def away_shares(simulation: Simulation) -> list[float]:
    """Return the share of the requests of each 10 s that another region has answered, by arrival."""
    total, away = Counter[int](), Counter[int]()
    for each in counted_requests(simulation):
        place = int(each.transcript.started_at / BUCKET_S)
        total[place] += 1
        away[place] += each.is_away
    return [away[place] / total[place] for place in sorted(total)]


def _region_figures(run: RegionsSimulation, name: str, simulation: Simulation) -> dict[str, Any]:
    border, targets = run.borders[name], simulation.scenario.targets
    slo = Slo(ttft=targets.ttft, tpot=targets.tbt)
    counted = counted_requests(simulation)
    guests = [each.transcript.ttft for each in counted if each.is_away and each.transcript.ttft is not None]
    shares = away_shares(simulation)
    mean = sum(shares) / max(1, len(shares))
    return {
        **figures_of(simulation),
        "away": sum(each.is_away for each in counted),
        "away_within_slo": sum(each.is_away and meets_slo(each, slo) for each in counted),
        "away_share_deviation": (sum((each - mean) ** 2 for each in shares) / max(1, len(shares))) ** 0.5,
        "away_ttft_p99_s": quantile(guests, 0.99) if guests else None,
        "offered": border.offered,
        "offers_rejected": border.refused,
    }
