"""How many workers a load needs: the fewest with which enough requests are answered within the SLO."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from penstock.cli.bench.report import Slo
from penstock.simulator.errors import ScenarioError
from penstock.simulator.figures import is_good
from penstock.simulator.scenario import Scenario
from penstock.simulator.simulation import Progress, Simulation

MOST = 1_024  # workers; a load that these do not serve has another trouble


@dataclass(slots=True)
class Plan:
    wanted: float  # share of requests
    tried: dict[int, float] = field(default_factory=dict)  # share that was good, by workers

    @property
    def workers(self) -> int | None:
        """None: not even `MOST` are enough."""
        return min((count for count, share in self.tried.items() if share >= self.wanted), default=None)


def plan(scenario: Scenario, wanted: float, progress: Progress | None = None) -> Plan:
    """Raises ScenarioError where there is more than one kind of worker to choose from."""
    if len(scenario.workers) != 1:
        raise ScenarioError("workers", f"must be one kind for a plan, not {len(scenario.workers)}")
    return fewest(wanted, lambda count: _good_share(_with(scenario, count), progress))


def fewest(wanted: float, share_of: Callable[[int], float]) -> Plan:
    """Double until it is enough, then halve what is left; more workers are taken never to be worse."""
    found, high = Plan(wanted), 1

    def is_enough(count: int) -> bool:
        found.tried[count] = share_of(count)
        return found.tried[count] >= wanted

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


def _good_share(scenario: Scenario, progress: Progress | None) -> float:
    requests = Simulation(scenario).run(progress).ledger.requests
    counted = [each for each in requests if each.history.started >= scenario.warm_up]
    slo = Slo(ttft=scenario.targets.ttft, tpot=scenario.targets.tbt)
    return sum(is_good(each, slo) for each in counted) / len(counted) if counted else 1.0
