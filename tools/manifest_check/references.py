"""References between objects, which an API server does not check."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from manifest_check.objects import COMPONENT, Manifests, Object, Workload, matches, title

OPERATOR = "operator"  # a component that may have no workload: operators run such pods themselves
_ROOT_CA = "kube-root-ca.crt"  # the ConfigMap that Kubernetes makes in each namespace
_SLICE_LABEL = "kubernetes.io/service-name"
_TRIGGERS = Path(__file__).with_name("crds") / "keda_triggers.txt"
_CLUSTER_SCOPED = {"ClusterRole", "ClusterRoleBinding", "Namespace", "PersistentVolume", "PriorityClass"}
_ADDRESS = re.compile(r"(?P<service>[a-z0-9-]+)(\.[a-z0-9.-]+)?:(?P<port>\d+)")


def reference_faults(manifests: Manifests) -> Iterator[str]:
    yield from _check_names(manifests)
    for workload in manifests.workloads:
        yield from (f"{workload.title}: {text}" for text in _check_workload(workload, manifests))
    for kind, check in (
        ("Service", _check_service),
        ("PodDisruptionBudget", _check_budget),
        ("HorizontalPodAutoscaler", _check_autoscaler),
        ("ScaledObject", _check_scaled_object),
        ("NetworkPolicy", _check_policy),
        ("Certificate", _check_certificate),
        ("GRPCRoute", _check_route),
        ("HTTPRoute", _check_route),
        ("BackendTLSPolicy", _check_backend_policy),
        ("PodMonitor", _check_monitor),
    ):
        for each in manifests.of_kind(kind):
            yield from (f"{title(each)}: {text}" for text in check(each, manifests))
    yield from _check_scalers(manifests)


def _check_names(manifests: Manifests) -> Iterator[str]:
    keys = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"].get("name")) for each in manifests.objects
    ]
    yield from (
        f"{kind} {name} is there {times} times" for (kind, _, name), times in Counter(keys).items() if times > 1
    )
    made = {each["metadata"].get("name") for each in manifests.of_kind("Namespace")}
    for kind, namespace, name in keys:
        if kind not in _CLUSTER_SCOPED and made and namespace not in made:
            yield f"{kind} {name} is in namespace {namespace}, which is not the one that is made"


# Workloads


def _check_workload(workload: Workload, manifests: Manifests) -> Iterator[str]:
    account = workload.pod.get("serviceAccountName")
    if account and manifests.find("ServiceAccount", account) is None:
        yield f"no ServiceAccount {account}"
    for container in workload.all_containers:
        tag = container.spec.get("image", "").rpartition("/")[2]
        if "@sha256:" not in tag and (":" not in tag or tag.endswith(":latest")):
            yield f"image {container.spec.get('image')} is not pinned to a tag"
    mounted = {name for each in workload.all_containers for name in each.mounts.values()}
    if unused := workload.volumes.keys() - mounted:
        yield f"volumes {', '.join(sorted(unused))} are mounted by no container"
    for kind, name in _named_objects(workload):
        if manifests.find(kind, name) is None:
            yield f"no {kind} {name}"
    service = workload.spec.get("serviceName")
    if service and manifests.find("Service", service) is None:
        yield f"no Service {service}"
    priority = workload.pod.get("priorityClassName", "system-")
    if not priority.startswith("system-") and manifests.find("PriorityClass", priority) is None:
        yield f"no PriorityClass {priority}"
    for each in workload.pod.get("topologySpreadConstraints") or []:
        if not matches(each.get("labelSelector") or {}, workload.labels):
            yield f"spreads other pods than its own over {each['topologyKey']}"


def _named_objects(workload: Workload) -> Iterator[tuple[str, str]]:
    """Kind and name of ConfigMaps and claims that pods need. Secrets are made by other tools, and not checked."""
    for volume in workload.volumes.values():
        for source in [volume, *((volume.get("projected") or {}).get("sources") or [])]:
            file = source.get("configMap")
            if file and not file.get("optional") and file["name"] != _ROOT_CA:
                yield "ConfigMap", file["name"]
        if claim := volume.get("persistentVolumeClaim"):
            yield "PersistentVolumeClaim", claim["claimName"]
    for container in workload.all_containers:
        sources = [each.get("configMapRef") for each in container.spec.get("envFrom") or []]
        sources += [(each.get("valueFrom") or {}).get("configMapKeyRef") for each in container.spec.get("env") or []]
        yield from (("ConfigMap", each["name"]) for each in sources if each and not each.get("optional"))


def needed_secrets(manifests: Manifests) -> list[str]:
    """Names of Secrets that pods and issuers cannot start without and that no object of the overlay makes."""
    made = {each["metadata"].get("name") for each in manifests.of_kind("Secret")}
    made |= {each["spec"]["secretName"] for each in manifests.of_kind("Certificate")}
    authorities = {each["spec"]["ca"]["secretName"] for each in manifests.of_kind("Issuer") if "ca" in each["spec"]}
    return sorted({name for each in manifests.workloads for name in _secrets(each)} - made | authorities - made)


def _secrets(workload: Workload) -> Iterator[str]:
    sources = [each.get("secret") for each in workload.volumes.values()]
    for container in workload.all_containers:
        sources += [each.get("secretRef") for each in container.spec.get("envFrom") or []]
        sources += [(each.get("valueFrom") or {}).get("secretKeyRef") for each in container.spec.get("env") or []]
    for source in sources:
        if source and not source.get("optional"):
            yield source.get("secretName") or source["name"]


# Objects that select pods


def _check_service(service: Object, manifests: Manifests) -> Iterator[str]:
    selector = service["spec"].get("selector")
    if not selector:
        slices = [
            (each["metadata"].get("labels") or {}).get(_SLICE_LABEL) for each in manifests.of_kind("EndpointSlice")
        ]
        if service["spec"].get("type") != "ExternalName" and service["metadata"]["name"] not in slices:
            yield "has no selector, and no EndpointSlice names it"
        return
    selected = manifests.selected({"matchLabels": selector})
    components = {each.tier for each in selected}
    if len(components) != 1:
        yield f"selects pods of {len(components)} components: {', '.join(sorted(components)) or 'none'}"
    for workload in selected:
        for port in service["spec"].get("ports") or []:
            yield from _check_service_port(port, workload, is_headless=is_headless(service))


def _check_service_port(port: Object, workload: Workload, *, is_headless: bool) -> Iterator[str]:
    target = port.get("targetPort", port["port"])
    ports = workload.ports
    number = ports.get(target) if isinstance(target, str) else target
    if number not in ports.values():
        yield f"sends to port {target}, which no pod of {workload.name} has"
    elif is_headless and port["port"] != number:
        yield f"is headless, so port {port['port']} is dialled as it is, and {workload.name} does not listen there"


def is_headless(service: Object) -> bool:
    return bool(service["spec"].get("clusterIP") == "None")


def _check_budget(budget: Object, manifests: Manifests) -> Iterator[str]:
    components = {each.tier for each in manifests.selected(budget["spec"].get("selector") or {})}
    if len(components) != 1:
        yield f"selects pods of {len(components)} components: {', '.join(sorted(components)) or 'none'}"


def _check_policy(policy: Object, manifests: Manifests) -> Iterator[str]:
    selected = manifests.selected(policy["spec"].get("podSelector") or {})
    if not selected:
        yield "selects no pods"
    there = {number for each in selected for number in each.ports.values()}
    names = {name for each in selected for name in each.ports}
    for rule in policy["spec"].get("ingress") or []:
        opened = {each["port"] for each in rule.get("ports") or [] if "port" in each and "endPort" not in each}
        if strange := opened - there - names:
            yield f"opens {', '.join(str(each) for each in sorted(strange, key=str))}, where no process listens"
        for source in rule.get("from") or []:
            selector = source.get("podSelector")
            is_own = selector is not None and "namespaceSelector" not in source
            is_operator = ((selector or {}).get("matchLabels") or {}).get(COMPONENT) == OPERATOR
            if is_own and not is_operator and not manifests.selected(selector):
                yield f"lets in pods of no workload: {selector}"


def _check_monitor(monitor: Object, manifests: Manifests) -> Iterator[str]:
    selected = manifests.selected(monitor["spec"].get("selector") or {})
    if not selected:
        yield "selects no pods"
    for each in monitor["spec"].get("podMetricsEndpoints") or []:
        if "port" in each and not any(each["port"] in workload.ports for workload in selected):
            yield f"scrapes port {each['port']}, which none of its pods has"


# Autoscaling


def _check_autoscaler(scaler: Object, manifests: Manifests) -> Iterator[str]:
    yield from _check_target(scaler["spec"]["scaleTargetRef"], manifests)


def _check_target(target: Object, manifests: Manifests) -> Iterator[str]:
    kind, name = target.get("kind", "Deployment"), target["name"]
    found = manifests.find(kind, name)
    if found is None:
        yield f"scales {kind} {name}, which does not exist"
    elif kind in {"Deployment", "StatefulSet"} and Workload(found).is_written_by_one():
        yield f"scales {kind} {name}, whose volume has one writer"


def _check_scaled_object(scaler: Object, manifests: Manifests) -> Iterator[str]:
    yield from _check_target(scaler["spec"]["scaleTargetRef"], manifests)
    known = set(_TRIGGERS.read_text(encoding="utf-8").split())
    for trigger in scaler["spec"]["triggers"]:
        kind, address = trigger["type"], (trigger.get("metadata") or {}).get("scalerAddress", "")
        if kind not in known:
            yield f"KEDA has no trigger {kind}"
        if kind.startswith("external") and not address:
            yield f"trigger {kind} has no scalerAddress"
        elif kind.startswith("external"):
            yield from _check_address(address, manifests)
        reference = (trigger.get("authenticationRef") or {}).get("name")
        if reference and manifests.find("TriggerAuthentication", reference) is None:
            yield f"no TriggerAuthentication {reference}"


def _check_address(address: str, manifests: Manifests) -> Iterator[str]:
    match = _ADDRESS.fullmatch(address)
    service = manifests.find("Service", match["service"]) if match else None
    if match is None or service is None or int(match["port"]) not in service_ports(service):
        yield f"scalerAddress {address} names no port of a Service"


def service_ports(service: Object) -> set[int]:
    return {each["port"] for each in service["spec"].get("ports") or []}


def _check_scalers(manifests: Manifests) -> Iterator[str]:
    """At most one scaler changes the number of pods of a workload."""
    scalers = manifests.of_kind("HorizontalPodAutoscaler", "ScaledObject")
    targets = [each["spec"]["scaleTargetRef"] for each in scalers]
    times = Counter((each.get("kind", "Deployment"), each["name"]) for each in targets)
    yield from (f"{kind} {name} is scaled by {count} objects" for (kind, name), count in times.items() if count > 1)


# Certificates and routes


def _check_certificate(certificate: Object, manifests: Manifests) -> Iterator[str]:
    issuer = certificate["spec"]["issuerRef"]
    if issuer.get("kind", "Issuer") == "Issuer" and manifests.find("Issuer", issuer["name"]) is None:
        yield f"no Issuer {issuer['name']}"


def _check_route(route: Object, manifests: Manifests) -> Iterator[str]:
    for parent in route["spec"].get("parentRefs") or []:
        if "namespace" not in parent and (text := _parent_fault(parent, manifests)):
            yield text
    for rule in route["spec"].get("rules") or []:
        for backend in rule.get("backendRefs") or []:
            service = manifests.find("Service", backend["name"])
            if service is None or backend.get("port") not in service_ports(service):
                yield f"sends to {backend['name']}:{backend.get('port')}, which no Service has"


def _parent_fault(parent: Object, manifests: Manifests) -> str:
    gateway = manifests.find("Gateway", parent["name"])
    listeners: list[Any] = [] if gateway is None else [each["name"] for each in gateway["spec"]["listeners"]]
    if gateway is None:
        return f"no Gateway {parent['name']}"
    section = parent.get("sectionName")
    return "" if section is None or section in listeners else f"Gateway {parent['name']} has no listener {section}"


def _check_backend_policy(policy: Object, manifests: Manifests) -> Iterator[str]:
    for target in policy["spec"]["targetRefs"]:
        service = manifests.find(target["kind"], target["name"])
        names = [each.get("name") for each in ((service or {}).get("spec") or {}).get("ports") or []]
        if service is None or target.get("sectionName", names[0]) not in names:
            yield f"names {target['kind']} {target['name']}, port {target.get('sectionName')}, which does not exist"
