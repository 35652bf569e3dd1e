"""A scenario of several regions, as values. Times are in s."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.simulator.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLoss:
    """The loss of a whole region. Its workers die, and its clients resume in the next region."""

    region: str
    lost_at: float  # s
    returns_after: float = 0.0  # s; 0: the region does not return


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionsScenario:
    """Regions in the order in which they are preferred by others. The name of a scenario is that of its region."""

    name: str
    regions: Sequence[Scenario]
    delay: float = 0.02  # s each way between two regions
    spills: bool = True  # False: a rejected request is not offered elsewhere
    losses: Sequence[RegionLoss] = ()
    client_retry: float = 0.05  # s until a client whose region is lost resumes in the next one

    @property
    def duration(self) -> float:
        return max(each.duration for each in self.regions)

    @property
    def drain(self) -> float:
        return max(each.drain for each in self.regions)
