"""Limits and budgets at several replicas: a takeover continues them, and a changed catalog applies to present use."""

from dataclasses import replace

import pytest

from penstock.auth.authorizer import Authorizer
from penstock.auth.config import AuthConfig
from penstock.auth.identity.keys import Key, mint
from penstock.auth.identity.policy import NO_POLICY, Budget, BudgetPeriod, BudgetUnit, Limits, Policy
from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.prices import Price
from penstock.auth.regions.granted import GrantedShares
from penstock.auth.regions.held import HeldShares
from penstock.auth.regions.share import FLOOR, Share, ShareRow
from penstock.auth.store.recovery import recover
from penstock.auth.store.store import StoredState
from penstock.chassis.errors import QuotaExceeded
from penstock.mesh.partitions import partition_of
from penstock.mesh.v1.admission_pb2 import Credential, Reserve, Settle

NOW = 1_800_000_000.0
PARTITION = partition_of("acme")
BUDGET = Budget(BudgetPeriod.MONTH, BudgetUnit.MONEY, 100)
PRICE = Price("m", 1_000_000, 1_000_000, 2_000_000)  # 1 and 2 nanos per token
ACME = Tenant(tenant_id="acme", policy=Policy(budgets=(BUDGET,)))
LIMITED = Policy(limits=Limits(tokens_per_minute=60, concurrent_requests=2))
NOTHING = StoredState([], {}, [], [], [], [], [])


def replica(state: StoredState, *partitions: int) -> Authorizer:
    config = AuthConfig(pepper="p" * 32, mesh_secret="m" * 32)
    return recover(config, state, NOW, dict.fromkeys(partitions, 1))


def key_of(authorizer: Authorizer, policy: Policy = LIMITED) -> tuple[Key, Credential]:
    key_id, secret = mint()
    digest = authorizer.keys.digest(secret)
    key = Key(key_id=key_id, tenant_id="acme", digest=digest, created_at=NOW, policy=policy)
    return key, Credential(bearer=secret)


def reserve(authorizer, credential, number=1, prompt=10, output=20):
    frame = Reserve(
        request_id=f"request-{number}",
        credential=credential,
        model="m",
        prompt_tokens=prompt,
        max_output_tokens=output,
    )
    return authorizer.reserve(frame, "edge-1", f"r-{number}", NOW)[1]


def stored(authorizer, key, *reservations) -> StoredState:
    """Return the state that a store has after these reservations."""
    quota = authorizer.reservations.quota("acme")
    written = [replace(each, metering=each.metering._replace(price=None, holds=())) for each in reservations]
    uses = quota.uses_of(reservations[-1])
    return NOTHING._replace(tenants=[ACME], keys=[key], reservations=written, scope_uses=uses, prices=[PRICE])


@pytest.fixture
def owner():
    authorizer = replica(NOTHING._replace(tenants=[ACME], prices=[PRICE]), PARTITION)
    key, credential = key_of(authorizer)
    authorizer.put_key(key, NOW)
    return authorizer, key, credential


def test_a_takeover_continues_budgets_rates_and_active_requests(owner):
    former, key, credential = owner
    state = stored(former, key, reserve(former, credential))
    successor = replica(NOTHING)
    successor.take({PARTITION: 2}, state, NOW)
    quota = successor.reservations.quota("acme")
    assert quota.scope().budget_use(BUDGET, NOW)[:2] == (0, 50)
    assert quota.scope(f"key:{key.key_id}").concurrent_requests == 1
    with pytest.raises(QuotaExceeded) as rejection:
        reserve(successor, credential, 2, 31, 0)
    assert [each.subject for each in rejection.value.quota_violations] == [f"key:{key.key_id}"]
    reserve(successor, credential, 3, 10, 20)
    with pytest.raises(QuotaExceeded) as rejection:
        reserve(successor, credential, 4, 1, 0)
    assert rejection.value.reason == "BUDGET_EXCEEDED"
    frame = Settle(reservation_id="r-1", prompt_tokens=10, output_tokens=0, outcome="stop", partition=PARTITION)
    assert successor.settle(frame, NOW).price_nanos == 10
    assert quota.scope().budget_use(BUDGET, NOW)[:2] == (10, 50)


