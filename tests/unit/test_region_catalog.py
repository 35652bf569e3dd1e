"""The shared catalog: parts, differences, and entries that no region accepts."""

from dataclasses import replace

import pytest

from penstock.auth.identity.keys import Key
from penstock.auth.identity.policy import Budget, BudgetPeriod, BudgetUnit, Limits, Policy
from penstock.auth.identity.tenant import Tenant
from penstock.auth.models.routes import Affinity, Route, RouteDefinition, RouteTarget
from penstock.auth.quota.prices import Price
from penstock.auth.regions.catalog.catalog import (
    PART_ENTRIES,
    CatalogReceiver,
    catalog_of,
    change_parts,
    deletions,
    puts,
    unknown_to,
    whole_parts,
)
from penstock.auth.store.store import (
    DeleteKey,
    DeletePrice,
    DeleteRoute,
    DeleteTenant,
    PutKey,
    PutPrice,
    PutRoute,
    PutTenant,
)
from penstock.chassis.errors import InvalidArgument
from penstock.mesh.v1.region_quota_pb2 import AuthCatalogEntry, AuthCatalogPart, CatalogKey, CatalogRoute
from penstock.v1 import admin_pb2 as pb
from penstock.v1.inference_pb2 import PRIORITY_BATCH

NOW = 1_800_000_000.0
POLICY = Policy(
    limits=Limits(input_tokens_per_minute=5),
    allowed_models=("chat*",),
    model_limits=(("chat", Limits(concurrent_requests=2)),),
    allowed_regions=("eu", "us"),
    budgets=(Budget(BudgetPeriod.DAY, BudgetUnit.MONEY, 7),),
    soft_share=0.5,
    shadow=True,
)
DEFAULT = Tenant(tenant_id="default")
ACME = Tenant(tenant_id="acme", priority=PRIORITY_BATCH, weight=2.5, requests_per_minute=60, policy=POLICY)
PRICE = Price("chat", 9, 3, 7)
ROUTE = Route(
    "fast", "acme", 4, RouteDefinition((RouteTarget("chat", 3),), Affinity.KEY), RouteDefinition((RouteTarget("m", 1),))
)


def key(key_id="k1", **fields):
    given = {"tenant_id": "acme", "digest": b"d" * 32, "created_at": NOW - 9.5, "display_name": "a key"} | fields
    return Key(key_id=key_id, **given)


def catalog(*keys, tenants=(DEFAULT, ACME), prices=(PRICE,), routes=(ROUTE,)):
    return catalog_of(tenants, keys, prices, routes)


WHOLE = catalog(key(), key("k2", expires_at=NOW + 0.25, revoked_at=NOW, policy=Policy(budgets=POLICY.budgets)))


def received(*parts):
    receiver = CatalogReceiver()
    for each in parts:
        receiver.on_part(AuthCatalogPart.FromString(each.SerializeToString()))
    return receiver.catalog


def test_the_whole_catalog_arrives_as_it_was_without_keys_of_loopback():
    assert received(*whole_parts(WHOLE)) == WHOLE
    assert received(*whole_parts(catalog(key(), key("dev", loopback_only=True)))) == catalog(key())


def test_a_large_catalog_has_several_parts_and_counts_once_it_is_whole():
    large = catalog(*(key(f"k{number}") for number in range(2 * PART_ENTRIES)))
    parts = list(whole_parts(large))
    assert [(each.is_first, each.is_last) for each in parts] == [(True, False), (False, False), (False, True)]
    assert received(*parts[:2]) is None
    assert received(*parts) == large


def test_changes_turn_one_catalog_into_another_one():
    after = catalog(
        key(display_name="renamed"), key("k3"), tenants=(DEFAULT, replace(ACME, weight=1.0)), prices=(), routes=()
    )
    assert received(*whole_parts(WHOLE), *change_parts(WHOLE, after)) == after
    assert list(change_parts(after, after)) == []


def test_a_second_whole_catalog_replaces_the_first_one():
    after = catalog(key("k9"))
    assert received(*whole_parts(WHOLE), *whole_parts(after)) == after


