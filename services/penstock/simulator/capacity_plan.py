"""How many workers a load needs: the fewest with which enough requests are answered within the SLO."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.bench.report import Slo
from penstock.bench.statistics import quantile
from penstock.simulator.errors import ScenarioError
from penstock.simulator.report.figures import meets_slo
from penstock.simulator.scenario import Scenario
from penstock.simulator.simulation import Simulation, SimulationProgressFn

MAX_WORKERS = 1_024  # workers; a load that these do not serve has another trouble


class CapacityTrial(NamedTuple):
    """What so many workers made of the load."""

    good_share: float  # share of requests that were answered within the SLO
    rejected_share: float = 0.0  # share likewise
    ttft_p99: float = 0.0  # s
    slot_utilization: float = 0.0  # share of slots that decoded, of steps


@dataclass(slots=True)
class CapacityPlan:
    target_share: float  # share of requests
    trials: dict[int, CapacityTrial] = field(default_factory=dict)  # by workers

    @property
    def workers(self) -> int | None:
        """None: not even `MOST` are enough."""
        return min(
            (count for count, trial in self.trials.items() if trial.good_share >= self.target_share), default=None
        )


def plan_capacity(
    scenario: Scenario, target_share: float, progress: SimulationProgressFn | None = None
) -> CapacityPlan:
    """Raises ScenarioError where there is more than one kind of worker to choose from."""
    if len(scenario.workers) != 1:
        raise ScenarioError("workers", f"must be one kind for a plan, not {len(scenario.workers)}")
    return fewest_workers(target_share, lambda count: _run_trial(_with_workers(scenario, count), progress))


def fewest_workers(target_share: float, run_trial: Callable[[int], CapacityTrial]) -> CapacityPlan:
    """Double until it is enough, then halve what is left; more workers are taken never to be worse."""
    found, high = CapacityPlan(target_share), 1

    def is_enough(count: int) -> bool:
        found.trials[count] = run_trial(count)
        return found.trials[count].good_share >= target_share

    while not is_enough(high):
        if high >= MAX_WORKERS:
            return found
        high *= 2
    low = high // 2  # not enough, or none
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return found


def _with_workers(scenario: Scenario, count: int) -> Scenario:
    return replace(scenario, workers=(replace(scenario.workers[0], count=count),), losses=())


def _run_trial(scenario: Scenario, progress: SimulationProgressFn | None) -> CapacityTrial:
    simulation = Simulation(scenario).run(progress)
    counted = [each for each in simulation.ledger.requests if each.transcript.started_at >= scenario.warm_up]
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
