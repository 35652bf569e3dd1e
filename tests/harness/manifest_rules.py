"""Rules between Kubernetes objects, beyond their schemas. Pure: objects in, faults out.

Schema checks miss what breaks a roll-out in practice: a port without a listener, a selector that selects nothing, an
address of no Service, a grace period shorter than the drain, a policy that forbids a call of the request's own path.
"""

import json
import re
from collections import Counter
from itertools import chain

from penstock.chassis.config import ConfigError, load, variable_prefix
from penstock.chassis.operators.access import check_protected
from penstock.chassis.server.health import LIVENESS

KILL_MARGIN_S = 5  # between the end of a drain and the kill
ADDRESS = re.compile(r"(?P<dns>dns:///)?(?P<host>[a-z][a-z0-9-]*):(?P<ports>\d+(?:/\d+)*)")
LISTENERS = {  # setting -> name of its port
    "listen": "grpc",
    "http_listen": "http",
    "check_listen": "checks",
    "metrics_listen": "metrics",
    "admin_listen": "admin",
    "health_listen": "health",
}
OPERATOR_PODS = "operator"  # a component of no Deployment: operators run such pods themselves
DYNAMIC_CALLS = [
    ("envoy", "edge", 7001),
    ("envoy", "edge", 7080),
    ("envoy", "auth", 7007),
    ("edge", "worker", 7005),
]  # by xDS and by lease


def manifest_faults(objects, configs):
    """Every fault found; `configs` maps a tier to the class of its settings."""
    found = [*_check_names(objects), *_check_calls(objects)]
    for pods in _objects_of_kind(objects, "Deployment"):
        found += _with_object_name(
            pods,
            chain(
                _check_service_account(pods, objects),
                _check_hardening(pods),
                _check_mounts(pods, objects),
                _check_rollout(pods),
            ),
        )
        found += _with_object_name(pods, chain(_check_labels(pods), _check_probes(pods)))
        found += _with_object_name(
            pods,
            _check_tier(pods, configs[pods["metadata"]["name"]]) if _is_tier(pods, configs) else _check_envoy(pods),
        )
    for service in _objects_of_kind(objects, "Service"):
        found += _with_object_name(service, _check_service(service, objects))
    for budget in _objects_of_kind(objects, "PodDisruptionBudget"):
        found += _with_object_name(budget, _selects_one(budget["spec"]["selector"]["matchLabels"], objects))
    for policy in _objects_of_kind(objects, "NetworkPolicy"):
        found += _with_object_name(policy, _check_network_policy(policy, objects))
    return found


# Reading objects


def container(pods):
    (only,) = pods["spec"]["template"]["spec"]["containers"]
    return only


def environment(pods):
    """Variables of the container, with a made-up pod address for values that are known only in a cluster."""
    variables = {}
    for each in container(pods).get("env", []):
        known = {f"$({name})": value for name, value in variables.items()}
        text = each.get("value", "")
        if "valueFrom" in each:
            path = each["valueFrom"].get("fieldRef", {}).get("fieldPath")
            text = {"status.podIP": "10.0.0.1", None: "secret"}.get(path, "pod-1")
        for written, value in known.items():
            text = text.replace(written, value)
        variables[each["name"]] = text
    return variables


def ports(pods):
    return {each["name"]: each["containerPort"] for each in container(pods)["ports"]}


def _pod(pods):
    return pods["spec"]["template"]["spec"]


def _objects_of_kind(objects, kind):
    return [each for each in objects if each["kind"] == kind]


def _find_object(objects, kind, name):
    return next((each for each in _objects_of_kind(objects, kind) if each["metadata"]["name"] == name), None)


def _with_object_name(thing, texts):
    return [f"{thing['kind']} {thing['metadata']['name']}: {text}" for text in texts]


def _is_tier(pods, configs):
    return pods["metadata"]["name"] in configs


def _selected(selector, objects):
    return [
        each["metadata"]["name"]
        for each in _objects_of_kind(objects, "Deployment")
        if selector.items() <= _labels(each).items()
    ]


def _labels(pods):
    return pods["spec"]["template"]["metadata"]["labels"]


# One object


def _check_names(objects):
    names = Counter((each["kind"], each["metadata"]["name"]) for each in objects)
    yield from (f"{kind} {name} is there {times} times" for (kind, name), times in names.items() if times > 1)
    places = {each["metadata"].get("namespace") for each in objects if each["kind"] != "Namespace"}
    if places != {each["metadata"]["name"] for each in _objects_of_kind(objects, "Namespace")}:
        yield f"objects are in {places}, which is not the one namespace made"