def test_differences_create_tenants_before_keys_and_delete_tenants_last():
    empty = catalog(tenants=(DEFAULT,), prices=(), routes=())
    assert puts(empty, WHOLE) == [PutTenant(ACME), *map(PutKey, WHOLE.keys.values()), PutPrice(PRICE), PutRoute(ROUTE)]
    assert deletions(WHOLE, empty) == [
        DeleteRoute("fast", "acme"),
        DeleteKey("k1"),
        DeleteKey("k2"),
        DeletePrice("chat"),
        DeleteTenant("acme", 0.0),
    ]
    assert deletions(empty, catalog(tenants=())) == [], "the tenant `default` stays"
    assert puts(WHOLE, WHOLE) == deletions(WHOLE, WHOLE) == []


def test_a_revocation_stays_although_the_home_does_not_know_it_yet():
    revoked = catalog(key(revoked_at=NOW))
    assert puts(revoked, catalog(key())) == []
    renamed = key(display_name="other")
    assert puts(revoked, catalog(renamed)) == [PutKey(replace(renamed, revoked_at=NOW))]


def test_a_key_without_its_tenant_is_not_created():
    assert puts(catalog(tenants=(DEFAULT,)), catalog(key(), tenants=(DEFAULT,))) == []


def test_what_only_a_region_has_is_its_tenants_and_its_keys_that_work():
    own = catalog(
        *(key("gone", revoked_at=NOW - 1), key("old", expires_at=NOW - 1), key("k1", digest=b"e" * 32), key("k7"))
    )
    assert unknown_to(own, catalog(key(), tenants=(DEFAULT,)), NOW) == ["tenant acme", "key k1", "key k7"]
    assert unknown_to(WHOLE, WHOLE, NOW) == []


WRONG = {
    "no kind": AuthCatalogEntry(),
    "tenant id": AuthCatalogEntry(tenant=pb.Tenant(tenant_id="Acme!")),
    "weight": AuthCatalogEntry(tenant=pb.Tenant(tenant_id="acme", weight=1e9)),
    "digest": AuthCatalogEntry(key=CatalogKey(key=pb.Key(key_id="k", tenant_id="acme"), digest=b"short")),
    "key id": AuthCatalogEntry(key=CatalogKey(key=pb.Key(key_id="K 1", tenant_id="acme"), digest=b"d" * 32)),
    "tenant of a key": AuthCatalogEntry(key=CatalogKey(key=pb.Key(key_id="k", tenant_id=""), digest=b"d" * 32)),
    "loopback": AuthCatalogEntry(
        key=CatalogKey(key=pb.Key(key_id="k", tenant_id="acme", loopback_only=True), digest=b"d" * 32)
    ),
    "price": AuthCatalogEntry(price=pb.Price(model="")),
    "JSON": AuthCatalogEntry(route=CatalogRoute(name="r", revision=1, definition="{")),
    "no object": AuthCatalogEntry(route=CatalogRoute(name="r", revision=1, definition="[]")),
    "no targets": AuthCatalogEntry(route=CatalogRoute(name="r", revision=1, definition='{"targets": []}')),
    "weight of a target": AuthCatalogEntry(
        route=CatalogRoute(name="r", revision=1, definition='{"targets": [["m", 0]]}')
    ),
    "text as weight": AuthCatalogEntry(
        route=CatalogRoute(name="r", revision=1, definition='{"targets": [["m", "x"]]}')
    ),
    "former": AuthCatalogEntry(
        route=CatalogRoute(name="r", revision=1, definition='{"targets": [["m", 1]]}', former='{"targets": []}')
    ),
    "revision": AuthCatalogEntry(route=CatalogRoute(name="r", definition='{"targets": [["m", 1]]}')),
}


@pytest.mark.parametrize("fault", sorted(WRONG))
def test_an_entry_that_is_no_item_is_refused(fault):
    with pytest.raises(InvalidArgument):
        CatalogReceiver().on_part(AuthCatalogPart(is_first=True, is_last=True, entries=[WRONG[fault]]))
