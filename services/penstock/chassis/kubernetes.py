"""Kubernetes: calls to the API server as the service account of this pod."""

import json
import os
import ssl
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

from penstock.chassis.config import ConfigError

SERVICE_ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
MAX_RESPONSE_BYTES = 2 << 20  # objects have at most 1.5 MiB


@dataclass(frozen=True, slots=True)
class KubernetesApi:
    """The API server, for objects of the namespace of this pod."""

    url: str  # https://host:port
    folder: Path  # of the service account: token, ca.crt, namespace

    @classmethod
    def of_pod(cls, setting: str, component: str) -> "KubernetesApi":
        """Return the API of this pod, which `setting` needs and `component` gives access to.

        Raises ConfigError outside of a pod with a service account.
        """
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        folder = Path(SERVICE_ACCOUNT_FOLDER)
        if not host or not (folder / "token").exists():
            text = f"needs a pod with the token of a service account, as the component `{component}` has it"
            raise ConfigError(f"{setting} {text}")
        return cls(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", folder)

    def get(self, kind: str, name: str, timeout_s: float) -> dict[str, Any]:
        """Return an object. `kind` is the plural of the path, such as `pods`. Blocks.

        Raises OSError, of which HTTPError has the status.
        """
        try:
            content = json.loads(self._call("GET", kind, name, None, timeout_s))
        except ValueError as error:
            raise OSError(f"the API server did not answer with an object: {error}") from error
        if not isinstance(content, dict):
            raise OSError("the API server did not answer with an object")
        return content

    def patch(self, kind: str, name: str, change: dict[str, Any], timeout_s: float) -> None:
        """Merge `change` into an object. Blocks. Raises OSError, of which HTTPError has the status."""
        self._call("PATCH", kind, name, json.dumps(change).encode(), timeout_s)

    def _call(self, method: str, kind: str, name: str, body: bytes | None, timeout_s: float) -> bytes:
        namespace = (self.folder / "namespace").read_text().strip()
        request = Request(  # noqa: S310  # the URL is https
            f"{self.url}/api/v1/namespaces/{quote(namespace, safe='')}/{kind}/{quote(name, safe='')}",
            data=body,
            method=method,
            headers={
                "Authorization": f"Bearer {(self.folder / 'token').read_text().strip()}",  # it is replaced each hour
                **({"Content-Type": "application/merge-patch+json"} if body else {}),
            },
        )
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        try:
            with urlopen(request, timeout=timeout_s, context=context) as response:  # noqa: S310  # as above
                return bytes(response.read(MAX_RESPONSE_BYTES))
        except HTTPException as error:
            raise OSError(f"the API server did not answer with HTTP: {error}") from error
