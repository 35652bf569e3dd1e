"""What the processes of the tiers need: valid settings, ports, probes, drains, resources, budgets."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

from manifest_check.objects import POD_IP, TIERS, Container, Manifests, Workload
from penstock.chassis.config import ConfigError, ServiceConfig, load, variable_prefix
from penstock.chassis.operators.access import check_protected
from penstock.chassis.server.health import LIVENESS

_KILL_MARGIN_S = 5  # between the end of a drain and the kill
_LISTENERS = {  # setting: name of its port
    "listen": "grpc",
    "http_listen": "http",
    "check_listen": "checks",
    "metrics_listen": "metrics",
    "admin_listen": "admin",
    "health_listen": "health",
}
_SLOW_STARTS = ("auth", "batch", "worker")  # they read a store or a model before they serve
_STORED = {"auth": "keys and the ledger", "batch": "files and batches"}
_SECRET_NAME = re.compile(r"(^|_)(PASSWORD|PEPPER|SECRET|TOKEN)$")


def tier_faults(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        yield from (f"{workload.title}: {text}" for text in _check_any(workload))
        if workload.tier in {*TIERS, "envoy"}:
            yield from (f"{workload.title}: {text}" for text in _check_serving(workload, manifests))
        for container in workload.processes if workload.tier in TIERS else ():
            yield from (f"{workload.title}: {text}" for text in _check_process(container, workload, manifests))


@cache
def config_class(tier: str) -> type[ServiceConfig]:
    found: type[ServiceConfig] = getattr(import_module(f"penstock.{tier}.config"), f"{tier.title()}Config")
    return found


# Pods of any component


def _check_any(workload: Workload) -> Iterator[str]:
    secrets = _secret_variables(workload.tier)
    for container in workload.all_containers:
        for each in container.spec.get("env") or []:
            if each.get("value") and (each["name"] in secrets or _SECRET_NAME.search(each["name"])):
                yield f"{container.name}: {each['name']} is a secret in plain text"
        requests, limits = container.resources("requests"), container.resources("limits")
        lacking = [name for name in ("cpu", "memory") if name not in {**limits, **requests}]
        if lacking:
            yield f"{container.name}: requests no {' and no '.join(lacking)}"
        if "memory" not in limits:
            yield f"{container.name}: has no limit of memory"


@cache
def _secret_variables(tier: str) -> frozenset[str]:
    if tier not in TIERS:
        return frozenset()
    secret = [each for each in dataclasses.fields(config_class(tier)) if each.metadata.get("secret")]
    own = {variable_prefix(tier) + each.name.upper() for each in secret}
    return frozenset(own | {each.metadata["fleet"] for each in secret if each.metadata.get("fleet")})


# Tiers and proxies


def _check_serving(workload: Workload, manifests: Manifests) -> Iterator[str]:
    yield from _check_rollout(workload)
    yield from _check_shared(workload, manifests)
    if not workload.processes:
        yield f"has no container {workload.tier}"
    for container in workload.processes:
        kinds = [kind for kind, _ in container.probes()]
        slow = ("startupProbe",) if workload.tier in _SLOW_STARTS else ()
        for kind in ("readinessProbe", "livenessProbe", *slow):
            if kind not in kinds:
                yield f"{container.name} has no {kind}"
    if "/tmp" not in _mounts_of_processes(workload):  # noqa: S108
        yield "has nowhere to write a temporary file"
    if not workload.is_written_by_one():
        yield from _check_spread(workload, manifests)
    if workload.tier in {"edge", "envoy"} and not all(each.pre_stop() for each in workload.processes):
        yield "has no preStop, so that it ends before others know that it drains"
    if workload.tier == "envoy":
        for container in workload.processes:
            command = (container.pre_stop().get("exec") or {}).get("command") or ["nothing"]
            if command[-1].isdecimal():  # drain.sh ADMIN_PORT GRACE
                yield from _check_grace(workload, container, float(command[-1]))
            else:
                yield f"its preStop runs {command[-1]}, which does not wait for open requests"


def _mounts_of_processes(workload: Workload) -> set[str]:
    mounts = [set(each.mounts) for each in workload.processes]
    return set.intersection(*mounts) if mounts else {"/tmp"}  # noqa: S108


def _check_rollout(workload: Workload) -> Iterator[str]:
    """A volume has one writer at a time; a roll of another tier than worker never reduces the number of pods."""
    kind, strategy = workload.object["kind"], workload.spec.get("strategy") or {}
    if workload.is_written_by_one():
        if workload.replicas != 1 or (kind != "StatefulSet" and strategy.get("type") != "Recreate"):
            yield "two of its pods could write to one volume"
        return
    taken = str((strategy.get("rollingUpdate") or {}).get("maxUnavailable", "25%"))
    if kind == "Deployment" and workload.tier != "worker" and taken not in {"0", "0%"}:
        yield "a roll takes pods away before there are new ones"


def _check_shared(workload: Workload, manifests: Manifests) -> Iterator[str]:
    """A volume that several pods write to can be mounted by several nodes."""
    for name in workload.written_claims if not workload.is_written_by_one() else ():
        claim = manifests.find("PersistentVolumeClaim", name) or {"spec": {}}
        if "ReadWriteMany" not in claim["spec"].get("accessModes", []):
            yield f"its pods share the volume claim {name}, which one node at a time can mount"


def _check_spread(workload: Workload, manifests: Manifests) -> Iterator[str]:
    budgets = [
        each
        for each in manifests.of_kind("PodDisruptionBudget")
        if workload in manifests.selected(each["spec"].get("selector") or {})
    ]
    if not budgets:
        yield "no PodDisruptionBudget limits how many of its pods a drain of nodes takes"
    keys = {each["topologyKey"] for each in workload.pod.get("topologySpreadConstraints") or []}
    if missing := {"kubernetes.io/hostname", "topology.kubernetes.io/zone"} - keys:
        yield f"its pods are not spread over {' and '.join(sorted(missing))}"


def _check_grace(workload: Workload, container: Container, drain_s: float) -> Iterator[str]:
    before = (container.pre_stop().get("sleep") or {}).get("seconds", 0)
    allowed = workload.pod.get("terminationGracePeriodSeconds", 30)
    if allowed < before + drain_s + _KILL_MARGIN_S:
        yield f"is killed after {allowed} s, while draining takes up to {before} + {drain_s:g} s"


# Processes of Penstock


def _check_process(container: Container, workload: Workload, manifests: Manifests) -> Iterator[str]:
    tier, variables = workload.tier, manifests.environment(container)
    config_type = config_class(tier)
    try:
        config = load(config_type, tier, variables)
    except ConfigError as error:
        yield f"its settings are invalid: {error}"
        return
    fleet = {each.metadata.get("fleet") for each in dataclasses.fields(config_type)}
    ours = [name for name in variables if name.startswith("PENSTOCK_")]
    if unknown := [name for name in ours if not name.startswith(variable_prefix(tier)) and name not in fleet]:
        yield f"{', '.join(unknown)}: settings of no tier, or of another"
    yield from _check_ports(container, workload, config)
    yield from _check_probes(container)
    yield from _check_operators(config, variables)
    yield from _check_grace(workload, container, config.drain_grace)
    yield from _check_values(config, workload)
    if tier == "worker":
        yield from _check_model(str(getattr(config, "model", "")), container, workload, manifests)


def _check_ports(container: Container, workload: Workload, config: ServiceConfig) -> Iterator[str]:
    """Each listener has a port of the pod, and each port of the container a listener. `health-2` is of `edge-2`."""
    listens = {name: getattr(config, setting) for setting, name in _LISTENERS.items() if getattr(config, setting, "")}
    own = {_kind(name): f"0.0.0.0:{port}" for name, port in container.ports.items()}
    shared = {_kind(name): f"0.0.0.0:{port}" for name, port in workload.ports.items()}
    expected = {**{name: shared[name] for name in listens if name in shared}, **own}
    if listens != expected:
        yield f"listens on {listens}, but its ports are {expected}"


def _kind(name: str) -> str:
    return re.sub(r"-\d+$", "", name)


def _check_probes(container: Container) -> Iterator[str]:
    health = {_kind(name): port for name, port in container.ports.items()}.get("health")
    expected = {
        "startupProbe": {"port": health},
        "readinessProbe": {"port": health},
        "livenessProbe": {"port": health, "service": LIVENESS},
    }
    found = {kind: probe.get("grpc") for kind, probe in container.probes()}
    if found != {kind: expected[kind] for kind in found}:
        yield f"its probes use {found}"


def _check_operators(config: ServiceConfig, variables: Mapping[str, str]) -> Iterator[str]:
    """The operators' listener opens, and only for operators."""
    if not config.admin_listen:
        yield "serves no operators"
        return
    try:
        check_protected(config.admin_listen, token=config.admin_token, is_tls="PENSTOCK_TLS_CERTIFICATE" in variables)
    except ConfigError as error:
        yield str(error)


