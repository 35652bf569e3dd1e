"""One simulation: runs a scenario and keeps its ledger, its samples and its workers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import merge

from penstock.simulator.mesh.edge.edge import RegionBorder
from penstock.simulator.mesh.event_queue import SimEventQueue
from penstock.simulator.mesh.mesh import SimMesh
from penstock.simulator.mesh.worker import SimWorker
from penstock.simulator.report.ledger import SimulationLedger
from penstock.simulator.scenario import Scenario, SimTenant
from penstock.simulator.traffic.demand import OfferedRequest

SimulationProgressFn = Callable[["Simulation"], None]


@dataclass(slots=True)
class DepthSamples:
    """Tickets without a lease, by class, at the end of each slice."""

    times: list[float] = field(default_factory=list)
    depth: list[dict[int, int]] = field(default_factory=list)


class Simulation:
    """Runs arrivals for `duration`, then up to `drain` for active requests; requests left then are unfinished."""

    def __init__(
        self,
        scenario: Scenario,
        new_mesh: Callable[[Scenario, SimEventQueue], SimMesh] = SimMesh,
        *,
        events: SimEventQueue | None = None,  # that the simulations of all regions share; None: there are no regions
        border: RegionBorder | None = None,
    ) -> None:
        self.scenario = scenario
        self.events = SimEventQueue() if events is None else events  # an empty queue is false
        self.mesh = new_mesh(scenario, self.events)
        self.mesh.edge.border = border
        self.depth_samples = DepthSamples()
        self._arrivals = _arrivals(scenario)
        self._has_arrivals = True
        self._on_arrival()

    @property
    def ledger(self) -> SimulationLedger:
        return self.mesh.ledger

    @property
    def worker_lives(self) -> list[SimWorker]:
        return self.mesh.worker_lives

    def run(self, progress: SimulationProgressFn | None = None) -> "Simulation":
        scenario, slices = self.scenario, 0
        while self.events.now < scenario.duration + scenario.drain and self.has_work:
            slices += 1
            self.events.run(until=slices * scenario.sample_every)
            self.sample()
            if progress:
                progress(self)
        self.close()
        return self

    @property
    def has_work(self) -> bool:
        return bool(self._has_arrivals or self.mesh.batches.has_work or self.mesh.edge.open_requests)

    def close(self) -> None:
        """End what is left, and account for it."""
        self.mesh.edge.close()
        for worker in self.worker_lives:
            worker.catch_up()

    def _on_arrival(self, arrived: tuple[SimTenant, OfferedRequest] | None = None) -> None:
        """Start one request and schedule the next, so that the event queue never holds a whole trace."""
        if arrived:
            self.mesh.edge.on_arrival(*arrived)
        following = next(self._arrivals, None)
        if following is None or following[0] >= self.scenario.duration:
            self._has_arrivals = False
            return
        at, _, tenant, request = following
        self.events.schedule(at, self._on_arrival, (tenant, request))

    def sample(self) -> None:
        self.ledger.service.close_slice()
        self.depth_samples.times.append(self.events.now)
        self.depth_samples.depth.append(dict(self.ledger.depth))


def _arrivals(scenario: Scenario) -> Iterator[tuple[float, int, SimTenant, OfferedRequest]]:
    """Yield the requests of all tenants by time; simultaneous requests in the order of the tenants."""

    def of(place: int, tenant: SimTenant) -> Iterator[tuple[float, int, SimTenant, OfferedRequest]]:
        for request in tenant.demand.requests(f"{scenario.seed}/{tenant.name}", scenario.load):
            yield request.at, place, tenant, request

    streams = [of(place, tenant) for place, tenant in enumerate(scenario.tenants) if tenant.backlog is None]
    return merge(*streams, key=lambda each: each[:2])
