"""Simulated roll: replaces all workers of a workload without spare capacity, as Kubernetes does with `maxSurge: 0`."""

from collections import deque
from dataclasses import dataclass, field

from penstock.simulator.mesh.event_queue import SimEventQueue
from penstock.simulator.mesh.pods import SimPod, SimPods
from penstock.simulator.scenario import RollSettings


@dataclass(slots=True)
class SimRoll:
    """Drains the old pods, and starts a new one in the place of each that has ended.

    At most `max_unavailable` pods drain or load at the same time.
    """

    settings: RollSettings
    events: SimEventQueue
    pods: SimPods
    workers: int
    ended_at: float | None = None  # s; the last new pod serves
    _old: deque[SimPod] = field(default_factory=deque)

    def begin(self) -> None:
        self._old = deque(self.pods.start(is_loaded=True) for _ in range(self.workers))
        self.pods.on_ended = self.pods.start
        self.events.schedule(self.settings.begins_at, self._look)

    def _look(self) -> None:
        """Drain the next pods; Kubernetes acts on each change, which a look once a second replaces."""
        serving = sum(pod.worker is not None for pod in self.pods.present)
        for _ in range(serving - (self.workers - self.settings.max_unavailable)):
            if self._old:
                self.pods.drain(self._old.popleft())
        if not self._old and serving == self.workers:
            self.ended_at = self.events.now
            return
        self.events.schedule(self.events.now + 1.0, self._look)
