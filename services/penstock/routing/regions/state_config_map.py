"""A ConfigMap with the operators' state of regions, which all replicas of routing in a cluster read and write."""

from dataclasses import dataclass
from http import HTTPStatus
from urllib.error import HTTPError

from penstock.chassis.kubernetes import KubernetesApi
from penstock.routing.regions.state_store import StateConflict, StoredText

KEY = "state.json"
TIMEOUT_S = 1.0  # of one call; a poll of the edges waits for it


@dataclass(frozen=True, slots=True)
class StateConfigMap:
    """One key of a ConfigMap. It is never made here, so that the right to read and change this one is enough."""

    api: KubernetesApi
    name: str

    def read(self) -> StoredText:
        try:
            found = self.api.get("configmaps", self.name, TIMEOUT_S)
        except HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return StoredText(None)
            raise
        metadata, data = found.get("metadata"), found.get("data", {})
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        text = data.get(KEY) if isinstance(data, dict) else 0
        if not isinstance(version, str) or not isinstance(text, str | None):
            raise OSError(f"the API server did not answer with a ConfigMap for {self}")
        return StoredText(text, version)

    def write(self, text: str, version: str) -> None:
        """Write the state if the ConfigMap still has this version."""
        if not version:  # without one, the API server would accept any change
            raise OSError(f"{self} cannot be read")
        change = {"metadata": {"resourceVersion": version}, "data": {KEY: text}}
        try:
            self.api.patch("configmaps", self.name, change, TIMEOUT_S)
        except HTTPError as error:
            if error.code == HTTPStatus.CONFLICT:
                raise StateConflict(f"{self} has changed") from error
            raise

    def __str__(self) -> str:
        return f"configmap:{self.name}"
