"""Simulated autoscaler: workers start and drain as KEDA decides by the demand of the shards, or by a plan."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.chassis.errors import Unavailable
from penstock.mesh.v1.queue_pb2 import HeldModel
from penstock.scheduler.autoscaling.fleet_demand import FleetDemand
from penstock.simulator.autoscaling.clairvoyant import PlannedWorker
from penstock.simulator.autoscaling.keda import KedaController
from penstock.simulator.mesh.event_queue import SimEventQueue
from penstock.simulator.mesh.pods import SimPods
from penstock.simulator.mesh.shard import EDGE_ID, SimShard
from penstock.simulator.mesh.worker import MODEL
from penstock.simulator.scenario import AutoscaleSettings

REPORT_INTERVAL_S = 1.0  # s between two reports of a shard


class ScaleDecision(NamedTuple):
    """One decision of the HPA."""

    at: float  # s
    workers: float | None  # that the scaler named; None: it returned an error
    wanted: int  # pods


@dataclass(slots=True)
class SimAutoscaler:
    """Starts and drains pods until they are as many as are wanted. All edges report the held requests as one."""

    settings: AutoscaleSettings
    events: SimEventQueue
    pods: SimPods
    shards: Sequence[SimShard]
    controller: KedaController
    demand: FleetDemand = field(default_factory=FleetDemand)
    decisions: list[ScaleDecision] = field(default_factory=list)
    _held_requests: int = 0

    def begin(self) -> None:
        """Schedule the first events."""
        for planned in self.settings.plan:
            self._run_planned(planned)
        if self.settings.plan:
            return
        for shard in self.shards:
            self.demand.on_shard_added(shard.name)
        self.events.schedule(self.events.now, self._look)
        self.events.schedule(self.events.now + self.controller.settings.sync_period, self._sync)

    def on_held_requests(self, requests: int) -> None:
        """Apply the number of requests that edges hold. The first one is reported at once, as by StreamIsActive."""
        is_first, self._held_requests = requests > 0 and not self._held_requests, requests
        if is_first and not self.settings.plan:
            self._report()
            self._apply_activity()

    def _look(self) -> None:
        self._report()
        self._apply_activity()
        self.events.schedule(self.events.now + REPORT_INTERVAL_S, self._look)

    def _report(self) -> None:
        """Deliver the report of each shard, except for those that are silent."""
        now = self.events.now
        if any(begin <= now < end for begin, end in self.settings.silences):
            return
        held = [HeldModel(model=MODEL, requests=self._held_requests)] if self._held_requests else []
        self.shards[0].demand.on_held_requests(EDGE_ID, held, now)
        for shard in self.shards:
            if report := shard.demand.report(now):
                self.demand.on_demand(shard.name, report, now)

    def _apply_activity(self) -> None:
        try:
            is_active = self.demand.workers(MODEL, self.events.now) > 0
        except Unavailable:
            self._scale_to(self.controller.on_error())
        else:
            self._scale_to(self.controller.on_activity(self.events.now, is_active=is_active))

    def _sync(self) -> None:
        now, workers = self.events.now, None
        try:
            workers = self.demand.workers(MODEL, now)
        except Unavailable:
            wanted = self.controller.on_error()
        else:
            wanted = self.controller.on_metric(workers, now)
        self.decisions.append(ScaleDecision(now, workers, wanted))
        self._scale_to(wanted)
        self.events.schedule(now + self.controller.settings.sync_period, self._sync)

    def _scale_to(self, wanted: int) -> None:
        present = self.pods.present
        for _ in range(wanted - len(present)):
            self.pods.start()
        cheapest = sorted(present, key=lambda pod: (pod.deletion_cost, -pod.started_at))
        for pod in cheapest[: max(0, len(present) - wanted)]:
            self.pods.drain(pod)

    def _run_planned(self, planned: PlannedWorker) -> None:
        pod = self.pods.start(planned.started_at)
        self.events.schedule(planned.stopped_at, self.pods.drain, pod)
