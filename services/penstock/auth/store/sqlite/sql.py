"""SQL of the SQLite store: the schema with its migrations, changes as statements, and reading.

Times are REAL Unix seconds, bucket times INTEGER µs.
"""

import sqlite3

from penstock.auth.quota.answer_billing import MAX_ANSWERS
from penstock.auth.quota.grant_uses import GrantUse
from penstock.auth.quota.prices import Price
from penstock.auth.quota.reservation_table import MAX_LOST_RESERVATIONS
from penstock.auth.quota.scope_quota import KEY_SCOPE, ScopeUse
from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.regions.share import ShareRow
from penstock.auth.store import rows
from penstock.auth.store.routes import route_of, route_row
from penstock.auth.store.sqlite.hourly_usage import (
    HOURLY_USAGE,
    REPORTED_USAGE,
    confirm_totals,
    put_charge,
    put_totals,
)
from penstock.auth.store.store import (
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
)

# One script per version; a file at user_version N has the first N scripts applied. Scripts are added, never changed.
MIGRATIONS = (
    """
    CREATE TABLE tenants (
        tenant_id TEXT PRIMARY KEY, priority INTEGER NOT NULL, weight REAL NOT NULL,
        requests_per_minute INTEGER NOT NULL, tokens_per_minute INTEGER NOT NULL, concurrent_requests INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    INSERT INTO tenants VALUES ('default', 2, 1.0, 0, 0, 0);
    CREATE TABLE keys (
        key_id TEXT PRIMARY KEY, tenant_id TEXT NOT NULL REFERENCES tenants, digest BLOB NOT NULL,
        created_at REAL NOT NULL, display_name TEXT NOT NULL, expires_at REAL, revoked_at REAL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE balances (
        tenant_id TEXT PRIMARY KEY REFERENCES tenants, requests_full_at INTEGER NOT NULL,
        tokens_full_at INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
        requests INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE reservations (
        reservation_id TEXT PRIMARY KEY, request_id TEXT NOT NULL, tenant_id TEXT NOT NULL REFERENCES tenants,
        key_id TEXT NOT NULL, edge_id TEXT NOT NULL, model TEXT NOT NULL, prompt_tokens INTEGER NOT NULL,
        max_output_tokens INTEGER NOT NULL, reserved_at REAL NOT NULL, expires_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE ledger (
        reservation_id TEXT PRIMARY KEY, request_id TEXT NOT NULL, tenant_id TEXT NOT NULL REFERENCES tenants,
        key_id TEXT NOT NULL, edge_id TEXT NOT NULL, model TEXT NOT NULL, reserved_prompt_tokens INTEGER NOT NULL,
        reserved_output_tokens INTEGER NOT NULL, reserved_at REAL NOT NULL, expires_at REAL NOT NULL,
        settled_at REAL NOT NULL, prompt_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, outcome TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX ledger_by_tenant ON ledger (tenant_id, settled_at);
    CREATE INDEX ledger_lost ON ledger (settled_at) WHERE outcome = 'lost';
    """,
    """
    ALTER TABLE reservations ADD COLUMN answer_id TEXT NOT NULL DEFAULT '';
    ALTER TABLE reservations ADD COLUMN emitted_tokens INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE reservations ADD COLUMN fingerprint BLOB NOT NULL DEFAULT x'';
    ALTER TABLE ledger ADD COLUMN answer_id TEXT NOT NULL DEFAULT '';
    ALTER TABLE ledger ADD COLUMN emitted_tokens INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE ledger ADD COLUMN fingerprint BLOB NOT NULL DEFAULT x'';
    ALTER TABLE ledger ADD COLUMN made_tokens INTEGER NOT NULL DEFAULT 0;
    UPDATE ledger SET made_tokens = output_tokens;
    CREATE INDEX ledger_latest ON ledger (settled_at);
    """,
    """
    DROP INDEX ledger_by_tenant;
    DROP INDEX ledger_latest;
    CREATE INDEX ledger_settled ON ledger (settled_at) WHERE outcome != 'lost';
    CREATE TABLE daily_usage (
        day TEXT NOT NULL, tenant_id TEXT NOT NULL REFERENCES tenants, key_id TEXT NOT NULL, model TEXT NOT NULL,
        requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
        PRIMARY KEY (day, tenant_id, key_id, model)
    ) STRICT, WITHOUT ROWID;
    CREATE VIEW usage AS
        SELECT day, tenant_id, key_id, model, sum(requests) AS requests, sum(prompt_tokens) AS prompt_tokens,
            sum(output_tokens) AS output_tokens
        FROM (
            SELECT day, tenant_id, key_id, model, requests, prompt_tokens, output_tokens FROM daily_usage
            UNION ALL
            SELECT date(settled_at, 'unixepoch'), tenant_id, key_id, model, 1, prompt_tokens, output_tokens FROM ledger
        )
        GROUP BY day, tenant_id, key_id, model;
    """,
    """
    ALTER TABLE tenants ADD COLUMN deleted_at REAL;
    """,
    """
    CREATE TABLE grant_uses (
        grant_id BLOB NOT NULL, request_id TEXT NOT NULL, reservation_id TEXT NOT NULL, tokens INTEGER NOT NULL,
        token_limit INTEGER NOT NULL, forget_at REAL NOT NULL, PRIMARY KEY (grant_id, request_id)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX grant_uses_by_time ON grant_uses (forget_at);
    """,
    """
    ALTER TABLE tenants ADD COLUMN policy TEXT NOT NULL DEFAULT '';
    ALTER TABLE keys ADD COLUMN policy TEXT NOT NULL DEFAULT '';
    ALTER TABLE reservations ADD COLUMN reserved_nanos INTEGER NOT NULL DEFAULT 0;
    CREATE TABLE scope_uses (
        tenant_id TEXT NOT NULL, scope TEXT NOT NULL, requests_full_at INTEGER NOT NULL,
        input_full_at INTEGER NOT NULL, output_full_at INTEGER NOT NULL, tokens_full_at INTEGER NOT NULL,
        counted_since REAL NOT NULL, day_start INTEGER NOT NULL, day_tokens INTEGER NOT NULL,
        day_nanos INTEGER NOT NULL, month_start INTEGER NOT NULL, month_tokens INTEGER NOT NULL,
        month_nanos INTEGER NOT NULL, PRIMARY KEY (tenant_id, scope)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE prices (
        model TEXT PRIMARY KEY, input_nanos INTEGER NOT NULL, cached_input_nanos INTEGER NOT NULL,
        output_nanos INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    """,
    HOURLY_USAGE,
    """
    CREATE TABLE routes (
        name TEXT NOT NULL, tenant_id TEXT NOT NULL, revision INTEGER NOT NULL, definition TEXT NOT NULL,
        former TEXT NOT NULL, PRIMARY KEY (name, tenant_id)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    ALTER TABLE reservations ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE reservations ADD COLUMN is_delegated INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE ledger ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE ledger ADD COLUMN is_delegated INTEGER NOT NULL DEFAULT 0;
    """,
    """
    CREATE TABLE region_shares (
        tenant_id TEXT NOT NULL, scope TEXT NOT NULL, region TEXT NOT NULL, rates INTEGER NOT NULL,
        budgets INTEGER NOT NULL, PRIMARY KEY (tenant_id, scope, region)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE home (name TEXT NOT NULL) STRICT;
    INSERT INTO home VALUES ('');
    """,
    REPORTED_USAGE,
)


