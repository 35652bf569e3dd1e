"""Pod annotations: writes the deletion costs of worker pods to the API server of Kubernetes."""

import asyncio
import json
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import structlog

from penstock.chassis.config import ConfigError
from penstock.scheduler.autoscaling.pod_costs import PodCosts

log = structlog.get_logger()

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
SERVICE_ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
LOOK_INTERVAL_S = 15.0  # s
TIMEOUT_S = 5.0  # of one call


@dataclass(frozen=True, slots=True)
class KubernetesApi:
    """The API server, as the service account of this pod."""

    url: str  # https://host:port
    folder: Path  # of the service account: token, ca.crt, namespace

    @classmethod
    def of_pod(cls) -> "KubernetesApi":
        """Raises ConfigError outside of a pod with a service account."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        folder = Path(SERVICE_ACCOUNT_FOLDER)
        if not host or not (folder / "token").exists():
            raise ConfigError(
                "PENSTOCK_SCHEDULER_POD_DELETION_COSTS needs a pod with the token of a service account, as the "
                "component `pod-deletion-costs` has it"
            )
        return cls(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", folder)

    def annotate(self, pod: str, cost: int) -> None:
        """Write the deletion cost of a pod. Blocks. Raises OSError."""
        namespace = (self.folder / "namespace").read_text().strip()
        body = json.dumps({"metadata": {"annotations": {ANNOTATION: str(cost)}}}).encode()
        request = Request(  # noqa: S310  # the URL is https
            f"{self.url}/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}",
            data=body,
            method="PATCH",
            headers={
                "Authorization": f"Bearer {(self.folder / 'token').read_text().strip()}",  # it is replaced each hour
                "Content-Type": "application/merge-patch+json",
            },
        )
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        with urlopen(request, timeout=TIMEOUT_S, context=context):  # noqa: S310  # as above
            pass


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
                self._api.annotate(pod, cost)
            except HTTPError as error:
                log.warning("pod_cost_refused", pod=pod, cost=cost, status=error.code)
                if error.code != HTTPStatus.NOT_FOUND:
                    continue
            except OSError as error:
                log.warning("pod_cost_not_written", pod=pod, cost=cost, error=str(error))
                break  # the others would wait for the same server
            written.append(pod)  # or it is gone
        return written
