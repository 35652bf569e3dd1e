"""Worlds of several regions: what their seeds decide, and that they replay."""

import random

import pytest

from penstock.faults.grpc.network import TO_CLIENT, Failpoint
from penstock.faults.mutations import plan_world
from penstock.faults.plan import FaultKind, PlannedFault, PlanOverrides, plan_for_seed
from penstock.faults.regions.nemesis import REGION_FAULTS
from penstock.faults.regions.plans import with_overload
from penstock.faults.run import run_plan, run_seed

pytestmark = pytest.mark.usefixtures("_collect_finished_worlds")

REGIONS = PlanOverrides(has_regions=True)
STARTED, STEP = (Failpoint("penstock.mesh.v1.RegionService/Run", TO_CLIENT, kind) for kind in ("started", "step"))


def plans(count):
    return [plan_world(seed, REGIONS) for seed in range(count)]


def first(condition):
    return next(each for each in plans(200) if condition(each))


def test_a_world_has_two_or_three_regions_with_processes_and_ports_of_their_own():
    assert {len(each.shape.regions) for each in plans(30)} == {2, 3}
    shape = first(lambda each: len(each.shape.regions) == 3).shape
    tiers = ("edge", "auth", "queue", "scheduler", "worker")
    names = [name for region in shape.regions for tier in tiers for name in region.names(tier)]
    addresses = [address for region in shape.regions for tier in tiers for address in region.addresses(tier)]
    assert len(set(names)) == len(names) == len(set(addresses)) == len(addresses)
    doors = [tuple(door.partition("=")[0] for door in region.doors) for region in shape.regions]
    assert doors == [("us", "ap"), ("ap", "eu"), ("eu", "us")]


def test_seeds_have_all_faults_of_regions_and_some_have_none():
    kinds = {fault.kind for each in plans(60) for fault in each.faults}
    assert kinds >= {*REGION_FAULTS, FaultKind.KILL, FaultKind.TERM, FaultKind.FREEZE}
    cuts = [fault.is_one_way for each in plans(60) for fault in each.faults if fault.kind is FaultKind.CUT]
    assert set(cuts) == {True, False}
    assert any(not each.faults for each in plans(60))


def test_seeds_have_tenants_that_stay_and_clients_in_regions_that_these_do_not_allow():
    away = 0
    for each in plans(60):
        names = [region.region for region in each.shape.regions]
        assert any(tenant.allowed_regions for tenant in each.tenants)
        for request in each.requests:
            allowed = each.tenants[request.tenant].allowed_regions
            away += bool(allowed) and names[request.region] not in allowed
    assert away


def test_an_overloaded_region_without_faults_sends_requests_away():
    result = run_plan(first(lambda each: each.border.must_spill))
    assert result.violations == ()
    assert result.injected == ()
    assert result.frames_by_failpoint[STARTED] >= 1


@pytest.mark.parametrize("kind", [FaultKind.FREEZE, FaultKind.TERM, FaultKind.KILL])
def test_a_guest_edge_that_fails_leaves_no_guest_open(kind):
    """A frozen edge loses the call of its peer, while their connection stays open."""
    fault = PlannedFault(kind=kind, duration_s=2.0, victim_tier="edge", victim_pick=0.0, failpoint=STEP)
    result = run_plan(with_overload(plan_for_seed(3), random.Random(3), fault))
    assert result.violations == ()
    assert len(result.injected) == 1


def test_a_seed_with_regions_replays_exactly():
    seed = first(lambda each: each.faults and each.shape.max_depth == 1).seed
    traces = {
        (each.frame_digest, each.callbacks, each.injected) for each in (run_seed(seed, REGIONS) for _ in range(2))
    }
    assert len(traces) == 1


def test_a_livelock_is_told_with_regions(monkeypatch):
    monkeypatch.setattr("penstock.faults.regions.run.MAX_CALLBACKS", 500)
    assert [each.kind for each in run_seed(0, REGIONS).violations] == ["livelock"]