def _check_values(config: ServiceConfig, workload: Workload) -> Iterator[str]:
    """Values that are right on a developer's machine alone."""
    if workload.tier == "worker":
        address = f"{POD_IP}:{workload.ports.get('grpc')}"
        if config.advertise != address:
            yield f"edges are given the address {config.advertise!r}, which is not the address of the pod"
        if getattr(config, "engine", "") == "sim":
            yield "its engine is sim, which makes up its answers"
    if getattr(config, "store", "") == ":memory:":
        yield f"its store :memory: loses {_STORED[workload.tier]} with the process"
    context = workload.pod.get("securityContext") or {}
    if workload.is_written_by_one() and "fsGroup" in context and context.get("fsGroupChangePolicy") != "OnRootMismatch":
        yield "without fsGroupChangePolicy OnRootMismatch, each mount opens its secrets to the group"
    if config.insecure:
        yield "serves plaintext to every process that reaches its port"


def _check_model(model: str, container: Container, workload: Workload, manifests: Manifests) -> Iterator[str]:
    """A model by path is on a mounted volume, and what an init container downloads is what the worker loads."""
    if model.startswith("/") and not any(Path(model).is_relative_to(path) for path in container.mounts):
        yield f"its model {model} is on no volume"
    for each in workload.all_containers:
        folder = manifests.environment(each).get("MODEL_FOLDER", model)
        if folder != model:
            yield f"{each.name} downloads {folder}, but the worker loads {model}"
