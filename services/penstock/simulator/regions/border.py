"""The borders between the regions of a simulation: which region gets a request that its own has rejected."""

from collections.abc import Mapping

from penstock.chassis.errors import Overloaded, PenstockError
from penstock.simulator.mesh.edge import SimEdge
from penstock.simulator.mesh.event_queue import SimEventQueue
from penstock.simulator.mesh.request import SimRequest
from penstock.simulator.regions.scenario import RegionsScenario


class SimBorder:
    """The borders of one region, towards all others. A frame reaches another region after `delay`."""

    def __init__(
        self, region: str, scenario: RegionsScenario, events: SimEventQueue, edges: Mapping[str, SimEdge]
    ) -> None:
        """`edges`: by region, in order of preference. They may be added later."""
        self.offered = 0  # requests, over all tries
        self._region = region
        self._delay = scenario.delay
        self._spills = scenario.spills
        self._events = events
        self._edges = edges

    def offer(self, request: SimRequest, error: Overloaded) -> bool:
        chosen = self._choose(request) if self._spills else ""
        if not chosen:
            return False
        self.offered += 1
        self.move(request, chosen, is_guest=True)
        edge = self._edges[chosen]
        self._events.schedule(self._events.now + self._delay, edge.on_guest, request)
        return True
