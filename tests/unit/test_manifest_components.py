"""Components that no overlay or one overlay has, added to an overlay: valid, without a fault, and with their effect."""

import copy
import json
import os

import pytest

from manifest_check.objects import TIERS, Manifests
from manifest_check.references import needed_secrets
from manifest_check.rules import manifest_faults
from manifests import DEPLOY_FOLDER, LOCAL_OVERLAY, OVERLAYS, container, get_object, pods_of, render_overlay
from penstock.chassis.kubernetes import SERVICE_ACCOUNT_FOLDER

COMPONENTS = DEPLOY_FOLDER / "k8s" / "components"


def with_components(folder, *names, overlay=LOCAL_OVERLAY):
    """The objects of an overlay with further components."""
    components = [os.path.relpath(COMPONENTS / name, folder) for name in names]
    content = {"namespace": "penstock", "resources": [os.path.relpath(overlay, folder)], "components": components}
    (folder / "kustomization.yaml").write_text(json.dumps(content))
    return render_overlay(folder)


@pytest.mark.parametrize("name", sorted(each.name for each in COMPONENTS.iterdir()))
def test_every_component_is_in_an_overlay_or_in_a_test(name):
    used = "".join(each.read_text() for each in OVERLAYS.rglob("kustomization.yaml"))
    assert f"components/{name}\n" in used or name in ALONE


ALONE = {"batches-postgres", "cert-manager-csi", "edge-processes", "gateway", "model-volume"}


@pytest.mark.parametrize("name", sorted(ALONE))
def test_a_component_alone_makes_no_fault(tmp_path, name):
    assert manifest_faults(with_components(tmp_path, name)) == []


def test_every_process_that_has_metrics_is_scraped(tmp_path):
    objects = with_components(tmp_path, "monitoring", "edge-processes")
    assert manifest_faults(objects) == []
    monitor = next(each for each in objects if each["kind"] == "PodMonitor" and each["metadata"]["name"] == "tiers")
    scraped = {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]}
    manifests = Manifests(objects)
    selected = manifests.selected(monitor["spec"]["selector"])
    assert {each.tier for each in selected} == set(TIERS)
    assert {name for each in selected for name in each.ports if name.startswith("metrics")} == scraped


def test_batches_on_postgres_have_pods_that_share_a_volume(tmp_path):
    objects = with_components(tmp_path, "batches-postgres")
    batch = pods_of(objects, "batch")
    assert (batch["kind"], batch["spec"]["replicas"]) == ("Deployment", 2)
    (store,) = [each for each in container(batch)["env"] if each["name"] == "PENSTOCK_BATCH_STORE"]
    assert store["valueFrom"] == {"secretKeyRef": {"name": "batch-postgres", "key": "url"}}
    claim = next(
        each for each in objects if (each["kind"], each["metadata"]["name"]) == ("PersistentVolumeClaim", "batch-store")
    )
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    claim = copy.deepcopy(claim)
    claim["spec"]["accessModes"] = ["ReadWriteOnce"]
    others = [each for each in objects if each["metadata"]["name"] != "batch-store"]
    text = "its pods share the volume claim batch-store, which one node at a time can mount"
    assert manifest_faults([*others, claim]) == [f"Deployment batch: {text}"]


def test_a_load_balancer_passes_connections_to_the_proxies():
    service = get_object(render_overlay(OVERLAYS / "two-pools"), "Service", "envoy")["spec"]
    assert (service["type"], service["externalTrafficPolicy"]) == ("LoadBalancer", "Local")


def test_a_gateway_has_routes_for_both_protocols_with_names_of_their_own(tmp_path):
    objects = with_components(tmp_path, "gateway")
    http, grpc = (get_object(objects, kind, "front")["spec"] for kind in ("HTTPRoute", "GRPCRoute"))
    assert not set(http["hostnames"]) & set(grpc["hostnames"])
    assert http["rules"][0]["timeouts"] == {"request": "0s"}
    assert grpc["rules"][0]["matches"] == [{"method": {"service": "penstock.v1.Inference"}}]
    backend = get_object(objects, "BackendTLSPolicy", "front")["spec"]
    assert backend["validation"]["hostname"] in http["hostnames"]


def test_the_local_overlay_issues_the_certificate_of_the_door():
    objects = render_overlay(LOCAL_OVERLAY)
    door = get_object(objects, "Certificate", "door")["spec"]
    (volume,) = [
        each for each in pods_of(objects, "routing")["spec"]["template"]["spec"]["volumes"] if each["name"] == "door"
    ]
    assert volume["secret"]["secretName"] == door["secretName"]
    assert "localhost" in door["dnsNames"]
    assert "uris" not in door  # it is no identity of the mesh


def test_tiers_take_the_place_of_workers_on_a_full_node():
    manifests = Manifests(render_overlay(OVERLAYS / "two-pools"))
    values = {each["metadata"]["name"]: each["value"] for each in manifests.of_kind("PriorityClass")}
    priorities = {
        each.name: values[each.pod["priorityClassName"]]
        for each in manifests.workloads
        if each.tier in {*TIERS, "envoy"}
    }
    workers = {priorities.pop(each.name) for each in manifests.of_tier("worker")}
    assert max(workers) < min(priorities.values())


