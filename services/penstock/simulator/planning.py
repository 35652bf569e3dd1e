"""How many workers a load needs: the fewest with which enough requests are answered within the SLO."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.bench.report import Slo, quantile
from penstock.simulator.errors import ScenarioError
from penstock.simulator.report.figures import is_good
from penstock.simulator.scenario import Scenario
from penstock.simulator.simulation import Progress, Simulation

MOST = 1_024  # workers; a load that these do not serve has another trouble


class Trial(NamedTuple):
    """What so many workers made of the load."""

    good: float  # share of requests that were answered within the SLO
    refused: float = 0.0  # share likewise
    ttft_p99: float = 0.0  # s
    fill: float = 0.0  # share of slots that decoded, of steps


@dataclass(slots=True)
class Plan:
    wanted: float  # share of requests
    tried: dict[int, Trial] = field(default_factory=dict)  # by workers

    @property
    def workers(self) -> int | None:
        """None: not even `MOST` are enough."""
        return min((count for count, trial in self.tried.items() if trial.good >= self.wanted), default=None)


def plan(scenario: Scenario, wanted: float, progress: Progress | None = None) -> Plan:
    """Raises ScenarioError where there is more than one kind of worker to choose from."""
    if len(scenario.workers) != 1:
        raise ScenarioError("workers", f"must be one kind for a plan, not {len(scenario.workers)}")
    return fewest(wanted, lambda count: _trial(_with(scenario, count), progress))


def fewest(wanted: float, trial_of: Callable[[int], Trial]) -> Plan:
    """Double until it is enough, then halve what is left; more workers are taken never to be worse."""
    found, high = Plan(wanted), 1

    def is_enough(count: int) -> bool:
        found.tried[count] = trial_of(count)
        return found.tried[count].good >= wanted

    while not is_enough(high):
        if high >= MOST:
            return found
        high *= 2
    low = high // 2  # not enough, or none
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return found


def _with(scenario: Scenario, count: int) -> Scenario:
    return replace(scenario, workers=(replace(scenario.workers[0], count=count),), losses=())


def _trial(scenario: Scenario, progress: Progress | None) -> Trial:
    simulation = Simulation(scenario).run(progress)
    counted = [each for each in simulation.ledger.requests if each.history.started >= scenario.warm_up]
    if not counted:
        return Trial(1.0)
    slo = Slo(ttft=scenario.targets.ttft, tpot=scenario.targets.tbt)
    firsts = [first for each in counted if (first := each.history.ttft) is not None]
    return Trial(
        good=sum(is_good(each, slo) for each in counted) / len(counted),
        refused=sum(each.history.code == "RESOURCE_EXHAUSTED" for each in counted) / len(counted),
        ttft_p99=quantile(firsts, 0.99) if firsts else 0.0,
        fill=_fill(simulation),
    )


def _fill(simulation: Simulation) -> float:
    slots = sum(each.tally.steps * each.kind.slots for each in simulation.workers)
    return sum(each.tally.decode_tokens for each in simulation.workers) / slots if slots else 0.0