_PUT_TENANT = f"INSERT OR REPLACE INTO tenants ({rows.TENANT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608  # a constant
_DELETE_TENANT = "UPDATE tenants SET deleted_at = ? WHERE tenant_id = ?"  # rows of the ledger refer to it
_SELECT_TENANTS = f"SELECT {rows.TENANT_COLUMNS} FROM tenants WHERE deleted_at IS NULL"  # noqa: S608  # a constant
_PUT_KEY = f"""
    INSERT INTO keys ({rows.KEY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (key_id) DO UPDATE SET tenant_id = excluded.tenant_id, digest = excluded.digest,
        created_at = excluded.created_at, display_name = excluded.display_name, expires_at = excluded.expires_at,
        policy = excluded.policy,
        revoked_at = CASE WHEN keys.digest = excluded.digest
            THEN coalesce(min(keys.revoked_at, excluded.revoked_at), keys.revoked_at, excluded.revoked_at)
            ELSE excluded.revoked_at END
"""  # noqa: S608  # as above; the first revocation stays, as in PostgreSQL
_PUT_GRANT_USE = "INSERT OR REPLACE INTO grant_uses VALUES (?, ?, ?, ?, ?, ?)"
_FORGET_GRANT_USES = "DELETE FROM grant_uses WHERE forget_at < ?"
_PUT_SCOPE_USE = (
    f"INSERT OR REPLACE INTO scope_uses ({rows.SCOPE_USE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608  # as above
)
_PUT_PRICE = "INSERT OR REPLACE INTO prices VALUES (?, ?, ?, ?)"
_PUT_ROUTE = "INSERT OR REPLACE INTO routes VALUES (?, ?, ?, ?, ?)"
_PUT_SHARE = "INSERT OR REPLACE INTO region_shares VALUES (?, ?, ?, ?, ?)"
_PUT_BALANCE = "INSERT OR REPLACE INTO balances VALUES (?, ?, ?, ?, ?, ?)"
_INSERT_RESERVATION = f"""
    INSERT INTO reservations ({rows.PRICED_RESERVATION_COLUMNS})
    VALUES ({", ".join("?" * len(rows.PRICED_RESERVATION_COLUMNS.split(",")))})
"""  # noqa: S608  # as above
_SELECT_SCOPE_USES = f"SELECT {rows.SCOPE_USE_COLUMNS} FROM scope_uses"  # noqa: S608  # as above
_SELECT_RESERVATIONS = f"SELECT {rows.PRICED_RESERVATION_COLUMNS} FROM reservations"  # noqa: S608  # as above
_DELETE_RESERVATION = "DELETE FROM reservations WHERE reservation_id = ?"
_SELECT_LOST = f"""
    SELECT {rows.CHARGED_RESERVATION_COLUMNS} FROM ledger WHERE outcome = 'lost'
    ORDER BY settled_at DESC LIMIT {MAX_LOST_RESERVATIONS}
"""  # noqa: S608  # constants
_SELECT_LATEST = f"""
    SELECT {rows.LATEST_CHARGE_COLUMNS} FROM ledger WHERE outcome != 'lost' ORDER BY settled_at DESC LIMIT {MAX_ANSWERS}
"""  # noqa: S608  # as above