def _check_labels(pods):
    if not pods["spec"]["selector"]["matchLabels"].items() <= _labels(pods).items():
        yield "its selector does not match its own pods"
    if ":" not in container(pods)["image"] or container(pods)["image"].endswith(":latest"):
        yield f"image {container(pods)['image']} is not pinned to a tag"


def _check_service_account(pods, objects):
    name = _pod(pods).get("serviceAccountName")
    if _find_object(objects, "ServiceAccount", name) is None:
        yield f"no ServiceAccount {name}"
    if _pod(pods).get("automountServiceAccountToken") is not False:
        yield "its pods carry a token they do not need"


def _check_hardening(pods):
    mine, ours = container(pods).get("securityContext", {}), _pod(pods).get("securityContext", {})
    if not (ours.get("runAsNonRoot") is True and ours.get("runAsUser", 0) > 0):
        yield "may run as root"
    if ours.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "has no seccomp profile"
    if mine.get("allowPrivilegeEscalation") is not False or mine.get("readOnlyRootFilesystem") is not True:
        yield "may gain privileges or write to its image"
    if mine.get("capabilities") != {"drop": ["ALL"]}:
        yield "keeps capabilities"
    if _pod(pods).get("enableServiceLinks") is not False:
        yield "is given variables of other Services, which look like unknown settings"


def _check_mounts(pods, objects):
    volumes = {each["name"]: each for each in _pod(pods).get("volumes", [])}
    mounts = {each["name"]: each["mountPath"] for each in container(pods).get("volumeMounts", [])}
    if volumes.keys() != mounts.keys():
        yield f"volumes {sorted(volumes)} and mounts {sorted(mounts)} differ"
    if mounts.get("tmp") != "/tmp":
        yield "has nowhere to write a temporary file"
    for volume in volumes.values():
        if "configMap" in volume and _find_object(objects, "ConfigMap", volume["configMap"]["name"]) is None:
            yield f"no ConfigMap {volume['configMap']['name']}"
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            if _find_object(objects, "PersistentVolumeClaim", claim) is None:
                yield f"no PersistentVolumeClaim {claim}"


def _check_rollout(pods):
    """A rollout never reduces the number of pods, and a volume has one writer at a time."""
    strategy = pods["spec"]["strategy"]
    claims = [each.get("persistentVolumeClaim") for each in _pod(pods).get("volumes", [])]
    is_written = any(claim and not claim.get("readOnly") for claim in claims)
    if is_written and (strategy != {"type": "Recreate"} or pods["spec"]["replicas"] != 1):
        yield "two of its pods could write to one volume"
    if not is_written and strategy.get("rollingUpdate", {}).get("maxUnavailable") != 0:
        yield "a roll takes pods away before there are new ones"


SHARED_VARIABLES = ("POD_IP", "PENSTOCK_ZONE", "PENSTOCK_ADMIN_TOKEN")  # allowed for every tier


def _check_probes(pods):
    numbers, names = set(ports(pods).values()), set(ports(pods))
    for kind in ("readinessProbe", "livenessProbe", "startupProbe"):
        probe = container(pods).get(kind)
        if probe is None and kind != "startupProbe":
            yield f"has no {kind}"
        for how in ("grpc", "httpGet", "tcpSocket"):
            port = (probe or {}).get(how, {}).get("port")
            if port is not None and port not in (numbers if how == "grpc" else names):
                yield f"its {kind} uses port {port}, which it does not have"


def _check_tier(pods, config_class):
    """Checks that depend on the meaning of a tier's settings."""
    tier, variables = pods["metadata"]["name"], environment(pods)
    try:
        config = load(config_class, tier, variables)
    except ConfigError as error:
        yield f"its settings are invalid: {error}"
        return
    unknown = [
        name for name in variables if not name.startswith(variable_prefix(tier)) and name not in SHARED_VARIABLES
    ]
    if unknown:
        yield f"{unknown} are settings of no tier, or of another"
    yield from _check_ports(pods, config)
    yield from _check_grpc_probes(pods)
    yield from _check_operators(config, variables)
    yield from _check_grace_period(pods, config.drain_grace)
    if tier == "worker" and config.advertise != f"10.0.0.1:{ports(pods)['grpc']}":
        yield f"edges are given the address {config.advertise!r}, which is not the address of the pod"


def _check_ports(pods, config):
    listens = {name: getattr(config, setting) for setting, name in LISTENERS.items() if getattr(config, setting, "")}
    expected = {name: f"0.0.0.0:{port}" for name, port in ports(pods).items()}
    if listens != expected:
        yield f"listens on {listens}, but its ports are {expected}"


