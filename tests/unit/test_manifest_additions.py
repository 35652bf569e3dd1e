"""Valid additions to the overlay are accepted, and no valid object breaks the rules."""

import copy
import json
import random

import pytest

from manifest_changes import add_volume, autoscalers, set_variable
from manifest_check.rules import manifest_faults
from manifest_check.schemas import schema_faults
from manifests import LOCAL_OVERLAY, OVERLAYS, container, get_object, render_overlay

SEEDS = 40  # deletions tried per overlay
NAMES = {"app.kubernetes.io/name": "penstock", "app.kubernetes.io/component": "worker"}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "models", "namespace": "penstock"},
    "spec": {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "20Gi"}}},
}
SETTINGS = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "fleet", "namespace": "penstock"},
    "data": {"PENSTOCK_LOG_LEVEL": "debug"},
}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@pytest.fixture
def objects():
    return copy.deepcopy(render_overlay(LOCAL_OVERLAY))


def add_variable(tier, name, value):
    return lambda objects: set_variable(name, value)(get_object(objects, "Deployment", tier))


def add_secret_reference(objects):
    reference = {"secretKeyRef": {"name": "hugging-face", "key": "token"}}
    container(get_object(objects, "Deployment", "worker"))["env"].append({"name": "HF_TOKEN", "valueFrom": reference})


def add_settings(objects):
    objects.append(copy.deepcopy(SETTINGS))
    edge = container(get_object(objects, "Deployment", "edge"))
    edge["envFrom"] = [{"configMapRef": {"name": "fleet"}}]
    key = {"configMapKeyRef": {"name": "fleet", "key": "PENSTOCK_LOG_LEVEL"}}
    edge["env"].append({"name": "PENSTOCK_EDGE_LOG_LEVEL", "valueFrom": key})


def add_model_claim(objects):
    objects.append(copy.deepcopy(CLAIM))
    source = {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}
    add_volume("models", source, "/models")(get_object(objects, "Deployment", "worker"))


def add_model_image(objects):
    source = {"image": {"reference": "images.example.com/models/small:1", "pullPolicy": "IfNotPresent"}}
    add_volume("models", source, "/models")(get_object(objects, "Deployment", "worker"))


def add_second_pool(objects):
    """A second Deployment of workers, with another model."""
    text = json.dumps(get_object(objects, "Deployment", "worker"))
    pool = json.loads(text.replace('instance": "default"', 'instance": "large"'))
    pool["metadata"]["name"] = "worker-large"
    set_variable("PENSTOCK_WORKER_SERVED_NAME", "large")(pool)
    objects.append(pool)


def become_stateful(objects):
    """Queue shards of a StatefulSet, with a volume for the audit log of each."""
    queue = get_object(objects, "Deployment", "queue")
    queue["kind"] = "StatefulSet"
    del queue["spec"]["strategy"]
    queue["spec"]["serviceName"] = "queue"
    claim = {"metadata": {"name": "audit"}, "spec": CLAIM["spec"] | {"accessModes": ["ReadWriteOnce"]}}
    queue["spec"]["volumeClaimTemplates"] = [claim]
    container(queue)["volumeMounts"].append({"name": "audit", "mountPath": "/var/log/penstock"})


def add_sidecar(objects):
    """A log shipper: without ports, with a probe by command."""
    sidecar = {
        "name": "logs",
        "image": "fluent/fluent-bit:4.1.0",
        "securityContext": copy.deepcopy(RESTRICTED),
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
        "livenessProbe": {"exec": {"command": ["true"]}},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    get_object(objects, "Deployment", "queue")["spec"]["template"]["spec"]["containers"].append(sidecar)


def add_service_account_token(objects):
    """A token of the API server, for a process that calls it, with the authority that Kubernetes puts beside it."""
    authority = {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    sources = [{"serviceAccountToken": {"path": "token"}}, authority]
    path = "/var/run/secrets/kubernetes.io/serviceaccount"
    add_volume("account", {"projected": {"sources": sources}}, path)(get_object(objects, "Deployment", "scheduler"))


def admit_prometheus(objects):
    """Scrapers of one namespace only, by a named port, and a load balancer by its addresses."""
    (rule,) = get_object(objects, "NetworkPolicy", "metrics")["spec"]["ingress"]
    rule["from"] = [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "prometheus"}}},
    ]
    rule["ports"] = [{"port": "metrics"}, {"port": 9902, "endPort": 9903}]
    (front,) = get_object(objects, "NetworkPolicy", "envoy")["spec"]["ingress"]
    front["from"] = [{"ipBlock": {"cidr": "192.0.2.0/24"}}]


def select_by_expression(objects):
    expression = {"key": "app.kubernetes.io/component", "operator": "In", "values": ["edge", "scheduler"]}
    (rule,) = get_object(objects, "NetworkPolicy", "queue")["spec"]["ingress"]
    rule["from"] = [{"podSelector": {"matchExpressions": [expression]}}]
    selector = {"matchExpressions": [{"key": "app.kubernetes.io/component", "operator": "In", "values": ["worker"]}]}
    get_object(objects, "PodDisruptionBudget", "worker")["spec"]["selector"] = selector


ADDITIONS = {
    "a receiver of traces for the fleet": add_variable(
        "edge", "PENSTOCK_OTLP_ENDPOINT", "http://collector.traces:4317"
    ),
    "a sampler of traces": add_variable("edge", "OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
    "a variable of a library": add_variable("worker", "CUDA_VISIBLE_DEVICES", "0"),
    "a secret": add_secret_reference,
    "a second ConfigMap": add_settings,
    "a volume of models": add_model_claim,
    "a model from an image": add_model_image,
    "a second pool of workers": add_second_pool,
    "a StatefulSet": become_stateful,
    "a sidecar": add_sidecar,
    "a token of the API server": add_service_account_token,
    "scrapers of one namespace": admit_prometheus,
    "selectors by expressions": select_by_expression,
    "autoscalers": lambda objects: objects.extend(autoscalers()),
}


@pytest.mark.parametrize("add", ADDITIONS.values(), ids=ADDITIONS)
def test_a_valid_addition_is_accepted(objects, add):
    add(objects)
    assert manifest_faults(objects) == []


def _places(node, path=()):
    """The path of every field and entry below a node."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, each in items:
        yield (*path, key)
        yield from _places(each, (*path, key))


@pytest.mark.parametrize("overlay", sorted(OVERLAYS.iterdir()), ids=lambda path: path.name)
def test_no_object_without_a_part_breaks_the_rules(overlay):
    """A part is deleted or null. Rules run if objects are still valid by schema; otherwise the schema reports them."""
    chosen, valid = random.Random(overlay.name), 0
    for _ in range(SEEDS):
        objects = copy.deepcopy(render_overlay(overlay))
        target = chosen.choice(objects)
        *parents, last = chosen.choice(list(_places(target)))
        node = target
        for key in parents:
            node = node[key]
        if chosen.random() < 0.5:
            del node[last]
        else:
            node[last] = None
        valid += not schema_faults(target)
        manifest_faults(objects)
    assert valid >= SEEDS / 8