def apply(connection: sqlite3.Connection, change: Change, *, reports_usage: bool = False) -> None:
    """Write a change. With `reports_usage`, the totals that a charge changes are marked as not reported."""
    match change:
        case PutTenant(tenant):
            connection.execute(_PUT_TENANT, rows.tenant_row(tenant))
        case PutKey(key):
            connection.execute(_PUT_KEY, rows.key_row(key))
        case DeleteKey(key_id):
            connection.execute("DELETE FROM keys WHERE key_id = ?", (key_id,))
            connection.execute("DELETE FROM scope_uses WHERE scope = ?", (f"{KEY_SCOPE}{key_id}",))
            connection.execute("DELETE FROM region_shares WHERE scope = ?", (f"{KEY_SCOPE}{key_id}",))
        case DeleteTenant(tenant_id, deleted_at):
            connection.execute(_DELETE_TENANT, (deleted_at, tenant_id))
            connection.execute("DELETE FROM keys WHERE tenant_id = ?", (tenant_id,))
            connection.execute("DELETE FROM balances WHERE tenant_id = ?", (tenant_id,))
            connection.execute("DELETE FROM scope_uses WHERE tenant_id = ?", (tenant_id,))
            connection.execute("DELETE FROM region_shares WHERE tenant_id = ?", (tenant_id,))
            connection.execute("DELETE FROM routes WHERE tenant_id = ?", (tenant_id,))
        case PutPrice(price):
            connection.execute(_PUT_PRICE, price)
        case DeletePrice(model):
            connection.execute("DELETE FROM prices WHERE model = ?", (model,))
        case PutRoute(route):
            connection.execute(_PUT_ROUTE, route_row(route))
        case DeleteRoute(name, tenant_id):
            connection.execute("DELETE FROM routes WHERE name = ? AND tenant_id = ?", (name, tenant_id))
        case PutHome(home):
            connection.execute("UPDATE home SET name = ?", (home,))
        case Reserved(reservation, balance, grant_use, scope_uses):
            connection.execute(_INSERT_RESERVATION, rows.reservation_row(reservation))
            connection.execute(_PUT_BALANCE, balance)
            _put_grant_use(connection, grant_use, reservation.reserved_at)
            _put_scope_uses(connection, scope_uses)
        case Charged(charge, balance, grant_use, scope_uses):
            connection.execute(_DELETE_RESERVATION, (charge.reservation.reservation_id,))
            put_charge(connection, charge, is_reported=reports_usage)
            connection.execute(_PUT_BALANCE, balance)
            _put_grant_use(connection, grant_use, charge.settled_at)
            _put_scope_uses(connection, scope_uses)
        case PutShare(row, balance, scope_uses):
            connection.execute(_PUT_SHARE, row)
            connection.execute(_PUT_BALANCE, balance)
            _put_scope_uses(connection, scope_uses)
        case PutTotals():
            put_totals(connection, change)
        case ConfirmTotals():
            confirm_totals(connection, change)
        case Barrier() | Release():
            pass


