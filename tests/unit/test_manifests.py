"""The Kubernetes overlay as it renders: valid by schema, whole by our own rules, and true to what the tiers read."""

import json
import re

import kubernetes_validate
import pytest

from manifest_rules import container, environment, faults, ports
from manifests import DEPLOY, OVERLAY, TIERS, configs, render, the
from penstock.routing.bootstrap import bootstrap
from penstock.routing.edge import parse_specs

PORTS = {"auth": 7002, "edge": 7001, "queue": 7003, "routing": 7006, "scheduler": 7004, "worker": 7005}
SCHEMAS = "1.37"  # the newest that kubernetes-validate brings


@pytest.fixture
def rendered():
    return render(OVERLAY)


def test_every_object_is_valid_by_the_schema_of_its_kind(rendered):
    for each in rendered:
        kubernetes_validate.validate(each, SCHEMAS, strict=True)


def test_the_overlay_has_no_fault(rendered):
    assert faults(rendered, configs()) == []


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


def test_a_gpu_overlay_gives_each_worker_one():
    worker = the(render(DEPLOY / "k8s" / "overlays" / "gpu"), "Deployment", "worker")
    assert container(worker)["resources"]["limits"]["nvidia.com/gpu"] == 1


@pytest.mark.parametrize("tier", ["edge", "worker"])
def test_edges_and_workers_know_their_zone_where_the_cluster_tells_it(rendered, tier):
    (zone,) = [each for each in container(the(rendered, "Deployment", tier))["env"] if each["name"] == "PENSTOCK_ZONE"]
    assert zone["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['topology.kubernetes.io/zone']"
