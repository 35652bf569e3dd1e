"""The rendered Kubernetes overlay: valid by schema and by our own rules, and consistent with the tiers' settings."""

import json
import os
from pathlib import Path

import pytest

from manifest_check.objects import TIERS, WORKLOAD_KINDS
from manifest_check.rules import manifest_faults
from manifest_check.tiers import config_class
from manifests import (
    DEPLOY_FOLDER,
    LOCAL_OVERLAY,
    OVERLAYS,
    container,
    environment,
    get_object,
    pods_of,
    ports,
    render_overlay,
)
from paths import REPO
from penstock.chassis.config import load
from penstock.chassis.security.identity import parse_spiffe_id
from penstock.routing.bootstrap import bootstrap
from penstock.routing.edges.edge_spec import parse_specs
from penstock.routing.secrets import secret_files

PORTS = {"auth": 7002, "batch": 7029, "edge": 7001, "queue": 7003, "routing": 7006, "scheduler": 7004, "worker": 7005}
GPU_OVERLAY = OVERLAYS / "gpu"
POSTGRES_OVERLAY = OVERLAYS / "postgres"
EXAMPLE = REPO / "examples" / "kubernetes"


@pytest.fixture
def rendered():
    return render_overlay(LOCAL_OVERLAY)


@pytest.mark.parametrize("overlay", [*sorted(OVERLAYS.iterdir()), EXAMPLE], ids=lambda path: path.name)
def test_an_overlay_is_valid_by_schema_and_has_no_fault(overlay):
    assert manifest_faults(render_overlay(overlay)) == []


def test_the_overlay_of_the_examples_serves_a_model_of_its_own():
    worker = pods_of(render_overlay(EXAMPLE), "worker")
    assert worker["spec"]["replicas"] == 4
    assert environment(worker)["PENSTOCK_WORKER_MODEL"].startswith("/models/")


def test_every_tier_has_pods_a_service_and_an_account_of_its_own(rendered):
    operator = {"operator"}  # serves nothing
    for kinds, others in ((WORKLOAD_KINDS, operator), (("Service",), set()), (("ServiceAccount",), operator)):
        assert {each["metadata"]["name"] for each in rendered if each["kind"] in kinds} == {*TIERS, "envoy", *others}


@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_listens_on_the_address_of_the_map(rendered, tier):
    assert ports(pods_of(rendered, tier))["grpc"] == PORTS[tier]


@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_serves_operators_and_probes_on_ports_of_their_own(rendered, tier):
    there = ports(pods_of(rendered, tier))
    assert (there["admin"], there["health"]) == (7009, 7010)


def test_only_pods_of_operators_reach_the_operators_port(rendered):
    rules = [
        (policy["metadata"]["name"], rule.get("from"))
        for policy in rendered
        if policy["kind"] == "NetworkPolicy"
        for rule in policy["spec"].get("ingress", [])
        if 7009 in [each["port"] for each in rule["ports"]]
    ]
    [(name, sources)] = rules
    [source] = sources
    assert (name, source["podSelector"]["matchLabels"]["app.kubernetes.io/component"]) == ("operators", "operator")


def test_the_front_has_one_port_for_all_protocols(rendered):
    assert ports(pods_of(rendered, "envoy"))["front"] == 8443
    assert [port["port"] for port in get_object(rendered, "Service", "envoy")["spec"]["ports"]] == [443]


def test_routing_finds_every_edge_on_both_its_ports(rendered):
    (spec,) = parse_specs(environment(pods_of(rendered, "routing"))["PENSTOCK_ROUTING_EDGES"])
    edge = ports(pods_of(rendered, "edge"))
    assert spec.is_dns_set
    assert (spec.template.grpc.port, spec.template.http.port) == (edge["grpc"], edge["http"])


def test_routing_makes_the_proxies_listen_on_the_port_of_their_service(rendered):
    listen = environment(pods_of(rendered, "routing"))["PENSTOCK_ROUTING_ENVOY_LISTEN"]
    assert listen == f"0.0.0.0:{ports(pods_of(rendered, 'envoy'))['front']}"


def test_the_door_has_a_certificate_from_a_secret_and_the_proxies_ask_auth(rendered):
    routing = pods_of(rendered, "routing")
    settings = environment(routing)
    (mount,) = (each for each in container(routing)["volumeMounts"] if each["name"] == "door")
    assert settings["PENSTOCK_ROUTING_DOOR_CERTIFICATE"] == f"{mount['mountPath']}/tls.crt"
    assert settings["PENSTOCK_ROUTING_DOOR_KEY"] == f"{mount['mountPath']}/tls.key"
    (volume,) = (each for each in routing["spec"]["template"]["spec"]["volumes"] if each["name"] == "door")
    assert volume["secret"]["secretName"] == "door-tls"
    assert settings["PENSTOCK_ROUTING_AUTHS"] == f"dns:///auth:{ports(pods_of(rendered, 'auth'))['checks']}"