@pytest.mark.parametrize("region", ["eu", "us"])
def test_every_process_of_a_region_has_its_name(region):
    manifests = Manifests(render_overlay(OVERLAYS / f"region-{region}"))
    tiers = [each for each in manifests.workloads if each.tier in TIERS]
    assert {each.tier for each in tiers} == set(TIERS) - {"batch"}
    names = [manifests.environment(container)["PENSTOCK_REGION"] for each in tiers for container in each.processes]
    assert set(names) == {region}


@pytest.mark.parametrize(("region", "other"), [("eu", "us"), ("us", "eu")])
def test_a_region_opens_a_door_and_knows_that_of_the_other_one(region, other):
    manifests, door = Manifests(render_overlay(OVERLAYS / f"region-{region}")), f"{other}=region.{other}.example:8444"
    (edge,), (routing,) = (manifests.of_tier(tier)[0].processes for tier in ("edge", "routing"))
    assert manifests.environment(edge)["PENSTOCK_EDGE_REGIONS"] == door
    assert manifests.environment(edge)["PENSTOCK_EDGE_ROUTINGS"] == "routing:7006"
    assert manifests.environment(routing)["PENSTOCK_ROUTING_REGIONS"] == door
    service, (proxy,) = manifests.find("Service", "region")["spec"], manifests.of_tier("envoy")
    assert [each.name for each in manifests.selected({"matchLabels": service["selector"]})] == [proxy.name]
    assert manifests.environment(routing)["PENSTOCK_ROUTING_REGION_LISTEN"] == f"0.0.0.0:{proxy.ports['region']}"


def test_the_region_eu_keeps_the_tenants_and_us_follows_it_through_its_door():
    eu, us = (Manifests(render_overlay(OVERLAYS / f"region-{each}")) for each in ("eu", "us"))
    names = ("HOME", "HOME_DOOR", "SPENDING_REGIONS")
    found = []
    for manifests in (eu, us):
        [auth], [routing] = (manifests.of_tier(tier)[0].processes for tier in ("auth", "routing"))
        settings = manifests.environment(auth)
        found.append([settings[f"PENSTOCK_AUTH_{each}"] for each in names])
        found[-1].append(manifests.environment(routing)["PENSTOCK_ROUTING_REGION_AUTHS"])
    assert found == [["eu", "", "us", "dns:///auth:7002"], ["eu", "region.eu.example:8444", "", ""]]


def test_a_region_has_an_authority_that_its_cluster_does_not_make():
    manifests = Manifests(render_overlay(OVERLAYS / "region-eu"))
    assert needed_secrets(manifests) == ["auth-postgres", "door-tls", "penstock-ca", "penstock-regions"]
    assert [each["metadata"]["name"] for each in manifests.of_kind("Issuer")] == ["penstock"]
    assert "penstock-ca" not in needed_secrets(Manifests(render_overlay(OVERLAYS / "postgres")))


@pytest.mark.parametrize("region", ["eu", "us"])
def test_all_replicas_of_routing_share_the_state_of_regions_and_may_change_nothing_else(region):
    manifests = Manifests(render_overlay(OVERLAYS / f"region-{region}"))
    (routing,) = manifests.of_tier("routing")
    (process,) = routing.processes
    assert routing.spec["replicas"] > 1
    scheme, name = manifests.environment(process)["PENSTOCK_ROUTING_REGIONS_STATE"].split(":")
    assert scheme == "configmap"
    assert "data" not in manifests.find("ConfigMap", name), "applying the overlay again would reset it"
    (binding,) = manifests.of_kind("RoleBinding")
    assert [each["name"] for each in binding["subjects"]] == [routing.pod["serviceAccountName"]]
    assert manifests.find("Role", binding["roleRef"]["name"])["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get", "patch"]}
    ]
    assert SERVICE_ACCOUNT_FOLDER in process.mounts


def test_routing_of_a_region_reads_every_proxy():
    manifests = Manifests(render_overlay(OVERLAYS / "region-eu"))
    (routing,), (proxy,) = manifests.of_tier("routing"), manifests.of_tier("envoy")
    address = manifests.environment(routing.processes[0])["PENSTOCK_ROUTING_PROXY_STATS"]
    service = manifests.find("Service", "proxies")["spec"]
    assert address == f"dns:///proxies:{service['ports'][0]['port']}"
    assert [each.name for each in manifests.selected({"matchLabels": service["selector"]})] == [proxy.name]
    bootstrap = json.loads(
        next(
            each["data"]["bootstrap.json"]
            for each in manifests.of_kind("ConfigMap")
            if "bootstrap.json" in (each.get("data") or {})
        )
    )
    listeners = [each["address"]["socket_address"]["port_value"] for each in bootstrap["static_resources"]["listeners"]]
    assert service["ports"][0]["port"] in listeners
