"""The SQLite schema and its migrations. Times are REAL Unix seconds, bucket times INTEGER µs."""

import sqlite3

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
)


class StoreTooNew(Exception):
    """The file was written by a later release, whose schema this release does not know."""


def migrate(connection: sqlite3.Connection) -> None:
    """Migrate the file to the present version, each step in one transaction. Raises StoreTooNew."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise StoreTooNew(
            f"the store has version {version}, and this release supports up to {len(MIGRATIONS)}; upgrade auth"
        )
    for number, script in enumerate(MIGRATIONS[version:], version + 1):
        connection.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")
