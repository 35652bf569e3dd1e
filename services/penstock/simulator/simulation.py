"""One run: a scenario in, all that happened out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import merge

from penstock.simulator.mesh.event_queue import Events
from penstock.simulator.mesh.mesh import SimMesh
from penstock.simulator.mesh.worker import SimWorker
from penstock.simulator.report.ledger import Ledger
from penstock.simulator.scenario import Scenario, Tenant
from penstock.simulator.traffic.demand import Ask

Progress = Callable[["Simulation"], None]


@dataclass(slots=True)
class Samples:
    """Tickets on their way to a lease, by class, at the end of each slice."""

    times: list[float] = field(default_factory=list)
    depth: list[dict[int, int]] = field(default_factory=list)


class Simulation:
    """Arrivals for `duration`, then up to `drain` for what is under way; all that is left then is unfinished."""

    def __init__(self, scenario: Scenario, new_mesh: Callable[[Scenario, Events], SimMesh] = SimMesh) -> None:
        self.scenario = scenario
        self.events = Events()
        self.mesh = new_mesh(scenario, self.events)
        self.samples = Samples()
        self._arrivals = _arrivals(scenario)
        self._is_offering = True
        self._arrive_next()

    @property
    def ledger(self) -> Ledger:
        return self.mesh.ledger

    @property
    def workers(self) -> list[SimWorker]:
        return self.mesh.lives

    def run(self, progress: Progress | None = None) -> "Simulation":
        scenario, slices = self.scenario, 0
        while self.events.now < scenario.duration + scenario.drain and (self._is_offering or self.mesh.edge.open):
            slices += 1
            self.events.run(until=slices * scenario.sample_every)
            self._sample()
            if progress:
                progress(self)
        self.mesh.edge.close()
        for worker in self.workers:
            worker.catch_up()
        return self

    def _arrive_next(self, arrived: tuple[Tenant, Ask] | None = None) -> None:
        """Let one request arrive, and ask for the next when that has come: a trace is never all in the heap."""
        if arrived:
            self.mesh.edge.arrive(*arrived)
        following = next(self._arrivals, None)
        if following is None or following[0] >= self.scenario.duration:
            self._is_offering = False
            return
        at, _, tenant, ask = following
        self.events.at(at, self._arrive_next, (tenant, ask))

    def _sample(self) -> None:
        self.ledger.served.close_slice()
        self.samples.times.append(self.events.now)
        self.samples.depth.append(dict(self.ledger.depth))


def _arrivals(scenario: Scenario) -> Iterator[tuple[float, int, Tenant, Ask]]:
    """Yield all tenants' requests by time; requests of one moment in the tenants' order."""

    def of(place: int, tenant: Tenant) -> Iterator[tuple[float, int, Tenant, Ask]]:
        for ask in tenant.demand.asks(f"{scenario.seed}/{tenant.name}", scenario.load):
            yield ask.at, place, tenant, ask

    streams = [of(place, tenant) for place, tenant in enumerate(scenario.tenants)]
    return merge(*streams, key=lambda each: each[:2])
