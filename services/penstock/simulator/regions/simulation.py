"""One simulation of several regions: a mesh for each, with one virtual clock."""

from collections.abc import Callable
from dataclasses import replace

from penstock.simulator.mesh.event_queue import SimEventQueue
from penstock.simulator.regions.border import SimBorder
from penstock.simulator.regions.scenario import RegionLoss, RegionsScenario
from penstock.simulator.scenario import Scenario, WorkerLoss
from penstock.simulator.simulation import Simulation

RegionsProgressFn = Callable[["RegionsSimulation"], None]


class RegionsSimulation:
    """Runs the arrivals of all regions, then up to `drain` for active requests."""

    def __init__(self, scenario: RegionsScenario) -> None:
        self.scenario = scenario
        self.events = SimEventQueue()
        self.borders: dict[str, SimBorder] = {}
        self.regions: dict[str, Simulation] = {}
        for region in map(self._with_losses, scenario.regions):
            border = self.borders[region.name] = SimBorder(region.name, scenario, self.events, self.borders)
            simulation = self.regions[region.name] = Simulation(region, events=self.events, border=border)
            border.edge = simulation.mesh.edge
        for loss in scenario.losses:
            self.events.schedule(loss.lost_at, self._lose, loss)

    def run(self, progress: RegionsProgressFn | None = None) -> "RegionsSimulation":
        regions = list(self.regions.values())
        end, slices = self.scenario.duration + self.scenario.drain, [1] * len(regions)  # the next one of each region
        while self.events.now < end and any(each.has_work for each in regions):
            times = [number * each.scenario.sample_every for number, each in zip(slices, regions, strict=True)]
            self.events.run(until=min(times))
            for place, each in enumerate(regions):
                if times[place] == min(times):
                    each.sample()
                    slices[place] += 1
            if progress:
                progress(self)
        for each in regions:
            each.close()
        return self

    def _with_losses(self, region: Scenario) -> Scenario:
        """Return the scenario of a region whose workers die with it."""
        lost = [
            WorkerLoss(worker=worker, lost_at=loss.lost_at, returns_after=loss.returns_after)
            for loss in self.scenario.losses
            if loss.region == region.name
            for worker in range(region.worker_count)
        ]
        return replace(region, losses=(*region.losses, *lost)) if lost else region

    def _lose(self, loss: RegionLoss) -> None:
        self.borders[loss.region].lose()
        if loss.returns_after:
            returns_at = loss.lost_at + loss.returns_after
            self.events.schedule(returns_at, self.borders[loss.region].restore)
