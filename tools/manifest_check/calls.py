"""Calls between pods: each configured address is one of a Service, and the network policies allow each call."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from manifest_check.objects import COMPONENT, TIERS, Manifests, Object, Workload, matches, title
from manifest_check.references import is_headless, service_ports

# Of a Service: a host with a dot is outside of the namespace.
_ADDRESS = re.compile(r"(?P<dns>dns:///)?(?<![\w.-])(?P<host>[a-z][a-z0-9-]*):(?P<ports>\d+(?:/\d+)*)")
_OWN_VARIABLES = re.compile("PENSTOCK_(AUTH|BATCH|EDGE|QUEUE|ROUTING|SCHEDULER|WORKER)_")  # others may name anything
_DYNAMIC_CALLS = (  # by xDS and by lease: component, component, name of the port
    ("envoy", "edge", "grpc"),
    ("envoy", "edge", "http"),
    ("envoy", "auth", "checks"),
    ("edge", "worker", "grpc"),
)
_CALLED_BY_PROXIES = "PENSTOCK_ROUTING_REGION_AUTHS="  # of the settings of routing; the others are above
_OPEN_PORTS = {"front", "health", "metrics", "ready", "region"}  # names of ports that a policy may open to every source
_MEMBERS = {*TIERS, "envoy"}
_NAME_LABEL = "kubernetes.io/metadata.name"  # which each namespace has


def call_faults(manifests: Manifests) -> Iterator[str]:
    calls = {call for call in _DYNAMIC_CALLS if all(manifests.of_tier(tier) for tier in call[:2])}
    for caller, where, host, port in _configured_addresses(manifests):
        service = manifests.find("Service", host)
        if service is None or port not in service_ports(service):
            yield f"{caller}: {where} names {host}:{port}, which no Service has"
            continue
        if "dns:///" in where and not is_headless(service):
            yield f"{caller}: {where} is balanced by the caller, but Service {host} has one address for all its pods"
        if where.startswith(_CALLED_BY_PROXIES):
            calls.add(("envoy", _component(service), _target(service, port)))
        elif caller != "routing":  # which only resolves names
            calls.add((caller, _component(service), _target(service, port)))
    if manifests.of_kind("NetworkPolicy"):
        yield from _check_policies(manifests, calls)


def _component(service: Object) -> str:
    return str((service["spec"].get("selector") or {}).get(COMPONENT, ""))


def _target(service: Object, port: int) -> str:
    (target,) = [each.get("targetPort", port) for each in service["spec"]["ports"] if each["port"] == port]
    return str(target)


def _configured_addresses(manifests: Manifests) -> Iterator[tuple[str, str, str, int]]:
    """Component, setting, Service and port of each configured address."""
    for workload in manifests.workloads:
        for container in workload.processes:
            for name, text in manifests.environment(container).items():
                for found in _ADDRESS.finditer(text) if _OWN_VARIABLES.match(name) else ():
                    for port in found["ports"].split("/"):
                        yield workload.tier, f"{name}={found[0]}", found["host"], int(port)
    for file in manifests.of_kind("ConfigMap"):
        if bootstrap := (file.get("data") or {}).get("bootstrap.json"):
            yield from _bootstrap_addresses(json.loads(bootstrap))


def _bootstrap_addresses(bootstrap: Mapping[str, Any]) -> Iterator[tuple[str, str, str, int]]:
    for cluster in bootstrap["static_resources"]["clusters"]:
        (endpoint,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        socket = endpoint["endpoint"]["address"]["socket_address"]
        if cluster["type"] == "STRICT_DNS":
            yield "envoy", "bootstrap.json", socket["address"], socket["port_value"]


# Network policies


def _check_policies(manifests: Manifests, calls: set[tuple[str, str, str]]) -> Iterator[str]:
    if not any(_denies_all(each) for each in manifests.of_kind("NetworkPolicy")):
        yield "no NetworkPolicy denies ingress by default, so pods that no other one selects are open"
    for caller, called, port in sorted(calls):
        for source in manifests.of_tier(caller):
            for target in manifests.of_tier(called):
                if not _is_allowed(source.labels, target, port, manifests):
                    yield f"{caller} may not call {called}:{port}"
    for workload in manifests.workloads:
        yield from _check_opened(workload, manifests)
        if workload.tier in _MEMBERS:
            yield from _check_admitted(workload, calls, manifests)


def _check_admitted(workload: Workload, calls: set[tuple[str, str, str]], manifests: Manifests) -> Iterator[str]:
    """Pods of the mesh reach the ports that they call, and no others: operators have pods of their own."""
    for name in workload.ports:
        for caller in (each for each in manifests.workloads if each.tier in _MEMBERS):
            is_called = (caller.tier, workload.tier, name) in calls or _kind(name) in _OPEN_PORTS
            if not is_called and _is_allowed(caller.labels, workload, name, manifests):
                yield f"policies let {caller.tier} reach port {name} of {workload.tier}, which it does not call"


def _denies_all(policy: Object) -> bool:
    spec = policy["spec"]
    return not any(spec.get("podSelector", {}).values()) and not spec.get("ingress") and _limits_ingress(policy)


def _limits_ingress(policy: Object) -> bool:
    return "Ingress" in policy["spec"].get("policyTypes", ["Ingress"])


def _check_opened(workload: Workload, manifests: Manifests) -> Iterator[str]:
    """Probes and scrapers of other namespaces reach their ports, and only those are open to every source."""
    for name, port in workload.ports.items():
        opened = [(policy, rule) for policy, rule in _rules_for(workload, manifests) if _opens(rule, name, port)]
        kind = _kind(name)
        if kind in {"metrics", "health"} and not any(_reaches_outside(rule) for _, rule in opened):
            yield f"{workload.title}: no policy lets anyone outside of the namespace reach its port {name}"
        if kind not in _OPEN_PORTS and workload.tier in _MEMBERS:
            for policy in (policy for policy, rule in opened if not rule.get("from")):
                yield f"{title(policy)}: opens port {name} of {workload.tier} to every source"


def _kind(name: str) -> str:
    """Name of a port without the number of a further process: `metrics` of `metrics-2`."""
    return re.sub(r"-\d+$", "", name)


def _reaches_outside(rule: Object) -> bool:
    sources = rule.get("from") or [{"namespaceSelector": {}}]
    return any("ipBlock" in each or "namespaceSelector" in each for each in sources)


def _rules_for(workload: Workload, manifests: Manifests) -> Iterator[tuple[Object, Object]]:
    for policy in manifests.of_kind("NetworkPolicy"):
        if _limits_ingress(policy) and matches(policy["spec"].get("podSelector") or {}, workload.labels):
            yield from ((policy, rule) for rule in policy["spec"].get("ingress") or [])


def _is_allowed(labels: Mapping[str, str], target: Workload, port: str, manifests: Manifests) -> bool:
    number = target.ports.get(port, int(port) if port.isdecimal() else 0)
    return any(
        _opens(rule, port, number) and _admits(rule, labels, manifests) for _, rule in _rules_for(target, manifests)
    )


def _opens(rule: Object, name: str, number: int) -> bool:
    """Whether a rule opens a port; a rule without ports opens all."""
    ports = rule.get("ports") or [{}]
    return any(
        each.get("port", number) in {name, number}
        or (isinstance(each.get("port"), int) and each["port"] <= number <= each.get("endPort", 0))
        for each in ports
    )


def _admits(rule: Object, labels: Mapping[str, str], manifests: Manifests) -> bool:
    """Whether a rule admits a pod of this namespace with these labels. Addresses of pods are in no ipBlock."""
    sources = rule.get("from")
    return not sources or any(
        "ipBlock" not in each
        and matches(each.get("podSelector") or {}, labels)
        and ("namespaceSelector" not in each or matches(each["namespaceSelector"], _own_namespace(manifests)))
        for each in sources
    )


def _own_namespace(manifests: Manifests) -> dict[str, str]:
    for each in manifests.of_kind("Namespace"):
        return {**(each["metadata"].get("labels") or {}), _NAME_LABEL: each["metadata"]["name"]}
    return {}
