"""Simulated pods: workers that load before they attach, and that drain before they end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from penstock.simulator.mesh.event_queue import SimEventQueue
from penstock.simulator.mesh.worker import SimWorker

IDLE_CHECK_INTERVAL_S = 1.0  # s; leases that were issued before a detach start within this time


class WorkerOwner(Protocol):
    """The mesh to which workers attach."""

    def attach_worker(self) -> SimWorker: ...

    def detach_worker(self, worker: SimWorker) -> None:
        """The worker takes no new leases. Its runs continue."""


@dataclass(slots=True, eq=False)
class SimPod:
    """One worker from its start to its end. Times are in s."""

    started_at: float
    worker: SimWorker | None = None  # None: it loads
    draining_since: float | None = None
    ended_at: float | None = None

    @property
    def deletion_cost(self) -> int:
        """Pods with the lowest cost are deleted first: those that load, then those with the fewest runs."""
        return len(self.worker.runs) if self.worker else -1


@dataclass(slots=True)
class SimPods:
    """All pods of a workload so far."""

    load_time: float  # s
    drain_grace: float  # s; a run that is left after it is cut
    events: SimEventQueue
    mesh: WorkerOwner
    on_ended: Callable[[], object] = lambda: None
    pods: list[SimPod] = field(default_factory=list)
    runs_cut: int = 0

    @property
    def present(self) -> list[SimPod]:
        """Pods that load or serve."""
        return [pod for pod in self.pods if pod.draining_since is None]

    @property
    def longest_drain(self) -> float:
        """The longest drain that has ended, in s."""
        drains = (
            pod.ended_at - pod.draining_since
            for pod in self.pods
            if pod.ended_at is not None and pod.draining_since is not None
        )
        return max(drains, default=0.0)

    def seconds(self, until: float) -> float:
        """Return the time of all pods, with loading and draining, in s."""
        return sum((until if pod.ended_at is None else pod.ended_at) - pod.started_at for pod in self.pods)

    def start(self, started_at: float | None = None, *, is_loaded: bool = False) -> SimPod:
        """Start a pod, now or at `started_at`, which may be before the start of the simulation."""
        now = self.events.now
        pod = SimPod(now if started_at is None else started_at)
        self.pods.append(pod)
        loaded_at = now if is_loaded else max(now, pod.started_at + self.load_time)
        self.events.schedule(loaded_at, self._on_loaded, pod)
        return pod

    def drain(self, pod: SimPod) -> None:
        now = pod.draining_since = self.events.now
        if pod.worker is None:
            self._end(pod)
            return
        self.mesh.detach_worker(pod.worker)
        self.events.schedule(now + IDLE_CHECK_INTERVAL_S, self._end_if_idle, pod, pod.worker)

    def _on_loaded(self, pod: SimPod) -> None:
        if pod.draining_since is None:
            pod.worker = self.mesh.attach_worker()

    def _end_if_idle(self, pod: SimPod, worker: SimWorker) -> None:
        now, grace_end = self.events.now, (pod.draining_since or 0.0) + self.drain_grace
        if worker.runs and now < grace_end:
            self.events.schedule(now + IDLE_CHECK_INTERVAL_S, self._end_if_idle, pod, worker)
            return
        self.runs_cut += len(worker.runs)
        self._end(pod)

    def _end(self, pod: SimPod) -> None:
        pod.ended_at = self.events.now
        self.on_ended()
