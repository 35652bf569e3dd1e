"""Manifests at the scale of hundreds of pods: spread, rolls, budgets, and the one writer of a volume."""

import pytest

from manifest_check.api_rules import quantity
from manifest_check.objects import TIERS, Manifests
from manifests import LOCAL_OVERLAY, OVERLAYS, get_object, pods_of, render_overlay

POSTGRES_OVERLAY = OVERLAYS / "postgres"
REPLICATED = sorted({*TIERS, "envoy"} - {"auth", "batch"})  # batch has one pod


def share(text, replicas, *, is_rounded_up):
    """Pods of a share such as 5%, as Kubernetes rounds it: a surge and a budget up, pods taken by a roll down."""
    percent = int(text.removesuffix("%"))
    return -(-percent * replicas // 100) if is_rounded_up else percent * replicas // 100


@pytest.fixture
def rendered():
    return render_overlay(POSTGRES_OVERLAY)


@pytest.mark.parametrize("tier", REPLICATED)
def test_pods_of_a_tier_are_spread_over_zones_and_nodes(rendered, tier):
    for each in pods_of(rendered, tier)["spec"]["template"]["spec"]["topologySpreadConstraints"]:
        assert each["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == tier
        assert each["matchLabelKeys"] == ["pod-template-hash"]  # pods of the former revision do not count
        assert each["whenUnsatisfiable"] == "ScheduleAnyway"  # one node holds a whole mesh


@pytest.mark.parametrize("tier", sorted(set(REPLICATED) - {"worker"}))
def test_a_roll_adds_a_quarter_of_the_pods_before_it_takes_one(rendered, tier):
    rolling = pods_of(rendered, tier)["spec"]["strategy"]["rollingUpdate"]
    assert rolling["maxUnavailable"] == 0
    assert [share(rolling["maxSurge"], count, is_rounded_up=True) for count in (2, 8, 40)] == [1, 2, 10]


def test_a_roll_of_workers_needs_no_spare_gpu(rendered):
    rolling = pods_of(rendered, "worker")["spec"]["strategy"]["rollingUpdate"]
    assert rolling["maxSurge"] == 0
    assert share(rolling["maxUnavailable"], 200, is_rounded_up=False) == 20


@pytest.mark.parametrize(("tier", "of_200"), [("edge", 50), ("worker", 20)])
def test_a_drain_of_nodes_takes_a_share_of_a_tier_and_at_least_one(rendered, tier, of_200):
    spec = get_object(rendered, "PodDisruptionBudget", tier)["spec"]
    taken = [share(spec["maxUnavailable"], count, is_rounded_up=True) for count in (1, 2, 200)]
    assert taken == [1, 1, of_200]
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_auth_on_a_volume_is_stateful_so_that_two_pods_never_run_at_once():
    rendered = render_overlay(LOCAL_OVERLAY)
    auth = pods_of(rendered, "auth")
    assert (auth["kind"], auth["spec"]["replicas"]) == ("StatefulSet", 1)
    assert Manifests(rendered).of_tier("auth")[0].is_written_by_one()
    assert "strategy" not in auth["spec"]


def test_auth_on_postgres_is_a_deployment_without_a_writer_of_its_own():
    objects = render_overlay(POSTGRES_OVERLAY)
    auth = pods_of(objects, "auth")
    assert (auth["kind"], auth["spec"]["replicas"]) == ("Deployment", 3)
    assert not Manifests(objects).of_tier("auth")[0].is_written_by_one()
    assert "serviceName" not in auth["spec"]


def test_the_mesh_of_a_laptop_fits_on_it():
    manifests = Manifests(render_overlay(LOCAL_OVERLAY))
    requests = [each.resources("requests") for workload in manifests.workloads for each in workload.containers]
    assert {workload.replicas for workload in manifests.workloads} == {1}
    assert sum(quantity(each["cpu"]) for each in requests) <= 2
    assert sum(quantity(each["memory"]) for each in requests) <= 4 * 2**30


@pytest.mark.parametrize("overlay", sorted(set(OVERLAYS.iterdir()) - {LOCAL_OVERLAY}), ids=lambda path: path.name)
def test_no_tier_but_auth_on_a_volume_has_a_single_pod(overlay):
    """A workload without a number of its own is scaled by another object."""
    single = {each.tier for each in Manifests(render_overlay(overlay)).workloads if each.spec.get("replicas") == 1}
    assert single <= {"auth", "operator"}
