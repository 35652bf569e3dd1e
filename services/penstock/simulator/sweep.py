"""The same scenario at several loads, as multiples of the knee: the highest load that unbounded FIFO still serves."""

from collections.abc import Callable
from dataclasses import replace

from penstock.bench.report import Slo
from penstock.simulator.report.figures import is_good
from penstock.simulator.scenario import Queues, Scenario
from penstock.simulator.simulation import Progress, Simulation

GOOD_SHARE = 0.95  # of requests within the SLO, below which a load is past the knee
PROBE = 120.0  # s simulated for each load that is tried
ROUNDS = 6  # of bisection: within 2 % of the bracket


def knee(scenario: Scenario, progress: Progress | None = None) -> float:
    """Return the load factor at which the mesh, with its queue replaced by plain FIFO, comes to its limit.

    Clients neither retry nor leave while it is measured, and no worker is lost.
    """
    tenants = tuple(replace(each, client=type(each.client)()) for each in scenario.tenants)
    probe = replace(
        scenario,
        tenants=tenants,
        queues=Queues(shards=scenario.queues.shards, policy="fifo"),
        losses=(),
        duration=min(scenario.duration, PROBE),
        warm_up=0.0,
    )

    def serves(load: float) -> bool:
        return _good_share(Simulation(replace(probe, load=load)).run(progress)) >= GOOD_SHARE

    return _bisected(serves, scenario.load)


def _bisected(serves: Callable[[float], bool], begin: float) -> float:
    low, high = 0.0, begin
    while serves(high):
        low, high = high, high * 2
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if serves(middle) else (low, middle)
    return low


def _good_share(simulation: Simulation) -> float:
    targets, requests = simulation.scenario.targets, simulation.ledger.requests
    slo = Slo(ttft=targets.ttft, tpot=targets.tbt)
    return sum(is_good(each, slo) for each in requests) / len(requests) if requests else 1.0
