"""The choice of the shard of a tenant's tickets."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.edge.upstreams.hashing import shard_for

SHARDS = [f"10.0.0.{number}:7003" for number in range(8)]
TENANTS = [f"tenant-{number}" for number in range(2_000)]


@given(st.permutations(SHARDS), st.text(), st.text())
def test_every_edge_finds_the_same_shard_in_any_order_of_its_list(shuffled, model, tenant):
    assert shard_for(shuffled, model, tenant) == shard_for(SHARDS, model, tenant)


def test_without_a_shard_there_is_no_home():
    assert shard_for([], "m", "t") is None


def test_tenants_spread_evenly():
    counts = Counter(shard_for(SHARDS, "m", tenant) for tenant in TENANTS)
    assert set(counts) == set(SHARDS)
    assert max(counts.values()) < 1.3 * len(TENANTS) / len(SHARDS)


def test_a_lost_shard_moves_only_its_own_tenants_and_spreads_them():
    lost, *rest = SHARDS
    moved = [tenant for tenant in TENANTS if shard_for(SHARDS, "m", tenant) != shard_for(rest, "m", tenant)]
    assert moved == [tenant for tenant in TENANTS if shard_for(SHARDS, "m", tenant) == lost]
    assert len({shard_for(rest, "m", tenant) for tenant in moved}) == len(rest)


def test_one_tenants_models_need_not_share_a_shard():
    assert len({shard_for(SHARDS, f"model-{number}", "acme") for number in range(100)}) > 1


def test_the_border_between_model_and_tenant_counts():
    homes = [(shard_for(SHARDS, f"ab{n}", "c"), shard_for(SHARDS, "a", f"b{n}c")) for n in range(50)]
    assert any(one != other for one, other in homes)
