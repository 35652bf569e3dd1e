"""Faults that leave a mesh open, fragile or blind: each is planted in a valid overlay, and found."""

import copy

import pytest

from manifest_changes import CONTAINER_PATH, POD_PATH, autoscalers, remove_in, set_in, set_variable
from manifest_check.rules import manifest_faults
from manifests import LOCAL_OVERLAY, get_object, render_overlay

LABEL = "app.kubernetes.io/component"


@pytest.fixture
def objects():
    return copy.deepcopy(render_overlay(LOCAL_OVERLAY))


def change(kind, name, apply):
    return lambda objects: apply(get_object(objects, kind, name))


def remove(kind, name):
    return lambda objects: objects.remove(
        next(each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)
    )


def add(*others):
    return lambda objects: objects.extend(
        {**each, "metadata": {"namespace": "penstock", **each["metadata"]}} for each in others
    )


def keep_ports(*kept):
    """Lets only these ports of a policy's first rule in."""

    def apply(policy):
        ports = policy["spec"]["ingress"][0]["ports"]
        ports[:] = [each for each in ports if each["port"] in kept]

    return apply


WORKER = ("Deployment", "worker")
OMISSIONS = {
    "no startupProbe of a worker": (
        change(*WORKER, remove_in((*CONTAINER_PATH, "startupProbe"))),
        "worker has no startupProbe",
    ),
    "no budget of workers": (remove("PodDisruptionBudget", "worker"), "Deployment worker: no PodDisruptionBudget"),
    "no requests": (
        change("Deployment", "queue", remove_in((*CONTAINER_PATH, "resources", "requests"))),
        "Deployment queue: queue: requests no cpu",
    ),
    "no limits": (
        change("Deployment", "queue", remove_in((*CONTAINER_PATH, "resources", "limits"))),
        "Deployment queue: queue: has no limit of memory",
    ),
    "no preStop of an edge": (
        change("Deployment", "edge", remove_in((*CONTAINER_PATH, "lifecycle"))),
        "Deployment edge: has no preStop",
    ),
    "auth open to all": (
        change("NetworkPolicy", "auth", remove_in(("spec", "ingress", 0, "from"))),
        "NetworkPolicy auth: opens port grpc of auth to every source",
    ),
    "a policy that opens the operators' port to a tier": (
        change("NetworkPolicy", "auth", remove_in(("spec", "ingress", 0, "ports"))),
        "policies let edge reach port admin of auth",
    ),
    "a caller that has no call": (
        change("NetworkPolicy", "worker", set_in(("spec", "ingress", 0, "from", 0, "podSelector", "matchLabels"), {})),
        "policies let queue reach port grpc of worker",
    ),
    "a Service without pods": (
        change("Service", "edge", remove_in(("spec", "selector"))),
        "has no selector, and no EndpointSlice names it",
    ),
    "a proxy that ends at once": (
        change("Deployment", "envoy", set_in((*CONTAINER_PATH, "lifecycle", "preStop", "exec", "command"), ["true"])),
        "its preStop runs true, which does not wait",
    ),
    "no default policy": (remove("NetworkPolicy", "default-deny"), "no NetworkPolicy denies ingress by default"),
    "metrics that no scraper reaches": (
        change("NetworkPolicy", "metrics", keep_ports(9902)),
        "no policy lets anyone outside of the namespace reach its port metrics",
    ),
    "a namespace without a profile": (
        change("Namespace", "penstock", remove_in(("metadata", "labels"))),
        "does not enforce the profile restricted",
    ),
    "a pepper in plain text": (
        change("StatefulSet", "auth", set_variable("PENSTOCK_AUTH_PEPPER", "0123456789abcdef")),
        "PENSTOCK_AUTH_PEPPER is a secret in plain text",
    ),
    "a ledger in memory": (
        change("StatefulSet", "auth", set_variable("PENSTOCK_AUTH_STORE", ":memory:")),
        "its store :memory: loses keys",
    ),
    "secrets that each mount opens": (
        change("StatefulSet", "auth", remove_in((*POD_PATH, "securityContext", "fsGroupChangePolicy"))),
        "without fsGroupChangePolicy OnRootMismatch",
    ),
    "a worker that makes up its answers": (
        change(*WORKER, set_variable("PENSTOCK_WORKER_ENGINE", "sim")),
        "its engine is sim",
    ),
    "a model on no volume": (
        change(*WORKER, set_variable("PENSTOCK_WORKER_MODEL", "/models/small")),
        "its model /models/small is on no volume",
    ),
    "probes that the kubelet cannot reach": (
        remove("NetworkPolicy", "probes"),
        "no policy lets anyone outside of the namespace reach its port health",
    ),
    "a token in plain text": (
        change(*WORKER, set_variable("HF_TOKEN", "hf_0123")),
        "HF_TOKEN is a secret in plain text",
    ),
    "plaintext to all": (
        change("Deployment", "queue", set_variable("PENSTOCK_QUEUE_INSECURE", "true")),
        "INSECURE must be unset",
    ),
    "pods that share a node": (
        change("Deployment", "edge", remove_in((*POD_PATH, "topologySpreadConstraints"))),
        "its pods are not spread over kubernetes.io/hostname",
    ),
    "a spread of other pods": (
        change(
            "Deployment",
            "edge",
            set_in((*POD_PATH, "topologySpreadConstraints", 0, "labelSelector", "matchLabels", LABEL), "queue"),
        ),
        "spreads other pods than its own",
    ),
    "a priority that does not exist": (
        change(*WORKER, set_in((*POD_PATH, "priorityClassName"), "high")),
        "no PriorityClass high",
    ),
    "two scalers of one tier": (
        add(autoscalers()[0], {**autoscalers()[0], "metadata": {"name": "edge-2"}}),
        "Deployment edge is scaled by 2 objects",
    ),
    "a scaler of a single writer": (
        add(
            {
                **autoscalers()[1],
                "spec": {**autoscalers()[1]["spec"], "scaleTargetRef": {"kind": "StatefulSet", "name": "auth"}},
            }
        ),
        "whose volume has one writer",
    ),
    "a scaler at no Service": (
        add(
            {
                **autoscalers()[1],
                "spec": {
                    **autoscalers()[1]["spec"],
                    "triggers": [{"type": "external-push", "metadata": {"scalerAddress": "scheduler.penstock:7444"}}],
                },
            }
        ),
        "scalerAddress scheduler.penstock:7444 names no port of a Service",
    ),
    "a certificate of no issuer": (
        change("Certificate", "queue", set_in(("spec", "issuerRef", "name"), "penstok")),
        "no Issuer penstok",
    ),
    "a route of no gateway": (
        add(
            {
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "HTTPRoute",
                "metadata": {"name": "front"},
                "spec": {
                    "parentRefs": [{"name": "front"}],
                    "rules": [{"backendRefs": [{"name": "envoy", "port": 80}]}],
                },
            }
        ),
        "sends to envoy:80, which no Service has",
    ),
    "a monitor of no port": (
        add(
            {
                "apiVersion": "monitoring.coreos.com/v1",
                "kind": "PodMonitor",
                "metadata": {"name": "tiers"},
                "spec": {
                    "selector": {"matchLabels": {"app.kubernetes.io/name": "penstock"}},
                    "podMetricsEndpoints": [{"port": "metric"}],
                },
            }
        ),
        "scrapes port metric, which none of its pods has",
    ),
}


@pytest.mark.parametrize("fault", OMISSIONS.values(), ids=OMISSIONS)
def test_a_fault_of_operation_is_found(objects, fault):
    plant, expected = fault
    plant(objects)
    found = manifest_faults(objects)
    assert any(expected in text for text in found), found
