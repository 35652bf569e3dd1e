"""The overlay with autoscalers: each of them scales a Deployment that exists, and leaves its number to it alone."""

import pytest

from manifest_check.rules import manifest_faults
from manifests import OVERLAYS, environment, get_object, ports, render_overlay
from penstock.chassis.security.identity import parse_spiffe_id
from penstock.chassis.security.permissions import is_allowed
from penstock.keda.externalscaler_pb2 import DESCRIPTOR
from penstock.scheduler.autoscaling.external_scaler import MODEL_KEY
from penstock.simulator.autoscaling.keda import KedaSettings

OVERLAY = OVERLAYS / "autoscaled"
SCALER_KINDS = ("ScaledObject", "HorizontalPodAutoscaler")


@pytest.fixture
def rendered():
    return render_overlay(OVERLAY)


def scalers(objects):
    return [each for each in objects if each["kind"] in SCALER_KINDS]


def scaled_object(objects, name):
    (found,) = [each for each in objects if each["kind"] == "ScaledObject" and each["metadata"]["name"] == name]
    return found["spec"]


def test_the_overlay_has_no_fault(rendered):
    assert manifest_faults(rendered) == []


def test_each_scaled_deployment_exists_has_one_autoscaler_and_no_number_of_its_own(rendered):
    scaled = [each["spec"]["scaleTargetRef"]["name"] for each in scalers(rendered)]
    assert sorted(scaled) == ["auth", "edge", "queue", "scheduler", "worker"]
    for name in scaled:
        assert "replicas" not in get_object(rendered, "Deployment", name)["spec"]
        assert get_object(rendered, "Deployment", name)["spec"]["template"]["spec"]["containers"][0]["resources"][
            "requests"
        ]["cpu"], "shares of CPU are shares of the request"


def test_the_scaler_of_the_workers_asks_the_scheduler_for_their_model(rendered):
    (trigger,) = scaled_object(rendered, "worker")["triggers"]
    host, port = trigger["metadata"]["scalerAddress"].split(":")
    name, namespace, kind = host.split(".")
    service = get_object(rendered, "Service", "scheduler")
    assert (name, namespace, kind) == (service["metadata"]["name"], service["metadata"]["namespace"], "svc")
    assert int(port) in ports(get_object(rendered, "Deployment", "scheduler")).values()
    model = environment(get_object(rendered, "Deployment", "worker"))["PENSTOCK_WORKER_MODEL"]
    assert trigger["metadata"][MODEL_KEY] == model


def test_the_workers_scale_as_in_the_simulator(rendered):
    spec, settings = scaled_object(rendered, "worker"), KedaSettings()
    assert spec["minReplicaCount"] == 0
    assert spec["cooldownPeriod"] == settings.cooldown_period
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == settings.scale_down_window
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0


def test_the_certificate_of_keda_may_call_the_scaler_and_the_scheduler_has_the_name_that_it_dials(rendered):
    certificates = {each["metadata"]["name"]: each["spec"] for each in rendered if each["kind"] == "Certificate"}
    tier = parse_spiffe_id(certificates["keda"]["uris"][0]).tier
    for method in DESCRIPTOR.services_by_name["ExternalScaler"].methods:
        assert is_allowed(tier, f"externalscaler.ExternalScaler/{method.name}")
    assert not is_allowed(tier, "penstock.v1.Admin/Drain")
    (trigger,) = scaled_object(rendered, "worker")["triggers"]
    assert trigger["metadata"]["scalerAddress"].split(":")[0] in certificates["scheduler"]["dnsNames"]
    (authentication,) = [each for each in rendered if each["kind"] == "TriggerAuthentication"]
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    secrets = {each["name"] for each in authentication["spec"]["secretTargetRef"]}
    assert secrets == {certificates["keda"]["secretName"]}


def test_keda_may_reach_the_scheduler_alone(rendered):
    policies = [each for each in rendered if each["kind"] == "NetworkPolicy" and "keda" in str(each["spec"])]
    (policy,) = policies
    assert policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "scheduler"
