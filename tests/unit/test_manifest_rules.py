"""Faults between objects that no other tool finds: each is planted in a valid overlay, and found."""

import copy
import json

import pytest

from manifest_changes import (
    CONTAINER_PATH,
    POD_PATH,
    rename_variable,
    set_in,
    set_variable,
)
from manifest_check.rules import manifest_faults
from manifests import LOCAL_OVERLAY, get_object, render_overlay
from penstock.routing.bootstrap import bootstrap


@pytest.fixture
def objects():
    return copy.deepcopy(render_overlay(LOCAL_OVERLAY))


NO_PODS = {"app.kubernetes.io/component": "absent"}

MANIFEST_FAULTS = {
    "a Service that selects no pod": (
        "Service",
        "queue",
        set_in(("spec", "selector"), NO_PODS),
        "selects pods of 0 components",
    ),
    "a Service that selects all pods": (
        "Service",
        "queue",
        set_in(("spec", "selector"), {"app.kubernetes.io/name": "penstock"}),
        "selects pods of 9 components",
    ),
    "a targetPort by a wrong name": (
        "Service",
        "queue",
        set_in(("spec", "ports", 0, "targetPort"), "rpc"),
        "sends to port rpc",
    ),
    "a headless port without a listener": (
        "Service",
        "auth",
        set_in(("spec", "ports", 0, "port"), 80),
        "auth does not listen there",
    ),
    "a balanced name with one address": ("Service", "queue", set_in(("spec", "clusterIP"), ""), "one address for all"),
    "pods its own selector misses": (
        "Deployment",
        "edge",
        set_in(("spec", "selector", "matchLabels"), NO_PODS),
        "does not match its own pods",
    ),
    "a readiness probe on another port": (
        "StatefulSet",
        "auth",
        set_in((*CONTAINER_PATH, "readinessProbe", "grpc", "port"), 7003),
        "uses port 7003",
    ),
    "a probe of a port that needs a certificate": (
        "StatefulSet",
        "auth",
        set_in((*CONTAINER_PATH, "readinessProbe", "grpc", "port"), 7002),
        "its probes use",
    ),
    "an operators' port without a token": (
        "StatefulSet",
        "auth",
        rename_variable("PENSTOCK_ADMIN_TOKEN", "PENSTOCK_ZONE"),
        "would serve every caller",
    ),
    "a process without an operators' port": (
        "Deployment",
        "queue",
        set_variable("PENSTOCK_QUEUE_ADMIN_LISTEN", ""),
        "serves no operators",
    ),
    "a liveness probe that fails in a drain": (
        "StatefulSet",
        "auth",
        set_in((*CONTAINER_PATH, "livenessProbe", "grpc"), {"port": 7010}),
        "its probes use",
    ),
    "a proxy probe by a wrong port name": (
        "Deployment",
        "envoy",
        set_in((*CONTAINER_PATH, "readinessProbe", "httpGet", "port"), "admin"),
        "uses port admin",
    ),
    "a listen port that is not opened": (
        "Deployment",
        "queue",
        set_variable("PENSTOCK_QUEUE_LISTEN", "0.0.0.0:7007"),
        "listens on",
    ),
    "a listener on loopback": (
        "Deployment",
        "queue",
        set_variable("PENSTOCK_QUEUE_LISTEN", "127.0.0.1:7003"),
        "listens on",
    ),
    "a declared port without a server": (
        "Deployment",
        "edge",
        set_in((*CONTAINER_PATH, "ports", 1, "containerPort"), 7081),
        "listens on",
    ),
    "an address of no Service": (
        "Deployment",
        "edge",
        set_variable("PENSTOCK_EDGE_QUEUES", "dns:///queues:7003"),
        "queues:7003, which no Service has",
    ),
    "an address with a wrong port": (
        "Deployment",
        "scheduler",
        set_variable("PENSTOCK_SCHEDULER_QUEUES", "dns:///queue:7004"),
        "queue:7004, which no Service has",
    ),
    "edges with a wrong port": (
        "Deployment",
        "routing",
        set_variable("PENSTOCK_ROUTING_EDGES", "dns:///edge:7001/7081"),
        "edge:7081, which no Service has",
    ),
    "a misspelt setting": (
        "Deployment",
        "queue",
        set_in((*CONTAINER_PATH, "env", 0, "name"), "PENSTOCK_QUEUE_LISTENS"),
        "is not a setting of queue",
    ),
    "a setting of another tier": (
        "Deployment",
        "queue",
        set_in((*CONTAINER_PATH, "env", 0, "name"), "PENSTOCK_QUEU_LISTEN"),
        "settings of no tier",
    ),
    "a value that cannot be parsed": (
        "Deployment",
        "routing",
        set_variable("PENSTOCK_ROUTING_EDGES", "edge"),
        "its settings are invalid",
    ),
    "a worker that edges cannot reach": (
        "Deployment",
        "worker",
        set_variable("PENSTOCK_WORKER_ADVERTISE", "localhost:7005"),
        "edges are given the address",
    ),
    "a kill before the drain ends": (
        "Deployment",
        "edge",
        set_in((*POD_PATH, "terminationGracePeriodSeconds"), 20),
        "is killed after 20 s",
    ),
    "a proxy killed before it has drained": (
        "Deployment",
        "envoy",
        set_in((*POD_PATH, "terminationGracePeriodSeconds"), 60),
        "is killed after 60 s",
    ),
    "a process that may be root": (
        "Deployment",
        "worker",
        set_in((*POD_PATH, "securityContext", "runAsUser"), 0),
        "may run as root",
    ),
    "an image that can be written to": (
        "Deployment",
        "edge",
        set_in((*CONTAINER_PATH, "securityContext", "readOnlyRootFilesystem"), False),
        "write to its image",
    ),
    "a capability kept": (
        "Deployment",
        "edge",
        set_in((*CONTAINER_PATH, "securityContext", "capabilities"), {"drop": ["NET_RAW"]}),
        "keeps capabilities",
    ),
    "no seccomp profile": (
        "Deployment",
        "edge",
        set_in((*POD_PATH, "securityContext", "seccompProfile"), {"type": "Unconfined"}),
        "no seccomp profile",
    ),
    "variables of other Services": (
        "Deployment",
        "edge",
        set_in((*POD_PATH, "enableServiceLinks"), True),
        "look like unknown settings",
    ),
    "an account that does not exist": (
        "Deployment",
        "edge",
        set_in((*POD_PATH, "serviceAccountName"), "edges"),
        "no ServiceAccount edges",
    ),
    "two writers of one volume": ("StatefulSet", "auth", set_in(("spec", "replicas"), 2), "write to one volume"),
    "a claim that does not exist": (
        "StatefulSet",
        "auth",
        set_in((*POD_PATH, "volumes", 1, "persistentVolumeClaim", "claimName"), "store"),
        "no PersistentVolumeClaim store",
    ),
    "a volume that is not mounted": (
        "StatefulSet",
        "auth",
        set_in((*CONTAINER_PATH, "volumeMounts", 1, "name"), "stores"),
        "mounts volume stores at /tmp",
    ),
    "a roll that takes pods away first": (
        "Deployment",
        "queue",
        set_in(("spec", "strategy", "rollingUpdate", "maxUnavailable"), 1),
        "takes pods away",
    ),
    "an image by no tag": ("Deployment", "queue", set_in((*CONTAINER_PATH, "image"), "penstock-queue"), "not pinned"),
    "another namespace": ("Service", "queue", set_in(("metadata", "namespace"), "default"), "not the one that is made"),
    "a budget for no pod": (
        "PodDisruptionBudget",
        "edge",
        set_in(("spec", "selector", "matchLabels"), NO_PODS),
        "selects pods of 0 components",
    ),
    "a policy that cuts the request's path": (
        "NetworkPolicy",
        "worker",
        set_in(
            ("spec", "ingress", 0, "from", 0, "podSelector", "matchLabels"), {"app.kubernetes.io/component": "queue"}
        ),
        "edge may not call worker:grpc",
    ),
    "a policy that opens a wrong port": (
        "NetworkPolicy",
        "queue",
        set_in(("spec", "ingress", 0, "ports", 0, "port"), 7004),
        "edge may not call queue:grpc",
    ),
}


@pytest.mark.parametrize("mistake", MANIFEST_FAULTS.values(), ids=MANIFEST_FAULTS)
def test_a_manifest_fault_is_found(objects, mistake):
    kind, name, apply, expected = mistake
    apply(get_object(objects, kind, name))
    found = manifest_faults(objects)
    assert any(expected in fault for fault in found), found


def test_the_bootstrap_may_name_no_unknown_address(objects):
    file = get_object(objects, "ConfigMap", "envoy")
    file["data"]["bootstrap.json"] = json.dumps(bootstrap("router:7006", "127.0.0.1:9901"))
    assert any("router:7006, which no Service has" in fault for fault in manifest_faults(objects))