def _put_grant_use(connection: sqlite3.Connection, use: GrantUse | None, now: float) -> None:
    if use:
        connection.execute(_FORGET_GRANT_USES, (now,))
        connection.execute(_PUT_GRANT_USE, use)


def _put_scope_uses(connection: sqlite3.Connection, uses: tuple[ScopeUse, ...]) -> None:
    if uses:
        connection.executemany(_PUT_SCOPE_USE, uses)


def probe(connection: sqlite3.Connection) -> None:
    """Write one page without changing the state, to find out whether the store can be written."""
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def read(connection: sqlite3.Connection) -> StoredState:
    lost = [rows.charged_reservation_of(row) for row in connection.execute(_SELECT_LOST)]
    latest = [rows.charge_of(row) for row in connection.execute(_SELECT_LATEST)]
    return StoredState(
        tenants=[rows.tenant_of(row) for row in connection.execute(_SELECT_TENANTS)],
        balances={row[0]: Balance(*row) for row in connection.execute("SELECT * FROM balances")},
        keys=[rows.key_of(row) for row in connection.execute(f"SELECT {rows.KEY_COLUMNS} FROM keys")],  # noqa: S608
        reservations=[rows.priced_reservation_of(row) for row in connection.execute(_SELECT_RESERVATIONS)],
        lost=lost[::-1],
        grant_uses=[GrantUse(*row) for row in connection.execute("SELECT * FROM grant_uses ORDER BY forget_at")],
        charged=latest[::-1],
        scope_uses=[ScopeUse(*row) for row in connection.execute(_SELECT_SCOPE_USES)],
        prices=[Price(*row) for row in connection.execute("SELECT * FROM prices")],
        routes=[route_of(row) for row in connection.execute("SELECT * FROM routes")],
        home=connection.execute("SELECT name FROM home").fetchone()[0],
        shares=[ShareRow(*row) for row in connection.execute("SELECT * FROM region_shares")],
    )
