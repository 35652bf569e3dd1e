"""Changes as statements of PostgreSQL, and the stored state."""

from collections.abc import Collection, Iterable, Iterator

import psycopg

from penstock.auth.quota.answer_billing import MAX_ANSWERS
from penstock.auth.quota.grant_uses import GrantUse
from penstock.auth.quota.prices import Price
from penstock.auth.quota.reservation_table import MAX_LOST_RESERVATIONS
from penstock.auth.quota.scope_quota import KEY_SCOPE, ScopeUse
from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.regions.share import ShareRow
from penstock.auth.store import rows
from penstock.auth.store.postgres import region_totals
from penstock.auth.store.postgres.charges import ChargeRun, Statement
from penstock.auth.store.postgres.documents import without_nul
from penstock.auth.store.postgres.latest_rows import latest_charges, latest_lost
from penstock.auth.store.routes import ROUTE_COLUMNS, route_of, route_row
from penstock.auth.store.rows import Row
from penstock.auth.store.store import (
    Administration,
    Barrier,
    Change,
    Charged,
    ConfirmTotals,
    DeleteKey,
    DeletePrice,
    DeleteRoute,
    DeleteTenant,
    PutHome,
    PutKey,
    PutPrice,
    PutRoute,
    PutShare,
    PutTenant,
    PutTotals,
    Release,
    Reserved,
    StoredState,
    TenantUse,
)
from penstock.mesh.partitions import PARTITIONS

# ruff: noqa: S608  # all parts of the statements are constants
_PUT_TENANT = f"""
    INSERT INTO tenants ({rows.TENANT_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (tenant_id) DO UPDATE SET priority = excluded.priority, weight = excluded.weight,
        requests_per_minute = excluded.requests_per_minute, tokens_per_minute = excluded.tokens_per_minute,
        concurrent_requests = excluded.concurrent_requests, policy = excluded.policy, deleted_at = NULL
"""
_DELETE_TENANT = "UPDATE tenants SET deleted_at = %s WHERE tenant_id = %s"  # rows of the ledger name it
_PUT_KEY = f"""
    INSERT INTO keys ({rows.KEY_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (key_id) DO UPDATE SET tenant_id = excluded.tenant_id, digest = excluded.digest,
        created_at = excluded.created_at, display_name = excluded.display_name, expires_at = excluded.expires_at,
        policy = excluded.policy,
        revoked_at = CASE WHEN keys.digest = excluded.digest THEN least(keys.revoked_at, excluded.revoked_at)
            ELSE excluded.revoked_at END
"""  # the first revocation stays, of which another replica that sets limits may not know
_PUT_PRICE = f"""
    INSERT INTO prices ({rows.PRICE_COLUMNS}) VALUES (%s, %s, %s, %s)
    ON CONFLICT (model) DO UPDATE SET input_nanos = excluded.input_nanos,
        cached_input_nanos = excluded.cached_input_nanos, output_nanos = excluded.output_nanos
"""
_PUT_ROUTE = f"""
    INSERT INTO routes ({ROUTE_COLUMNS}) VALUES (%s, %s, %s, %s, %s)
    ON CONFLICT (name, tenant_id) DO UPDATE SET revision = excluded.revision, definition = excluded.definition,
        former = excluded.former
"""
_SELECT_USES = """
    SELECT tenant_id, coalesce(active, 0), coalesce(reserved, 0)::bigint, coalesce(prompt_tokens, 0),
        coalesce(output_tokens, 0), coalesce(requests, 0)
    FROM tenants LEFT JOIN balances USING (tenant_id) LEFT JOIN (
        SELECT tenant_id, count(*) AS active, sum(prompt_tokens + max_output_tokens) AS reserved
        FROM reservations GROUP BY tenant_id
    ) AS held USING (tenant_id)
    WHERE deleted_at IS NULL
"""
_OF_PARTITIONS = "WHERE partition = ANY(%s::smallint[])"
_SELECT_SCOPE_USES = f"SELECT {rows.SCOPE_USE_COLUMNS} FROM scope_uses {_OF_PARTITIONS}"
_SELECT_SHARES = f"SELECT {rows.SHARE_COLUMNS} FROM region_shares {_OF_PARTITIONS}"
_SELECT_RESERVATIONS = f"SELECT {rows.PRICED_RESERVATION_COLUMNS} FROM reservations {_OF_PARTITIONS}"
_SELECT_GRANT_USES = f"SELECT {rows.GRANT_USE_COLUMNS} FROM grant_uses {_OF_PARTITIONS} ORDER BY forget_at"
_CHANGE_CATALOG = "UPDATE catalog SET version = version + 1"