def _check_grpc_probes(pods):
    health = ports(pods).get("health")
    probes = {kind: container(pods).get(f"{kind}Probe", {}).get("grpc") for kind in ("readiness", "liveness")}
    if probes != {"readiness": {"port": health}, "liveness": {"port": health, "service": LIVENESS}}:
        yield f"its probes use {probes}"


def _check_operators(config, variables):
    """The operators' listener opens, and only for operators."""
    if not config.admin_listen:
        yield "serves no operators"
        return
    try:
        check_protected(config.admin_listen, token=config.admin_token, is_tls="PENSTOCK_TLS_CERTIFICATE" in variables)
    except ConfigError as error:
        yield str(error)


def _check_envoy(pods):
    command = container(pods).get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["0"])
    yield from _check_grace_period(pods, float(command[-1]))  # drain.sh ADMIN_PORT GRACE


def _check_grace_period(pods, drain):
    before = container(pods).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    allowed = _pod(pods)["terminationGracePeriodSeconds"]
    if allowed < before + drain + KILL_MARGIN_S:
        yield f"is killed after {allowed} s, while draining takes up to {before} + {drain:g} s"


def _selects_one(selector, objects):
    if len(selected := _selected(selector, objects)) != 1:
        yield f"selects {selected}, not one Deployment"


def _check_service(service, objects):
    yield from _selects_one(service["spec"].get("selector", {}), objects)
    for name in _selected(service["spec"].get("selector", {}), objects)[:1]:
        there = ports(_find_object(objects, "Deployment", name))
        for port in service["spec"]["ports"]:
            if port["targetPort"] not in there:
                yield f"sends to port {port['targetPort']}, which no pod of {name} has"
            elif _is_headless(service) and port["port"] != there[port["targetPort"]]:
                yield f"is headless, so port {port['port']} is dialled as it is, and {name} does not listen there"


def _is_headless(service):
    return service["spec"].get("clusterIP") == "None"


def _check_network_policy(policy, objects):
    selector = policy["spec"]["podSelector"].get("matchLabels", {})
    selected = _selected(selector, objects)
    if not selected:
        yield "selects no pods"
    there = {port for name in selected for port in ports(_find_object(objects, "Deployment", name)).values()}
    for rule in policy["spec"].get("ingress", []):
        if strange := {port["port"] for port in rule["ports"]} - there:
            yield f"opens {sorted(strange)}, where no process listens"
        for source in rule.get("from", []):
            labels = source["podSelector"]["matchLabels"]
            if labels.get("app.kubernetes.io/component") != OPERATOR_PODS:
                yield from _selects_one(labels, objects)


# Calls between tiers


def _check_calls(objects):
    """Every address in the settings is one of a Service, and the network policies allow every such call."""
    for caller, where, called, port in _configured_addresses(objects):
        service = _find_object(objects, "Service", called)
        if service is None or port not in {each["port"] for each in service["spec"]["ports"]}:
            yield f"{caller}: {where} names {called}:{port}, which no Service has"
            continue
        if "dns:///" in where and not _is_headless(service):
            yield f"{caller}: {where} is balanced by the caller, but Service {called} has one address for all its pods"
    calls = {
        (caller, called, port) for caller, where, called, port in _configured_addresses(objects) if caller != "routing"
    }
    for caller, called, port in sorted(calls | set(DYNAMIC_CALLS)):
        if not _is_allowed(caller, called, port, objects):
            yield f"{caller} may not call {called}:{port}"


def _configured_addresses(objects):
    """Caller, setting, Service and port of each configured address."""
    for pods in _objects_of_kind(objects, "Deployment"):
        for name, text in environment(pods).items():
            for match in ADDRESS.finditer(text):
                for port in match["ports"].split("/"):
                    yield pods["metadata"]["name"], f"{name}={match[0]}", match["host"], int(port)
    for file in _objects_of_kind(objects, "ConfigMap"):
        for cluster in json.loads(file["data"]["bootstrap.json"])["static_resources"]["clusters"]:
            socket = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"][
                "socket_address"
            ]
            if cluster["type"] == "STRICT_DNS":
                yield "envoy", "bootstrap.json", socket["address"], socket["port_value"]


def _is_allowed(caller, called, port, objects):
    policies = [
        policy
        for policy in _objects_of_kind(objects, "NetworkPolicy")
        if called in _selected(policy["spec"]["podSelector"].get("matchLabels", {}), objects)
    ]
    rules = [rule for policy in policies for rule in policy["spec"].get("ingress", [])]
    return not policies or any(_allows(rule, caller, port, objects) for rule in rules)


def _allows(rule, caller, port, objects):
    callers = {name for each in rule.get("from", []) for name in _selected(each["podSelector"]["matchLabels"], objects)}
    return port in {each["port"] for each in rule["ports"]} and ("from" not in rule or caller in callers)
