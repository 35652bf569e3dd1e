"""Reads rendered Kubernetes objects: pods of any workload, their containers, environments, ports and selectors.

Objects have passed their schemas, so that present fields have the right types.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Object = dict[str, Any]

COMPONENT = "app.kubernetes.io/component"
TIERS = ("auth", "batch", "edge", "queue", "routing", "scheduler", "worker")
WORKLOAD_KINDS = ("Deployment", "StatefulSet", "DaemonSet", "Job")
POD_IP = "10.0.0.1"  # made up for values that are known only in a cluster
_SECRETS_WITH_A_FORM = {"PENSTOCK_EDGE_RESPONSE_KEYS": f"key:{'A' * 43}="}  # by variable; any text is another secret
_FIELDS = {"status.podIP": POD_IP, "status.podIPs": POD_IP}


def without_nulls(value: Any) -> Any:
    """Return a copy in which fields that are null are absent, as an API server reads them."""
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: without_nulls(each) for key, each in value.items() if each is not None}


def title(each: Object) -> str:
    return f"{each['kind']} {each['metadata'].get('name', '')}"


@dataclass(frozen=True)
class Container:
    """One container of a pod."""

    spec: Object

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def ports(self) -> dict[str, int]:
        """Numbers of the ports by name; a port without a name is named by its number."""
        return {
            each.get("name", str(each["containerPort"])): each["containerPort"] for each in self.spec.get("ports") or []
        }

    @property
    def mounts(self) -> dict[str, str]:
        """Names of the mounted volumes by path."""
        return {each["mountPath"]: each["name"] for each in self.spec.get("volumeMounts") or []}

    def resources(self, kind: str) -> dict[str, str]:
        """Requests or limits."""
        return {name: str(value) for name, value in (_at(self.spec, "resources", kind) or {}).items()}

    def probes(self) -> Iterator[tuple[str, Object]]:
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            if self.spec.get(kind):
                yield kind, self.spec[kind]

    def pre_stop(self) -> Object:
        return _at(self.spec, "lifecycle", "preStop") or {}


@dataclass(frozen=True)
class Workload:
    """A controller of pods."""

    object: Object

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])

    @property
    def title(self) -> str:
        return title(self.object)

    @property
    def spec(self) -> Object:
        spec: Object = self.object["spec"]
        return spec

    @property
    def pod(self) -> Object:
        pod: Object = self.spec["template"]["spec"]
        return pod

    @property
    def labels(self) -> dict[str, str]:
        return _at(self.spec, "template", "metadata", "labels") or {}

    @property
    def tier(self) -> str:
        """Tier, `envoy`, or another component; empty without the label."""
        return self.labels.get(COMPONENT, "")

    @property
    def replicas(self) -> int:
        return int(self.spec.get("replicas", 1))

    @cached_property
    def containers(self) -> list[Container]:
        return [Container(each) for each in self.pod.get("containers") or []]

    @cached_property
    def all_containers(self) -> list[Container]:
        return [*self.containers, *(Container(each) for each in self.pod.get("initContainers") or [])]

    @property
    def processes(self) -> list[Container]:
        """Containers that run the process of the tier: `edge`, and `edge-2` beside it; sidecars have other names."""
        return [each for each in self.containers if re.fullmatch(rf"{re.escape(self.tier)}(-\d+)?", each.name)]

    @property
    def ports(self) -> dict[str, int]:
        """Ports of all containers that run beside each other, init containers that stay included."""
        return {name: port for each in self.all_containers for name, port in each.ports.items()}

    @property
    def volumes(self) -> dict[str, Object]:
        """Volumes by name, those that a StatefulSet makes for each pod included."""
        made = {
            each["metadata"]["name"]: {"name": each["metadata"]["name"]}
            for each in self.spec.get("volumeClaimTemplates") or []
        }
        return {**made, **{each["name"]: each for each in self.pod.get("volumes") or []}}

    def is_written_by_one(self) -> bool:
        """Whether the file of a store, on a volume claim that pods may write to, limits the workload to one pod."""
        return self.tier in {"auth", "batch"} and bool(self.written_claims) and not self._has_database()

    @property
    def written_claims(self) -> list[str]:
        """Names of the volume claims that pods may write to."""
        claims = [each.get("persistentVolumeClaim") or {} for each in self.volumes.values()]
        return [each["claimName"] for each in claims if each and not each.get("readOnly")]

    def _has_database(self) -> bool:
        """Whether the store is one that a Secret names: the URL of a database has a password."""
        name = f"PENSTOCK_{self.tier.upper()}_STORE"
        variables = [each for container in self.processes for each in container.spec.get("env") or []]
        return any(each["name"] == name and each.get("valueFrom") for each in variables)


class Manifests:
    """All objects of one overlay."""

    def __init__(self, objects: list[Object]) -> None:
        self.objects = objects
        self.workloads = [Workload(each) for each in objects if each["kind"] in WORKLOAD_KINDS]

    def of_kind(self, *kinds: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] in kinds]

    def find(self, kind: str, name: str) -> Object | None:
        return next((each for each in self.of_kind(kind) if each["metadata"].get("name") == name), None)

    def selected(self, selector: Mapping[str, Any]) -> list[Workload]:
        """Workloads whose pods a selector of labels matches; an empty selector matches all."""
        return [each for each in self.workloads if matches(selector, each.labels)]

    def of_tier(self, tier: str) -> list[Workload]:
        return [each for each in self.workloads if each.tier == tier]

    def environment(self, container: Container) -> dict[str, str]:
        """Variables of a container. Values from secrets and from fields known only in a cluster are made up."""
        variables: dict[str, str] = {}
        for source in container.spec.get("envFrom") or []:
            name = _at(source, "configMapRef", "name")
            file = self.find("ConfigMap", name) if name else None
            variables |= {
                source.get("prefix", "") + key: str(text) for key, text in ((file or {}).get("data") or {}).items()
            }
        for each in container.spec.get("env") or []:
            text = self._value(each)
            for name, value in variables.items():
                text = text.replace(f"$({name})", value)
            variables[each["name"]] = text
        return variables

    def _value(self, variable: Object) -> str:
        source = variable.get("valueFrom") or {}
        if field := _at(source, "fieldRef", "fieldPath"):
            return _FIELDS.get(field, "pod-1")
        if reference := source.get("configMapKeyRef"):
            file = self.find("ConfigMap", reference.get("name", "")) or {}
            return str((file.get("data") or {}).get(reference["key"], ""))
        if source.get("resourceFieldRef"):
            return "1"
        if source:
            return _SECRETS_WITH_A_FORM.get(variable["name"], "secret")
        return str(variable.get("value") or "")


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector matches labels."""
    wanted = (selector.get("matchLabels") or {}).items()
    return wanted <= labels.items() and all(
        _meets(each, labels.get(each["key"])) for each in selector.get("matchExpressions") or []
    )


def _meets(expression: Object, value: str | None) -> bool:
    values = expression.get("values") or []
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]


def _at(spec: Object, *path: str) -> Any:
    """Return the value at a path, or None where a part is missing or null."""
    found: Any = spec
    for name in path:
        found = (found or {}).get(name)
    return found