def test_a_replica_that_gave_a_partition_away_and_receives_it_again_has_the_state_of_the_store(owner):
    authorizer, key, credential = owner
    state = stored(authorizer, key, reserve(authorizer, credential))
    authorizer.give([PARTITION], NOW)
    assert authorizer.reservations.quota("acme").scope().budget_use(BUDGET, NOW)[:2] == (0, 0)
    assert authorizer.reservations.quota("acme").scope(f"key:{key.key_id}").concurrent_requests == 0
    authorizer.take({PARTITION: 3}, state, NOW)
    assert authorizer.reservations.quota("acme").scope().budget_use(BUDGET, NOW)[:2] == (0, 50)
    assert authorizer.reservations.quota("acme").scope(f"key:{key.key_id}").concurrent_requests == 1


def test_a_catalog_of_another_replica_sets_limits_and_prices_and_keeps_the_use(owner):
    authorizer, key, credential = owner
    reserve(authorizer, credential)
    smaller = replace(key, policy=Policy(limits=Limits(tokens_per_minute=40)))
    dear, dearer = PRICE._replace(output_nanos=9), PRICE._replace(model="other")
    larger = replace(ACME, policy=Policy(budgets=(replace(BUDGET, amount=10**9),)))
    authorizer.put_catalog([larger], [smaller], [dear, dearer], NOW)
    quota = authorizer.reservations.quota("acme")
    assert quota.scope(f"key:{key.key_id}").token_rates(NOW)[0].remaining == 10
    assert quota.scope().budget_use(larger.policy.budgets[0], NOW)[:2] == (0, 50)
    assert authorizer.reservations.prices.all == [dear, dearer]
    authorizer.put_catalog([larger], [smaller], [], NOW)
    assert not authorizer.reservations.prices


def test_a_catalog_without_a_key_forgets_its_use_and_one_without_limits_removes_them(owner):
    authorizer, key, credential = owner
    reserve(authorizer, credential)
    other, _ = key_of(authorizer, NO_POLICY)
    authorizer.put_catalog([ACME], [replace(key, policy=NO_POLICY), other], [PRICE], NOW)
    quota = authorizer.reservations.quota("acme")
    assert quota.scope(f"key:{key.key_id}") is None
    authorizer.put_catalog([ACME], [other], [PRICE], NOW)
    assert len(authorizer.keys) == 1


@pytest.mark.parametrize(
    ("shares", "row", "enforced"),
    [
        (HeldShares("us"), ShareRow("acme", "", "us", 300, 400), Share(300, 400)),
        (GrantedShares(["us"]), ShareRow("acme", "", "us", 300, 400), Share(700, 600)),
    ],
)
def test_shares_are_restored_taken_and_given_with_their_partitions(shares, row, enforced):
    config, default = AuthConfig(pepper="p" * 32, mesh_secret="m" * 32), FLOOR
    if isinstance(shares, GrantedShares):
        default = Share(950, 950)
    tenant = Tenant(tenant_id="acme", requests_per_minute=1_000)
    state = NOTHING._replace(tenants=[tenant], shares=[row])
    authorizer = recover(config, state, NOW, {PARTITION: 1}, shares)
    quota = authorizer.reservations.shared_quota("acme")
    assert (quota.share, quota.rate_limits(None, NOW).limit_requests) == (enforced, enforced.rates)
    change = authorizer.share_change(row)
    assert (change.row, change.balance) == (row, quota.balance)
    authorizer.give([PARTITION], NOW)
    assert authorizer.reservations.shared_quota("acme").share == default
    authorizer.take({PARTITION: 2}, state, NOW)
    assert authorizer.reservations.shared_quota("acme").share == enforced
    authorizer.remove_tenant("acme")
    authorizer.forget_shares("acme")
    assert authorizer.share_change(row) is None
    assert authorizer.put_tenant(tenant, NOW).share == default


def test_a_stored_share_and_its_bucket_admit_no_more_after_a_restart():
    config, tenant = AuthConfig(pepper="p" * 32, mesh_secret="m" * 32), Tenant(tenant_id="acme", requests_per_minute=60)
    held = HeldShares("us")
    authorizer = recover(config, NOTHING._replace(tenants=[tenant]), NOW, {PARTITION: 1}, held)
    row = held.on_share(ShareRow("acme", "", "us", 900, 900), Share(0, 0))
    authorizer.set_share("acme", "", row.share, NOW)
    change = authorizer.share_change(row)
    state = NOTHING._replace(tenants=[tenant], shares=[change.row], balances={"acme": change.balance})
    restarted = recover(config, state, NOW, {PARTITION: 1}, HeldShares("us")).reservations.quota("acme")
    assert restarted.rate_limits(None, NOW).limit_requests == 54
    remaining = restarted.rate_limits(None, NOW).remaining_requests
    assert 2 <= remaining <= 3  # as before the raise, as what was gained is empty; stored times are rounded up
