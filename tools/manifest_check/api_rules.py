"""What an API server refuses beyond schemas: contradictions within one object."""

import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from manifest_check.objects import Container, Manifests, Object, Workload, title

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(\d+(\.\d*)?|\.\d+))(?P<unit>Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]?|[eE][+-]?\d+)", re.ASCII
)
_UNITS = {
    **{f"{prefix}i": Decimal(2) ** (10 * power) for power, prefix in enumerate("KMGTPE", 1)},
    **{
        prefix: Decimal(1000) ** power
        for power, prefix in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
    },
}
_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_ORDINARY_RESOURCES = ("cpu", "memory", "ephemeral-storage", "hugepages-")
_GRACE_S = 30  # terminationGracePeriodSeconds by default


def api_faults(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        yield from (f"{workload.title}: {text}" for text in _check_workload(workload))
    for kinds, check in (
        (("PodDisruptionBudget",), _check_budget),
        (("HorizontalPodAutoscaler",), _check_autoscaler),
        (("ScaledObject",), _check_scaled_object),
        (("NetworkPolicy",), _check_policy),
        (("Service",), _check_service),
        (("PersistentVolumeClaim",), _check_claim),
    ):
        for each in manifests.of_kind(*kinds):
            yield from (f"{title(each)}: {text}" for text in check(each))


def quantity(text: str) -> Decimal | None:
    """Value of a quantity such as 4Gi or 250m; None if it is not one."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    unit = match["unit"]
    return Decimal(match["number"]) * (_UNITS[unit] if unit in _UNITS else Decimal(f"1{unit}"))


# Workloads


def _check_workload(workload: Workload) -> Iterator[str]:
    selector = workload.spec.get("selector")
    if selector is not None and not Manifests([workload.object]).selected(selector):
        yield "its selector does not match its own pods"
    rolling = (workload.spec.get("strategy") or {}).get("rollingUpdate") or {}
    if rolling and all(_is_zero(rolling.get(name, "25%")) for name in ("maxSurge", "maxUnavailable")):
        yield "maxSurge and maxUnavailable are both 0"
    yield from _check_parts(workload)
    for container in workload.all_containers:
        yield from (f"{container.name}: {text}" for text in _check_container(container, workload))


def _is_zero(value: Any) -> bool:
    return str(value).removesuffix("%") == "0"


def _check_parts(workload: Workload) -> Iterator[str]:
    containers = Counter(each.name for each in workload.all_containers)
    ports = Counter(
        (each["containerPort"], each.get("protocol", "TCP"))
        for container in workload.containers
        for each in container.spec.get("ports") or []
    )
    volumes = Counter(each["name"] for each in workload.pod.get("volumes") or [])
    for volume in workload.pod.get("volumes") or []:
        for kind, field in (("secret", "secretName"), ("configMap", "name"), ("persistentVolumeClaim", "claimName")):
            if kind in volume and not (volume[kind] or {}).get(field):
                yield f"volume {volume['name']} has no {field}"
    for what, names in (("container", containers), ("volume", volumes), ("port", ports)):
        yield from (f"{what} {name} is there {times} times" for name, times in names.items() if times > 1)


def _check_container(container: Container, workload: Workload) -> Iterator[str]:
    yield from _check_ports(container)
    yield from _check_probes(container)
    yield from _check_resources(container)
    sleep = (container.pre_stop().get("sleep") or {}).get("seconds", 0)
    if sleep > workload.pod.get("terminationGracePeriodSeconds", _GRACE_S):
        yield f"its preStop sleeps {sleep} s, longer than terminationGracePeriodSeconds"
    for path, name in container.mounts.items():
        if name not in workload.volumes:
            yield f"mounts volume {name} at {path}, which the pod does not have"
    if len(container.mounts) != len(container.spec.get("volumeMounts") or []):
        yield "mounts two volumes at one path"


def _check_ports(container: Container) -> Iterator[str]:
    for each in container.spec.get("ports") or []:
        name = each.get("name", "")
        if not 0 < each["containerPort"] < 2**16:
            yield f"port {each['containerPort']} is not a port"
        if name and not (len(name) <= 15 and _NAME.fullmatch(name) and "--" not in name):
            yield f"port name {name} is not a name of up to 15 small letters, digits and hyphens"


def _check_probes(container: Container) -> Iterator[str]:
    numbers, names = set(container.ports.values()), set(container.ports)
    for kind, probe in container.probes():
        handlers = [each for each in ("exec", "grpc", "httpGet", "tcpSocket") if probe.get(each) is not None]
        if len(handlers) != 1:
            yield f"its {kind} has {len(handlers)} handlers: {', '.join(handlers)}"
        for handler in handlers:
            port = probe[handler].get("port")
            if port is not None and port not in numbers and port not in names:
                yield f"its {kind} uses port {port}, which it does not have"


def _check_resources(container: Container) -> Iterator[str]:
    requests, limits = container.resources("requests"), container.resources("limits")
    for name, text in [*requests.items(), *limits.items()]:
        value = quantity(text)
        if value is None or value < 0:
            yield f"{text} of {name} is not a quantity"
        elif not name.startswith(_ORDINARY_RESOURCES) and value % 1:
            yield f"{text} of {name} is not a whole number"
    for name, text in requests.items():
        request, limit = quantity(text), quantity(limits.get(name, ""))
        if request is not None and limit is not None and request > limit:
            yield f"requests {text} of {name}, more than its limit {limits[name]}"


# Other objects


def _check_budget(budget: Object) -> Iterator[str]:
    if len([name for name in ("minAvailable", "maxUnavailable") if name in budget["spec"]]) != 1:
        yield "has not exactly one of minAvailable and maxUnavailable"


def _check_autoscaler(scaler: Object) -> Iterator[str]:
    spec = scaler["spec"]
    least = spec.get("minReplicas", 1)
    if least > spec["maxReplicas"]:
        yield f"minReplicas {least} is more than maxReplicas {spec['maxReplicas']}"
    if least == 0 and not any(each["type"] in {"Object", "External"} for each in spec.get("metrics") or []):
        yield "scales to 0 by a metric of pods, of which there would be none"


def _check_scaled_object(scaler: Object) -> Iterator[str]:
    spec = scaler["spec"]
    least, most = spec.get("minReplicaCount", 0), spec.get("maxReplicaCount", 100)
    if least > most:
        yield f"minReplicaCount {least} is more than maxReplicaCount {most}"
    if spec.get("idleReplicaCount", -1) >= least:
        yield f"idleReplicaCount {spec['idleReplicaCount']} is not below minReplicaCount {least}"


def _check_policy(policy: Object) -> Iterator[str]:
    rules = [*(policy["spec"].get("ingress") or []), *(policy["spec"].get("egress") or [])]
    for each in (port for rule in rules for port in rule.get("ports") or []):
        if each.get("protocol", "TCP") not in _PROTOCOLS:
            yield f"protocol {each['protocol']} is none of {', '.join(_PROTOCOLS)}"
        if "endPort" in each and each["endPort"] < each.get("port", 0):
            yield f"endPort {each['endPort']} is below port {each.get('port')}"


def _check_service(service: Object) -> Iterator[str]:
    ports = service["spec"].get("ports") or []
    names = Counter(each.get("name", "") for each in ports)
    if len(ports) > 1 and (max(names.values()) > 1 or "" in names):
        yield "has several ports, whose names are not unique"
    yield from (f"port {each['port']} is not a port" for each in ports if not 0 < each["port"] < 2**16)


def _check_claim(claim: Object) -> Iterator[str]:
    storage = str(((claim["spec"].get("resources") or {}).get("requests") or {}).get("storage", ""))
    if not quantity(storage):
        yield f"requests {storage or 'no'} storage, which is not a quantity above 0"
    if not claim["spec"].get("accessModes"):
        yield "has no accessModes"
