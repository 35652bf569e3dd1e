"""Pod annotations: writes the deletion costs of worker pods to the API server of Kubernetes."""

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from urllib.error import HTTPError

import structlog

from penstock.chassis.kubernetes import KubernetesApi
from penstock.scheduler.autoscaling.pod_costs import PodCosts

log = structlog.get_logger()

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
LOOK_INTERVAL_S = 15.0  # s
TIMEOUT_S = 5.0  # of one call


class PodAnnotations:
    """Keeps the deletion costs of the pods of this scheduler's workers. `leases_by_pod` returns their leases."""

    def __init__(self, api: KubernetesApi, leases_by_pod: Callable[[], Mapping[str, int]]) -> None:
        self._api = api
        self._leases_by_pod = leases_by_pod
        self._costs = PodCosts()

    async def run(self) -> None:
        """Write costs until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def look(self) -> None:
        """Write the costs that are due."""
        costs = self._costs.changes(self._leases_by_pod())
        if costs:
            self._costs.on_written(await asyncio.to_thread(self._write, costs), costs)

    def _write(self, costs: Mapping[str, int]) -> list[str]:
        """Return the pods whose cost was written."""
        written = []
        for pod, cost in costs.items():
            try:
                self._api.patch("pods", pod, {"metadata": {"annotations": {ANNOTATION: str(cost)}}}, TIMEOUT_S)
            except HTTPError as error:
                log.warning("pod_cost_refused", pod=pod, cost=cost, status=error.code)
                if error.code != HTTPStatus.NOT_FOUND:
                    continue
            except OSError as error:
                log.warning("pod_cost_not_written", pod=pod, cost=cost, error=str(error))
                break  # the others would wait for the same server
            written.append(pod)  # or it is gone
        return written
