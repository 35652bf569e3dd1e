"""The knee of a scenario: the highest load that an unbounded FIFO queue still serves within the SLO."""

from collections.abc import Callable
from dataclasses import replace

from penstock.bench.report import Slo
from penstock.simulator.report.figures import meets_slo
from penstock.simulator.scenario import QueueSettings, Scenario
from penstock.simulator.simulation import Simulation, SimulationProgressFn

MIN_GOOD_SHARE = 0.95  # of requests within the SLO; below it, a load is above the knee
MAX_PROBE_S = 120.0  # s that are simulated for each load
BISECTION_ROUNDS = 6  # the result is within 2 % of the bracket


def knee_load(scenario: Scenario, progress: SimulationProgressFn | None = None) -> float:
    """Return the highest load factor that the mesh serves if its queue is replaced by plain FIFO.

    Clients neither retry nor cancel in the measurement, and no worker is lost.
    """
    tenants = tuple(replace(each, client=type(each.client)()) for each in scenario.tenants)
    probe = replace(
        scenario,
        tenants=tenants,
        queues=QueueSettings(shards=scenario.queues.shards, policy="fifo"),
        losses=(),
        duration=min(scenario.duration, MAX_PROBE_S),
        warm_up=0.0,
    )

    def serves(load: float) -> bool:
        return _good_share(Simulation(replace(probe, load=load)).run(progress)) >= MIN_GOOD_SHARE

    return _bisect(serves, scenario.load)


def _bisect(is_served: Callable[[float], bool], start: float) -> float:
    low, high = 0.0, start
    while is_served(high):
        low, high = high, high * 2
    for _ in range(BISECTION_ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_served(middle) else (low, middle)
    return low


def _good_share(simulation: Simulation) -> float:
    targets, requests = simulation.scenario.targets, simulation.ledger.requests
    slo = Slo(ttft=targets.ttft, tpot=targets.tbt)
    return sum(meets_slo(each, slo) for each in requests) / len(requests) if requests else 1.0