def test_the_proxies_start_from_the_bootstrap_the_code_writes(rendered):
    options = {"secrets": "/etc/envoy", "max_heap_bytes": 768 * 2**20}
    written = bootstrap("routing:7006", "127.0.0.1:9901", ready_address="0.0.0.0:9902", **options)
    assert json.loads(get_object(rendered, "ConfigMap", "envoy")["data"]["bootstrap.json"]) == written
    ready = written["static_resources"]["listeners"][0]["address"]["socket_address"]["port_value"]
    assert ports(pods_of(rendered, "envoy"))["ready"] == ready
    hook = container(pods_of(rendered, "envoy"))["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[2] == str(written["admin"]["address"]["socket_address"]["port_value"])


def test_auth_on_postgres_has_replicas_that_roll_one_at_a_time_and_no_volume():
    objects = render_overlay(POSTGRES_OVERLAY)
    auth = pods_of(objects, "auth")
    assert auth["spec"]["replicas"] == 3
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "25%"}}
    assert auth["spec"]["strategy"] == rolling
    (store,) = [each for each in container(auth)["env"] if each["name"] == "PENSTOCK_AUTH_STORE"]
    assert store == {
        "name": "PENSTOCK_AUTH_STORE",
        "valueFrom": {"secretKeyRef": {"name": "auth-postgres", "key": "url"}},
    }
    assert not [each for each in objects if each["kind"] == "PersistentVolumeClaim"]
    budget = get_object(objects, "PodDisruptionBudget", "auth")
    assert budget["spec"]["maxUnavailable"] == "25%"
    assert budget["spec"]["selector"]["matchLabels"].items() <= auth["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("overlay", [LOCAL_OVERLAY, POSTGRES_OVERLAY], ids=["local", "postgres"])
def test_auth_has_time_to_read_its_store_before_it_is_restarted(overlay):
    probe = container(pods_of(render_overlay(overlay), "auth"))["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 120


@pytest.mark.parametrize("tier", ["edge", "worker"])
def test_edges_and_workers_get_their_zone_from_the_cluster(rendered, tier):
    (zone,) = [each for each in container(pods_of(rendered, tier))["env"] if each["name"] == "PENSTOCK_ZONE"]
    assert zone["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['topology.kubernetes.io/zone']"


def test_every_pod_mounts_the_certificate_that_is_issued_for_its_tier(rendered):
    issued = {each["spec"]["secretName"]: each["spec"] for each in rendered if each["kind"] == "Certificate"}
    for tier in (*TIERS, "envoy"):
        volumes = pods_of(rendered, tier)["spec"]["template"]["spec"]["volumes"]
        (secret,) = [each["secret"]["secretName"] for each in volumes if each["name"] == "tls"]
        (uri,) = issued[secret]["uris"]
        identity = parse_spiffe_id(uri)
        assert identity.tier == tier
        assert tuple(issued[secret]["dnsNames"]) == identity.dns_names
        assert {"server auth", "client auth"} <= set(issued[secret]["usages"])


@pytest.mark.parametrize("tier", TIERS)
def test_every_tier_reads_the_certificate_that_is_mounted(rendered, tier):
    pods = pods_of(rendered, tier)
    (mount,) = [each["mountPath"] for each in container(pods)["volumeMounts"] if each["name"] == "tls"]
    config = load(config_class(tier), tier, environment(pods))
    files = (config.tls_certificate, config.tls_key, config.tls_ca)
    assert [str(each) for each in files] == [f"{mount}/{name}" for name in ("tls.crt", "tls.key", "ca.crt")]


def test_the_proxies_read_the_certificate_that_is_mounted(rendered):
    pods = pods_of(rendered, "envoy")
    mounts = {each["name"]: Path(each["mountPath"]) for each in container(pods)["volumeMounts"]}
    files = secret_files(*(mounts["tls"] / name for name in ("tls.crt", "tls.key", "ca.crt")))
    data = get_object(rendered, "ConfigMap", "envoy")["data"]
    assert {name: json.loads(data[name]) for name in files} == {name: json.loads(text) for name, text in files.items()}
    secrets = environment(pods_of(rendered, "routing"))["PENSTOCK_ROUTING_ENVOY_SECRETS"]
    assert secrets == str(mounts["config"])


@pytest.mark.parametrize("before", [[], ["batches-postgres"]], ids=["sqlite", "postgres"])
def test_with_the_driver_each_pod_has_an_identity_of_its_own(tmp_path, before):
    names = [*before, "cert-manager-csi"]
    components = [os.path.relpath(DEPLOY_FOLDER / "k8s" / "components" / each, tmp_path) for each in names]
    overlay = {"resources": [os.path.relpath(LOCAL_OVERLAY, tmp_path)], "components": components}
    (tmp_path / "kustomization.yaml").write_text(json.dumps(overlay))
    objects = render_overlay(tmp_path)
    for tier in (*TIERS, "envoy"):
        volumes = pods_of(objects, tier)["spec"]["template"]["spec"]["volumes"]
        (volume,) = [each for each in volumes if each["name"] == "tls"]
        attributes = volume["csi"]["volumeAttributes"]
        uri, names = attributes["csi.cert-manager.io/uri-sans"], attributes["csi.cert-manager.io/dns-names"]
        identity = parse_spiffe_id(uri.replace("${POD_NAME}", "pod-1"))
        assert "secret" not in volume
        assert (identity.tier, identity.instance_id) == (tier, "pod-1")
        assert tuple(names.replace("${POD_NAME}", "pod-1").split(",")) == identity.dns_names


def test_a_second_edge_process_of_a_pod_shares_the_ports_of_the_api_and_no_other(tmp_path):
    components = [os.path.relpath(DEPLOY_FOLDER / "k8s" / "components" / "edge-processes", tmp_path)]
    overlay = {"resources": [os.path.relpath(LOCAL_OVERLAY, tmp_path)], "components": components}
    (tmp_path / "kustomization.yaml").write_text(json.dumps(overlay))
    edge = pods_of(render_overlay(tmp_path), "edge")
    by_name = {each["name"]: each for each in edge["spec"]["template"]["spec"]["containers"]}
    first, second = by_name.pop("edge"), by_name.pop("edge-2")
    assert not by_name
    of_first, of_second = ({each["name"]: each.get("value") for each in pod["env"]} for pod in (first, second))
    assert of_first["PENSTOCK_EDGE_REUSE_PORT"] == "true"
    differing = {"PENSTOCK_EDGE_METRICS_LISTEN", "PENSTOCK_EDGE_ADMIN_LISTEN", "PENSTOCK_EDGE_HEALTH_LISTEN"}
    assert {name for name in of_first if of_first[name] != of_second[name]} == differing
    for name in ("grpc", "http"):
        assert name in {each["name"] for each in first["ports"]}
    every_port = [each["containerPort"] for pod in (first, second) for each in pod["ports"]]
    assert len(set(every_port)) == len(every_port)
    for pod, environment_of in ((first, of_first), (second, of_second)):
        probed = {pod[probe]["grpc"]["port"] for probe in ("readinessProbe", "livenessProbe")}
        assert probed == {int(environment_of["PENSTOCK_EDGE_HEALTH_LISTEN"].rpartition(":")[2])}


def test_batches_have_one_writer_a_volume_and_the_edges_know_them(rendered):
    batch = pods_of(rendered, "batch")
    assert (batch["kind"], batch["spec"]["replicas"]) == ("StatefulSet", 1)
    settings = environment(batch)
    folder = next(each["mountPath"] for each in container(batch)["volumeMounts"] if each["name"] == "store")
    stored = [Path(settings[f"PENSTOCK_BATCH_{name}"]) for name in ("STORE", "FOLDER")]
    assert [each.parent for each in stored] == [Path(folder)] * 2
    assert settings["PENSTOCK_BATCH_EDGES"] == f"dns:///edge:{ports(pods_of(rendered, 'edge'))['grpc']}"
    assert environment(pods_of(rendered, "edge"))["PENSTOCK_EDGE_BATCHES"] == f"dns:///batch:{ports(batch)['grpc']}"


@pytest.mark.parametrize("overlay", [EXAMPLE, POSTGRES_OVERLAY], ids=["example", "postgres"])
def test_a_mesh_without_the_component_runs_no_batches(overlay):
    objects = render_overlay(overlay)
    assert "PENSTOCK_EDGE_BATCHES" not in environment(pods_of(objects, "edge"))
    assert not [each for each in objects if each["kind"] in WORKLOAD_KINDS and each["metadata"]["name"] == "batch"]


def test_with_the_driver_a_mesh_without_batches_has_no_fault(tmp_path):
    components = [os.path.relpath(DEPLOY_FOLDER / "k8s" / "components" / "cert-manager-csi", tmp_path)]
    overlay = {"resources": [os.path.relpath(GPU_OVERLAY, tmp_path)], "components": components}
    (tmp_path / "kustomization.yaml").write_text(json.dumps(overlay))
    assert manifest_faults(render_overlay(tmp_path)) == []
