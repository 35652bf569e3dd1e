"""Worlds whose regions share limits: what their seeds decide, and the violations that their checks find."""

import pytest

from penstock.auth.quota.reservation import Charge, Reservation, ReservationRequest
from penstock.auth.regions.share import Share, ShareRow
from penstock.auth.store.store import Charged, Reserved
from penstock.faults.checks.shared_limits import LimitWatch, ShareWatch, check_revoked, check_whole
from penstock.faults.mutations import plan_world
from penstock.faults.plan import FaultKind, LimitScope, PlannedTenant, PlanOverrides
from penstock.faults.regions.home_plans import SPEND_PERIOD_S
from penstock.faults.run import run_plan, run_seed
from penstock.faults.world.tenants import key_policy_of, tenant_of

pytestmark = pytest.mark.usefixtures("_collect_finished_worlds")

REGIONS = PlanOverrides(has_regions=True)
KEY = ("acme", "")
SCOPE_ROW = ShareRow("acme", "", "us", 600, 50)


def plans(count):
    found = (plan_world(seed, REGIONS) for seed in range(count))
    return [each for each in found if each.border.home]


# Plans.


def test_one_region_is_home_and_the_others_follow_it():
    for plan in plans(40):
        home = plan.border.home
        [own] = [each for each in plan.shape.regions if each.region == home.region]
        others = [each for each in plan.shape.regions if each is not own]
        assert own.spending_regions == tuple(each.region for each in others)
        assert own.home_door == ""
        assert len({each.home_door for each in others} - {""}) == 1
        assert {each.home for each in plan.shape.regions} == {home.region}


def test_seeds_have_replicas_disks_changes_and_faults_of_auth_and_links():
    found = plans(200)
    assert {each.auths for plan in found for each in plan.shape.regions} == {1, 2}
    assert {each for plan in found for each in plan.border.home.databases} == {True, False}
    changes = [each for plan in found for each in plan.border.home.changes]
    assert {each.factor for each in changes} == {None, 0.5, 2.0}
    assert all(0.0 <= each.at <= SPEND_PERIOD_S for each in changes)
    assert all(plan.tenants[each.tenant].is_limited for plan in found for each in plan.border.home.changes)
    kinds = {(each.kind, each.victim_tier) for plan in found for each in plan.faults}
    assert {(kind, "auth") for kind in (FaultKind.KILL, FaultKind.FREEZE, FaultKind.DISK_FULL, FaultKind.CUT)} <= kinds


def test_limits_are_of_tenants_keys_and_models():
    limited = [each for plan in plans(100) for each in plan.tenants if each.is_limited]
    assert {each.scope for each in limited} == set(LimitScope)
    budgets = [each for each in limited if each.tokens_per_day or each.tokens_per_month]
    assert {each.scope for each in budgets} == {LimitScope.TENANT, LimitScope.KEY}
    for each in limited:
        own, of_key = tenant_of(each), key_policy_of(each)
        counts = (own.concurrent_requests or own.tokens_per_minute or own.policy.budgets, own.policy.model_limits)
        assert [bool(count) for count in (*counts, of_key.is_metered)].count(True) == 1


def test_prompts_differ_in_length():
    for plan in plans(100):
        lengths = [len(each.prompt) for each in plan.requests]
        assert len(set(lengths)) == len(lengths)


def test_a_world_with_shared_limits_replays_exactly():
    seed = next(each for each in plans(40) if each.faults and each.border.home.changes).seed
    traces = {
        (each.frame_digest, each.callbacks, each.injected) for each in (run_seed(seed, REGIONS) for _ in range(2))
    }
    assert len(traces) == 1


def test_shares_move_in_a_world_without_faults():
    plan = next(each for each in plans(100) if not each.faults)
    result = run_plan(plan)
    assert result.violations == ()
    moved = [count for failpoint, count in result.frames_by_failpoint.items() if failpoint.kind == "held"]
    assert sum(moved) >= 1


# Checks.


def texts(violations):
    return [each.text for each in violations]


