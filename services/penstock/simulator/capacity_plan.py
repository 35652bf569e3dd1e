"""Capacity: the highest load within the SLO (the knee), and the fewest workers for a target share of requests."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.bench.report import Slo
from penstock.bench.statistics import quantile
from penstock.simulator.errors import ScenarioError
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


MAX_WORKERS = 1_024  # a load that these workers do not serve is limited by something else


class CapacityTrial(NamedTuple):
    """The result of the load on one number of workers."""

    good_share: float  # of requests: answered within the SLO
    rejected_share: float = 0.0  # of requests
    ttft_p99: float = 0.0  # s
    slot_utilization: float = 0.0  # mean share of slots that decode in a step


@dataclass(slots=True)
class CapacityPlan:
    target_share: float  # of requests: to be answered within the SLO
    trials: dict[int, CapacityTrial] = field(default_factory=dict)  # by number of workers

    @property
    def workers(self) -> int | None:
        """The fewest workers that reach the target; None if `MAX_WORKERS` do not."""
        return min(
            (count for count, trial in self.trials.items() if trial.good_share >= self.target_share), default=None
        )


def plan_capacity(
    scenario: Scenario, target_share: float, progress: SimulationProgressFn | None = None
) -> CapacityPlan:
    """Return the plan for a scenario; raises ScenarioError if it has more than one kind of worker."""
    if len(scenario.workers) != 1:
        raise ScenarioError("workers", f"must be one kind for a plan, not {len(scenario.workers)}")
    return fewest_workers(target_share, lambda count: _run_trial(_with_workers(scenario, count), progress))


def fewest_workers(target_share: float, run_trial: Callable[[int], CapacityTrial]) -> CapacityPlan:
    """Double the workers until they reach the target, then bisect; assumes that more workers are never worse."""
    plan, high = CapacityPlan(target_share), 1

    def is_enough(count: int) -> bool:
        plan.trials[count] = run_trial(count)
        return plan.trials[count].good_share >= target_share

    while not is_enough(high):
        if high >= MAX_WORKERS:
            return plan
        high *= 2
    low = high // 2  # too few, or 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return plan


def _with_workers(scenario: Scenario, count: int) -> Scenario:
    return replace(scenario, workers=(replace(scenario.workers[0], count=count),), losses=())


def _run_trial(scenario: Scenario, progress: SimulationProgressFn | None) -> CapacityTrial:
    simulation = Simulation(scenario).run(progress)
    counted = [each for each in simulation.ledger.client_requests if each.transcript.started_at >= scenario.warm_up]
    if not counted:
        return CapacityTrial(1.0)
    slo = Slo(ttft=scenario.targets.ttft, tpot=scenario.targets.tbt)
    firsts = [first for each in counted if (first := each.transcript.ttft) is not None]
    return CapacityTrial(
        good_share=sum(meets_slo(each, slo) for each in counted) / len(counted),
        rejected_share=sum(each.transcript.code == "RESOURCE_EXHAUSTED" for each in counted) / len(counted),
        ttft_p99=quantile(firsts, 0.99) if firsts else 0.0,
        slot_utilization=_slot_utilization(simulation),
    )


def _slot_utilization(simulation: Simulation) -> float:
    slots = sum(each.totals.steps * each.kind.slots for each in simulation.worker_lives)
    return sum(each.totals.decode_tokens for each in simulation.worker_lives) / slots if slots else 0.0
