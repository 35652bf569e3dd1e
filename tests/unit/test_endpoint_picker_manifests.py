"""The manifests of the endpoint picker: valid, and consistent with each other and with its settings."""

import pytest
import yaml

from image_closure import dockerfile
from manifest_check.rules import manifest_faults
from manifests import DEPLOY_FOLDER, get_object, render_overlay
from penstock.chassis.config import load
from penstock.picker.config import PickerConfig
from penstock.picker.exchange.metadata import DESTINATION, NAMESPACE, SERVED, SUBSET_NAMESPACE

ENVOY = DEPLOY_FOLDER / "endpoint-picker" / "envoy.yaml"
FOLDER = DEPLOY_FOLDER / "k8s" / "endpoint-picker"


@pytest.fixture
def rendered():
    return render_overlay(FOLDER)


def picker(rendered):
    (container,) = get_object(rendered, "Deployment", "picker")["spec"]["template"]["spec"]["containers"]
    return container


def settings(rendered):
    return load(PickerConfig, "picker", {each["name"]: each["value"] for each in picker(rendered)["env"]})


def test_the_manifests_are_valid_by_schema_and_have_no_fault(rendered):
    """The namespace and the pods of the servers are their owner's."""
    assert manifest_faults(rendered) == [
        "Service vllm: selects pods of 0 components: none",
        "no NetworkPolicy denies ingress by default, so pods that no other one selects are open",
    ]


def test_the_pool_names_the_service_of_the_picker_and_the_pods_that_it_scrapes(rendered):
    pool = get_object(rendered, "InferencePool", "vllm")["spec"]
    service = get_object(rendered, "Service", pool["endpointPickerRef"]["name"])["spec"]
    assert [each["port"] for each in service["ports"]] == [pool["endpointPickerRef"]["port"]["number"]]
    ports = {each["name"]: each["containerPort"] for each in picker(rendered)["ports"]}
    config = settings(rendered)
    assert config.listen == f"0.0.0.0:{ports[service['ports'][0]['targetPort']]}"
    servers = get_object(rendered, "Service", "vllm")
    assert servers["spec"]["selector"] == pool["selector"]["matchLabels"]
    assert servers["spec"]["clusterIP"] == "None", "DNS returns each pod"
    assert config.endpoints == f"dns:///vllm:{pool['targetPorts'][0]['number']}"


def test_gateways_connect_with_tls_and_only_theirs_may(rendered):
    config = settings(rendered)
    assert config.unauthenticated_tls
    assert not config.insecure
    policy = get_object(rendered, "NetworkPolicy", "picker")["spec"]["ingress"]
    (gateway,) = [each for each in policy if {"port": 9002} in each["ports"]]
    assert gateway["from"]


def test_a_pod_has_the_time_to_drain_and_the_memory_for_bodies(rendered):
    pod = get_object(rendered, "Deployment", "picker")["spec"]["template"]["spec"]
    config = settings(rendered)
    assert pod["terminationGracePeriodSeconds"] > config.drain_grace
    assert picker(rendered)["resources"]["limits"]["memory"] == "1Gi"
    assert config.max_held_bytes <= 512 << 20


def test_the_image_is_made_by_the_dockerfile(rendered):
    commands = {f"penstock-{each.name}:dev": each.command for each in dockerfile().images()}
    assert commands[picker(rendered)["image"]] == ("python", "-m", "penstock.picker")


def test_the_breakers_of_envoy_are_above_what_the_picker_admits():
    config = yaml.safe_load(ENVOY.read_text(encoding="utf-8"))
    for cluster in config["static_resources"]["clusters"]:
        (threshold,) = cluster["circuit_breakers"]["thresholds"]
        assert min(threshold.values()) >= 10 * PickerConfig().max_waiting, cluster["name"]


def test_the_configuration_of_envoy_has_the_names_of_the_protocol():
    text = ENVOY.read_text(encoding="utf-8")
    for name in (DESTINATION, SERVED, NAMESPACE, SUBSET_NAMESPACE):
        assert name in text
