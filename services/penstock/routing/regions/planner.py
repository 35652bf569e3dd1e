"""Makes the plan of traffic between regions from the operators' state, whenever routing polls."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.routing.regions.region_state import RegionState
from penstock.routing.regions.state_store import RegionStateStore
from penstock.routing.regions.traffic_plan import TrafficPlan


@dataclass(slots=True, kw_only=True)
class RegionPlanner:
    """Makes the plan of regions from the operators' state."""

    own: str
    others: tuple[str, ...] = ()
    store: RegionStateStore | None = None  # None: no region is drained or weighted
    return_step_s: float = 10.0
    wall_clock: Callable[[], float] = time.time

    async def poll(self) -> TrafficPlan:
        """Read the state, and return the plan for now."""
        state = await self.store.poll() if self.store else RegionState()
        return TrafficPlan.of(self.own, self.others, state, self.wall_clock(), self.return_step_s)
