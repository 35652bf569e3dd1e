"""Changes as statements of PostgreSQL, and the stored state."""

from collections.abc import Iterable, Iterator

import psycopg

from penstock.auth.quota.answer_billing import MAX_ANSWERS
from penstock.auth.quota.grant_uses import GrantUse
from penstock.auth.quota.reservation_table import MAX_LOST_RESERVATIONS
from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.store import rows
from penstock.auth.store.postgres.charges import ChargeRun, Statement
from penstock.auth.store.postgres.documents import without_nul
from penstock.auth.store.postgres.latest_rows import latest_charges, latest_lost
from penstock.auth.store.rows import Row
from penstock.auth.store.store import (
    Barrier,
    Change,
    Charged,
    DeleteKey,
    DeleteTenant,
    PutKey,
    PutTenant,
    Reserved,
    StoredState,
)
from penstock.mesh.partitions import PARTITIONS

# ruff: noqa: S608  # all parts of the statements are constants
_PUT_TENANT = f"""
    INSERT INTO tenants ({rows.TENANT_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s)
    ON CONFLICT (tenant_id) DO UPDATE SET priority = excluded.priority, weight = excluded.weight,
        requests_per_minute = excluded.requests_per_minute, tokens_per_minute = excluded.tokens_per_minute,
        concurrent_requests = excluded.concurrent_requests, deleted_at = NULL
"""
_DELETE_TENANT = "UPDATE tenants SET deleted_at = %s WHERE tenant_id = %s"  # rows of the ledger name it
_PUT_KEY = f"""
    INSERT INTO keys ({rows.KEY_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (key_id) DO UPDATE SET tenant_id = excluded.tenant_id, digest = excluded.digest,
        created_at = excluded.created_at, display_name = excluded.display_name, expires_at = excluded.expires_at,
        revoked_at = excluded.revoked_at
"""


def statements(changes: Iterable[Change]) -> Iterator[Statement]:
    """Return the statements that write these changes in order."""
    run = ChargeRun()
    for change in changes:
        if isinstance(change, Reserved | Charged):
            run.add(change)
        elif not isinstance(change, Barrier):
            yield from run.statements()
            run = ChargeRun()
            yield from _administration(change)
    yield from run.statements()


def _administration(change: PutTenant | PutKey | DeleteKey | DeleteTenant) -> Iterator[Statement]:
    match change:
        case PutTenant(tenant):
            yield _PUT_TENANT, _values(rows.tenant_row(tenant))
        case PutKey(key):
            yield _PUT_KEY, _values(rows.key_row(key))
        case DeleteKey(key_id):
            yield "DELETE FROM keys WHERE key_id = %s", (key_id,)
        case DeleteTenant(tenant_id, deleted_at):
            yield _DELETE_TENANT, (deleted_at, tenant_id)
            yield "DELETE FROM keys WHERE tenant_id = %s", (tenant_id,)
            yield "DELETE FROM balances WHERE tenant_id = %s", (tenant_id,)


def _values(row: Row) -> Row:
    return tuple(without_nul(each) for each in row)


def tenants_of(changes: Iterable[Change]) -> set[str] | None:
    """Return the tenants that these changes concern; None if one of the changes names no tenant."""
    found: set[str] = set()
    for change in changes:
        match change:
            case Reserved() | Charged():
                found.add(change.balance.tenant_id)
            case PutTenant(tenant):
                found.add(tenant.tenant_id)
            case PutKey(key):
                found.add(key.tenant_id)
            case DeleteTenant(tenant_id, _):
                found.add(tenant_id)
            case _:
                return None
    return found or None


def read(connection: "psycopg.Connection[Row]") -> StoredState:
    partitions = list(range(PARTITIONS))
    lost = [rows.charged_reservation_of(row) for row in latest_lost(connection, partitions, MAX_LOST_RESERVATIONS)]
    latest = [rows.charge_of(row) for row in latest_charges(connection, partitions, MAX_ANSWERS)]
    tenants = connection.execute(f"SELECT {rows.TENANT_COLUMNS} FROM tenants WHERE deleted_at IS NULL")
    balances = connection.execute(f"SELECT {rows.BALANCE_COLUMNS} FROM balances")
    uses = connection.execute(f"SELECT {rows.GRANT_USE_COLUMNS} FROM grant_uses ORDER BY forget_at")
    reservations = connection.execute(f"SELECT {rows.RESERVATION_COLUMNS} FROM reservations")
    keys = connection.execute(f"SELECT {rows.KEY_COLUMNS} FROM keys")
    return StoredState(
        tenants=[rows.tenant_of(row) for row in tenants],
        balances={row[0]: Balance(*row) for row in balances},
        keys=[rows.key_of(row) for row in keys],
        reservations=[rows.reservation_of(row) for row in reservations],
        lost=lost[::-1],
        grant_uses=[GrantUse(*row) for row in uses],
        charged=latest[::-1],
        secrets={str(name): bytes(secret) for name, secret in connection.execute("SELECT name, secret FROM secrets")},
    )
