"""Pod costs: which worker pods Kubernetes should delete first, as annotations. Pure.

A ReplicaSet that scales down deletes the pods with the lowest `controller.kubernetes.io/pod-deletion-cost` first. The
cost of a worker's pod is its number of leases, so that the idlest worker drains. To spare the API server, a cost is
written again only once it is far from the present one, and a few costs are written at a time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.chassis.security.identity import START_SEPARATOR
from penstock.scheduler.fleet.worker import Worker

MAX_CHANGES = 20  # of one look
MIN_RATIO = 2.0  # between the written and the present cost
MAX_COST = 2**31 - 1


def pod_of(worker_id: str) -> str:
    """Return the name of the pod of a worker, which is its instance id without the name of its certificate."""
    return worker_id.rpartition(START_SEPARATOR)[2]


def leases_by_pod(fleet: Iterable[Worker]) -> dict[str, int]:
    return {pod_of(worker.worker_id): len(worker.promised) for worker in fleet}


@dataclass(slots=True)
class PodCosts:
    """The costs that this scheduler has written."""

    _written: dict[str, int] = field(default_factory=dict)  # by pod

    def changes(self, leases_by_pod: Mapping[str, int]) -> dict[str, int]:
        """Return the costs to write, idle pods first, because a pod that has become idle is the next to be deleted."""
        for pod in self._written.keys() - leases_by_pod.keys():
            del self._written[pod]
        due = ((leases, pod) for pod, leases in leases_by_pod.items() if self._is_due(pod, leases))
        return {pod: min(leases, MAX_COST) for leases, pod in sorted(due)[:MAX_CHANGES]}

    def on_written(self, pods: Iterable[str], costs: Mapping[str, int]) -> None:
        """Record the pods whose cost was written. The others are written at the next look."""
        self._written.update({pod: costs[pod] for pod in pods})

    def _is_due(self, pod: str, leases: int) -> bool:
        written = self._written.get(pod, 0)  # a pod without a cost has the cost 0
        if not (written and leases):
            return written != leases
        return max(written, leases) >= MIN_RATIO * min(written, leases)
