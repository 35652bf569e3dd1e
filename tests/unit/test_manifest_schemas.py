"""Faults that schemas, an API server or no tool at all finds: each is planted in a valid overlay, and found."""

import copy
import json

import pytest

from manifest_changes import CONTAINER_PATH, POD_PATH, autoscalers, set_in
from manifest_check import command
from manifest_check.api_rules import quantity
from manifest_check.rules import manifest_faults
from manifests import LOCAL_OVERLAY, OVERLAYS, get_object, render_overlay

SCALER = ("HorizontalPodAutoscaler", "edge")
SCALED = ("ScaledObject", "worker")
EDGE = ("Deployment", "edge")


@pytest.fixture
def objects():
    return [*copy.deepcopy(render_overlay(LOCAL_OVERLAY)), *autoscalers()]


def add_handler(edge):
    edge["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["tcpSocket"] = {"port": "health"}


def set_both(**values):
    def apply(thing):
        thing["spec"].update(values)

    return apply


def set_resources(name, *, request=None, limit=None):
    def apply(workload):
        resources = workload["spec"]["template"]["spec"]["containers"][0]["resources"]
        for kind, value in (("requests", request), ("limits", limit)):
            if value is not None:
                resources[kind][name] = value

    return apply


FAULTS = {
    "replicas as a string": (EDGE, set_in(("spec", "replicas"), "2"), "spec.replicas: '2' is not of type"),
    "an unknown field of a pod": (EDGE, set_in((*POD_PATH, "graceSeconds"), 3), "'graceSeconds' was unexpected"),
    "a gRPC probe by the name of a port": (
        EDGE,
        set_in((*CONTAINER_PATH, "readinessProbe", "grpc", "port"), "health"),
        "'health' is not of type 'integer'",
    ),
    "a selector that differs from the labels": (
        EDGE,
        set_in(("spec", "selector", "matchLabels"), {"app": "edge"}),
        "does not match its own pods",
    ),
    "two handlers of one probe": (EDGE, add_handler, "its readinessProbe has 2 handlers"),
    "a port above 65535": (EDGE, set_in((*CONTAINER_PATH, "ports", 0, "containerPort"), 99999), "99999 is not a port"),
    "a port with a long name": (
        EDGE,
        set_in((*CONTAINER_PATH, "ports", 0, "name"), "grpc-of-the-edges"),
        "port name grpc-of-the-edges",
    ),
    "memory by a wrong unit": (EDGE, set_resources("memory", limit="4Gib"), "4Gib of memory is not a quantity"),
    "half a GPU": (EDGE, set_resources("nvidia.com/gpu", limit="0.5"), "0.5 of nvidia.com/gpu is not a whole number"),
    "a request above its limit": (EDGE, set_resources("memory", request="2Gi"), "requests 2Gi of memory, more than"),
    "a preStop hook longer than the grace": (
        EDGE,
        set_in((*CONTAINER_PATH, "lifecycle", "preStop", "sleep", "seconds"), 400),
        "preStop sleeps 400 s",
    ),
    "a mount of no volume": (
        EDGE,
        set_in((*CONTAINER_PATH, "volumeMounts", 0, "name"), "keys"),
        "mounts volume keys at /etc/penstock/tls, which the pod does not have",
    ),
    "a roll that can neither add nor take": (
        EDGE,
        set_in(("spec", "strategy", "rollingUpdate"), {"maxSurge": 0, "maxUnavailable": "0%"}),
        "maxSurge and maxUnavailable are both 0",
    ),
    "a budget with two bounds": (
        ("PodDisruptionBudget", "edge"),
        set_both(minAvailable=1),
        "not exactly one of minAvailable and maxUnavailable",
    ),
    "a budget of a removed version": (
        ("PodDisruptionBudget", "edge"),
        set_in(("apiVersion",), "policy/v1beta1"),
        "has no policy/v1beta1 PodDisruptionBudget",
    ),
    "an autoscaler whose least is above its most": (SCALER, set_both(minReplicas=11), "minReplicas 11 is more than"),
    "an autoscaler to 0 by CPU": (SCALER, set_both(minReplicas=0), "scales to 0 by a metric of pods"),
    "a policy of an unknown protocol": (
        ("NetworkPolicy", "edge"),
        set_in(("spec", "ingress", 0, "ports", 0, "protocol"), "QUIC"),
        "protocol QUIC is none of TCP, UDP, SCTP",
    ),
    "a ScaledObject with a string for a number": (
        SCALED,
        set_both(maxReplicaCount="8"),
        "maxReplicaCount: '8' is not of type 'integer'",
    ),
    "a ScaledObject with an unknown field": (SCALED, set_both(maxReplicas=8), "'maxReplicas' was unexpected"),
    "a ScaledObject without triggers": (SCALED, set_both(triggers=[]), "spec.triggers: [] should be non-empty"),
    "a ScaledObject with a number in its metadata": (
        SCALED,
        set_in(("spec", "triggers", 0, "metadata", "threshold"), 5),
        "threshold: 5 is not of type 'string'",
    ),
    "a ScaledObject whose least is above its most": (
        SCALED,
        set_both(minReplicaCount=9),
        "minReplicaCount 9 is more than maxReplicaCount 8",
    ),
    "a pod that the namespace's profile refuses": (
        EDGE,
        set_in((*POD_PATH, "securityContext", "runAsNonRoot"), False),
        "may run as root",
    ),
    "a Service's port by a name that no pod has": (
        ("Service", "edge"),
        set_in(("spec", "ports", 0, "targetPort"), "rpc"),
        "sends to port rpc, which no pod of edge has",
    ),
    "an autoscaler of nothing": (
        SCALER,
        set_in(("spec", "scaleTargetRef", "name"), "edges"),
        "scales Deployment edges, which does not exist",
    ),
    "a trigger that KEDA does not know": (
        SCALED,
        set_in(("spec", "triggers", 0, "type"), "externl"),
        "KEDA has no trigger externl",
    ),
    "an external trigger without an address": (
        SCALED,
        set_in(("spec", "triggers", 0, "metadata"), {}),
        "trigger external has no scalerAddress",
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_within_one_object_is_found(objects, fault):
    key, plant, expected = fault
    plant(get_object(objects, *key))
    found = manifest_faults(objects)
    assert any(expected in text for text in found), found


def test_an_overlay_with_autoscalers_has_no_fault(objects):
    assert manifest_faults(objects) == []


def test_a_custom_resource_without_a_schema_is_a_fault(objects):
    objects.append({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "thing"}})
    (fault,) = manifest_faults(objects)
    assert "has no example.com/v1 Thing, and crds/ has no schema of it" in fault


@pytest.mark.parametrize(
    ("text", "value"),
    [("4Gi", 4 * 2**30), ("250m", 0.25), ("1e3", 1000), ("0.5", 0.5), ("1E", 10**18), ("4Gib", None), ("", None)],
)
def test_a_quantity_has_a_value(text, value):
    assert quantity(text) == value


def test_the_command_names_each_fault_and_ends_with_1(tmp_path, capsys, monkeypatch):
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": [{"port": 99999}]}}
    (tmp_path / "service.yaml").write_text(json.dumps(service))
    (tmp_path / "kustomization.yaml").write_text(json.dumps({"resources": ["service.yaml"]}))
    missing = tmp_path / "missing"
    overlays = [tmp_path, missing, LOCAL_OVERLAY, OVERLAYS / "postgres"]
    monkeypatch.setattr("sys.argv", ["check_manifests", *map(str, overlays)])
    assert command.main() == 1
    printed = capsys.readouterr().out
    assert f"{tmp_path}: 1 objects, 2 faults" in printed
    assert "Service a: port 99999 is not a port" in printed
    assert f"{missing}: 0 objects, 1 faults" in printed
    assert f"{LOCAL_OVERLAY}: {len(render_overlay(LOCAL_OVERLAY))} objects, 0 faults\n/" in printed
    assert printed.endswith("  needs the Secrets auth-postgres, door-tls, which it does not make\n")