def statements(changes: Iterable[Change], *, reports_usage: bool = False) -> Iterator[Statement]:
    """Return the statements that write these changes in order; totals in any order, as they have revisions.

    With `reports_usage`, the totals that a charge changes are marked as not reported.
    """
    run, is_catalog_changed = ChargeRun(), False
    for change in changes:
        if isinstance(change, Reserved | Charged | PutShare):
            run.add(change)
        elif isinstance(change, PutTotals | ConfirmTotals):
            yield from region_totals.statements(change)
        elif not isinstance(change, Barrier | Release):
            yield from run.statements(reports_usage=reports_usage)
            run, is_catalog_changed = ChargeRun(), True
            yield from _administration(change)
    yield from run.statements(reports_usage=reports_usage)
    if is_catalog_changed:
        yield _CHANGE_CATALOG, ()


def _administration(change: Administration) -> Iterator[Statement]:
    match change:
        case PutTenant(tenant):
            yield _PUT_TENANT, _values(rows.tenant_row(tenant))
        case PutKey(key):
            yield _PUT_KEY, _values(rows.key_row(key))
        case DeleteKey(key_id):
            yield "DELETE FROM keys WHERE key_id = %s", (key_id,)
            yield "DELETE FROM scope_uses WHERE scope = %s", (f"{KEY_SCOPE}{key_id}",)
            yield "DELETE FROM region_shares WHERE scope = %s", (f"{KEY_SCOPE}{key_id}",)
        case PutPrice(price):
            yield _PUT_PRICE, _values(price)
        case DeletePrice(model):
            yield "DELETE FROM prices WHERE model = %s", _values((model,))
        case PutRoute(route):
            yield _PUT_ROUTE, _values(route_row(route))
        case DeleteRoute(name, tenant_id):
            yield "DELETE FROM routes WHERE name = %s AND tenant_id = %s", _values((name, tenant_id))
        case PutHome(home):
            yield "UPDATE catalog SET home = %s", (home,)
        case DeleteTenant(tenant_id, deleted_at):
            yield _DELETE_TENANT, (deleted_at, tenant_id)
            yield "DELETE FROM keys WHERE tenant_id = %s", (tenant_id,)
            yield "DELETE FROM balances WHERE tenant_id = %s", (tenant_id,)
            yield "DELETE FROM scope_uses WHERE tenant_id = %s", (tenant_id,)
            yield "DELETE FROM region_shares WHERE tenant_id = %s", (tenant_id,)
            yield "DELETE FROM routes WHERE tenant_id = %s", (tenant_id,)


def _values(row: Row) -> Row:
    return tuple(without_nul(each) for each in row)


def read(connection: "psycopg.Connection[Row]", partitions: Collection[int]) -> StoredState:
    """Return all tenants, keys and secrets, and the rest of the state of these partitions."""
    chosen = sorted(partitions)
    share = len(chosen) / PARTITIONS
    lost = [rows.charged_reservation_of(row) for row in latest_lost(connection, chosen, MAX_LOST_RESERVATIONS)]
    latest = [rows.charge_of(row) for row in latest_charges(connection, chosen, int(MAX_ANSWERS * share))]
    of_partitions = (chosen,)
    with connection.pipeline():  # one round trip
        tenants = connection.execute(f"SELECT {rows.TENANT_COLUMNS} FROM tenants WHERE deleted_at IS NULL")
        keys = connection.execute(f"SELECT {rows.KEY_COLUMNS} FROM keys")
        prices = connection.execute(f"SELECT {rows.PRICE_COLUMNS} FROM prices")
        routes = connection.execute(f"SELECT {ROUTE_COLUMNS} FROM routes")
        secrets = connection.execute("SELECT name, secret FROM secrets")
        balances = connection.execute(f"SELECT {rows.BALANCE_COLUMNS} FROM balances {_OF_PARTITIONS}", of_partitions)
        scope_uses = connection.execute(_SELECT_SCOPE_USES, of_partitions)
        shares = connection.execute(_SELECT_SHARES, of_partitions)
        reservations = connection.execute(_SELECT_RESERVATIONS, of_partitions)
        uses = connection.execute(_SELECT_GRANT_USES, of_partitions)
        homes = connection.execute("SELECT home FROM catalog")
    return StoredState(
        tenants=[rows.tenant_of(row) for row in tenants],
        balances={row[0]: Balance(*row) for row in balances},
        keys=[rows.key_of(row) for row in keys],
        reservations=[rows.priced_reservation_of(row) for row in reservations],
        lost=lost[::-1],
        grant_uses=[GrantUse(*row) for row in uses],
        charged=latest[::-1],
        secrets={str(name): bytes(secret) for name, secret in secrets},
        scope_uses=[ScopeUse(*row) for row in scope_uses],
        prices=[Price(*row) for row in prices],
        routes=[route_of(row) for row in routes],
        home="".join(row[0] for row in homes),
        shares=[ShareRow(*row) for row in shares],
    )


def read_uses(connection: "psycopg.Connection[Row]") -> list[TenantUse]:
    of_tenants = connection.execute(f"SELECT {rows.SCOPE_USE_COLUMNS} FROM scope_uses WHERE scope = ''")
    scope_uses = {row[0]: ScopeUse(*row) for row in of_tenants}
    return [TenantUse(*row)._replace(scope_use=scope_uses.get(row[0])) for row in connection.execute(_SELECT_USES)]