def test_a_region_that_holds_more_than_its_home_counts_is_found():
    watch = ShareWatch()
    watch.on_commit(SCOPE_ROW, is_home=True)
    watch.on_commit(SCOPE_ROW, is_home=False)
    assert watch.violations == []
    watch.on_commit(SCOPE_ROW._replace(rates=599), is_home=True)
    assert len(watch.violations) == 1


def test_shares_that_make_more_than_the_whole_are_found():
    watch = ShareWatch()
    watch.check_enforced(KEY, {"eu": Share(400, 900), "us": Share(600, 50)})
    assert watch.violations == []
    watch.check_enforced(KEY, {"eu": Share(400, 951), "us": Share(600, 50)})
    assert len(watch.violations) == 1


def test_a_share_that_was_lost_is_found_at_rest():
    assert list(check_whole(KEY, {"eu": Share(400, 950), "us": Share(600, 50)})) == []
    assert len(list(check_whole(KEY, {"eu": Share(400, 900), "us": Share(600, 50)}))) == 1


def reserved(name, at, *, tokens=10):
    request = ReservationRequest(
        request_id=name, tenant_id="acme", key_id="k", edge_id="e", model="m", prompt_tokens=tokens, max_output_tokens=0
    )
    reservation = Reservation(reservation_id=name, request=request, reserved_at=at, expires_at=at + 9e4)
    return Reserved(reservation, None)


def charged(change, *, tokens, outcome="stop"):
    return Charged(
        Charge(reservation=change.reservation, prompt_tokens=tokens, output_tokens=0, outcome=outcome, settled_at=0.0),
        None,
    )


def watch(**limits):
    return LimitWatch({"acme": PlannedTenant(tenant_id="acme", **limits)}, regions=2)


def test_requests_of_all_regions_count_against_the_concurrent_ones():
    found = watch(concurrent_requests=1)
    first, *others = [reserved(str(number), float(number)) for number in range(4)]
    for region, each in zip(("eu", "us", "us"), (first, *others[:2]), strict=True):
        found.on_commit(region, each, 0.0)
    found.on_commit("eu", charged(first, tokens=10), 0.0)
    assert found.violations == []  # one request more in each region, by rounding
    found.on_commit("eu", first, 0.0)
    found.on_commit("us", others[2], 0.0)
    assert len(found.violations) == 1


@pytest.mark.parametrize(("second_at", "violations"), [(1.0, 1), (40.0, 0)])
def test_tokens_of_all_regions_count_against_the_limit_per_minute(second_at, violations):
    found = watch(tokens_per_minute=100)
    found.on_commit("eu", reserved("1", 0.0, tokens=90), 0.0)
    found.on_commit("us", reserved("2", second_at, tokens=60), second_at)
    assert len(list(found.check())) == violations


def test_tokens_that_a_request_did_not_need_are_not_counted():
    found = watch(tokens_per_minute=100)
    first = reserved("1", 0.0, tokens=90)
    found.on_commit("eu", first, 0.0)
    found.on_commit("eu", charged(first, tokens=20), 0.0)
    found.on_commit("us", reserved("2", 1.0, tokens=60), 1.0)
    assert list(found.check()) == []


@pytest.mark.parametrize(("tokens", "violations"), [(52, 0), (53, 1)])
def test_charges_of_all_regions_count_against_the_budget(tokens, violations):
    found = watch(tokens_per_month=100)
    for region, name, used in (("eu", "1", 50), ("us", "2", tokens)):
        change = reserved(name, 0.0, tokens=60)
        found.on_commit(region, change, 0.0)
        found.on_commit(region, charged(change, tokens=used), 0.0)
    assert len(list(found.check())) == violations


def test_a_revoked_key_that_is_admitted_is_found():
    found = watch()
    found.on_commit("us", reserved("1", 0.0), 5.0)
    assert list(check_revoked(found.admissions["acme"], "acme", 6.0)) == []
    assert "acme" in texts(check_revoked(found.admissions["acme"], "acme", 4.0))[0]
