"""Schema of the PostgreSQL store, with its migrations.

Times are double precision Unix seconds, bucket times bigint µs, times of leases timestamptz of the database's clock.
"""

import secrets

import psycopg

from penstock.auth.store.postgres.ledger_schema import LEDGER_BY_DAY, REPORTED_USAGE
from penstock.auth.store.postgres.responses_schema import STORED_RESPONSES
from penstock.chassis.database import postgres
from penstock.chassis.database.statements import Row

VERSION_TABLE = "penstock_schema"
MIGRATION_LOCK = 0x70656E73746F636B  # of pg_advisory_xact_lock: "penstock"
SECRET_BYTES = 32
SHARED_SECRETS = ("pepper", "mesh-secret")

# Of errors that the functions of the schema raise.
PARTITIONS_TAKEN = "PN001"
BATCH_DECIDED = "PN002"

# One script per version. Scripts are added, never changed, and leave the statements of the previous release working,
# because a process of that release may still run. Rows of tenants are not referred to where a row is written per
# request: a deleted tenant keeps its row, so that the check would only cost time.
MIGRATIONS = (
    """
    CREATE TABLE partitions (
        partition smallint PRIMARY KEY, owner text NOT NULL DEFAULT '', address text NOT NULL DEFAULT '',
        epoch bigint NOT NULL DEFAULT 0, lease_until timestamptz NOT NULL DEFAULT '-infinity'
    );
    INSERT INTO partitions (partition) SELECT generate_series(0, 63);
    CREATE TABLE writers (
        owner text PRIMARY KEY, batch bigint NOT NULL DEFAULT 0, is_applied boolean NOT NULL DEFAULT true
    );
    CREATE TABLE secrets (name text PRIMARY KEY, secret bytea NOT NULL);
    CREATE TABLE tenants (
        tenant_id text PRIMARY KEY, priority integer NOT NULL, weight double precision NOT NULL,
        requests_per_minute bigint NOT NULL, tokens_per_minute bigint NOT NULL, concurrent_requests bigint NOT NULL,
        deleted_at double precision
    );
    INSERT INTO tenants VALUES ('default', 2, 1.0, 0, 0, 0);
    CREATE TABLE keys (
        key_id text PRIMARY KEY, tenant_id text NOT NULL REFERENCES tenants, digest bytea NOT NULL,
        created_at double precision NOT NULL, display_name text NOT NULL, expires_at double precision,
        revoked_at double precision
    );
    CREATE INDEX keys_by_tenant ON keys (tenant_id);
    CREATE TABLE balances (
        tenant_id text PRIMARY KEY REFERENCES tenants, requests_full_at bigint NOT NULL,
        tokens_full_at bigint NOT NULL, prompt_tokens bigint NOT NULL, output_tokens bigint NOT NULL,
        requests bigint NOT NULL, partition smallint NOT NULL
    ) WITH (fillfactor = 50);
    CREATE TABLE reservations (
        reservation_id text COLLATE "C" PRIMARY KEY, request_id text NOT NULL, tenant_id text NOT NULL,
        key_id text NOT NULL, edge_id text NOT NULL, model text NOT NULL, prompt_tokens bigint NOT NULL,
        max_output_tokens bigint NOT NULL, reserved_at double precision NOT NULL, expires_at double precision NOT NULL,
        answer_id text NOT NULL, emitted_tokens bigint NOT NULL, fingerprint bytea NOT NULL,
        partition smallint NOT NULL
    );
    CREATE TABLE ledger (
        reservation_id text COLLATE "C" PRIMARY KEY, request_id text NOT NULL, tenant_id text NOT NULL,
        key_id text NOT NULL, edge_id text NOT NULL, model text NOT NULL, reserved_prompt_tokens bigint NOT NULL,
        reserved_output_tokens bigint NOT NULL, reserved_at double precision NOT NULL,
        expires_at double precision NOT NULL, settled_at double precision NOT NULL, prompt_tokens bigint NOT NULL,
        output_tokens bigint NOT NULL, outcome text NOT NULL, answer_id text NOT NULL, emitted_tokens bigint NOT NULL,
        fingerprint bytea NOT NULL, made_tokens bigint NOT NULL, partition smallint NOT NULL
    );
    CREATE INDEX ledger_lost ON ledger (settled_at, reservation_id) WHERE outcome = 'lost';
    CREATE INDEX ledger_settled ON ledger (settled_at, reservation_id) WHERE outcome <> 'lost';
    CREATE TABLE grant_uses (
        grant_id bytea NOT NULL, request_id text NOT NULL, reservation_id text NOT NULL, tokens bigint NOT NULL,
        token_limit bigint NOT NULL, forget_at double precision NOT NULL, partition smallint NOT NULL,
        PRIMARY KEY (grant_id, request_id)
    );
    CREATE INDEX grant_uses_by_time ON grant_uses (forget_at);
    CREATE INDEX grant_uses_by_reservation ON grant_uses (reservation_id);
    CREATE FUNCTION day_of(at double precision) RETURNS date LANGUAGE sql IMMUTABLE
        RETURN (to_timestamp(at) AT TIME ZONE 'UTC')::date;
    CREATE TABLE daily_usage (
        day date NOT NULL, tenant_id text NOT NULL, key_id text NOT NULL, model text NOT NULL,
        requests bigint NOT NULL, prompt_tokens bigint NOT NULL, output_tokens bigint NOT NULL,
        PRIMARY KEY (day, tenant_id, key_id, model)
    );
    CREATE VIEW usage AS
        SELECT day, tenant_id, key_id, model, sum(requests)::bigint AS requests,
            sum(prompt_tokens)::bigint AS prompt_tokens, sum(output_tokens)::bigint AS output_tokens
        FROM (
            SELECT day, tenant_id, key_id, model, requests, prompt_tokens, output_tokens FROM daily_usage
            UNION ALL
            SELECT day_of(settled_at), tenant_id, key_id, model, 1, prompt_tokens, output_tokens FROM ledger
        ) AS charges
        GROUP BY day, tenant_id, key_id, model;
    CREATE FUNCTION hold_partitions(the_owner text, the_partitions smallint[], the_epochs bigint[]) RETURNS void
    LANGUAGE plpgsql AS $$
        DECLARE held integer;
        BEGIN
            PERFORM 1 FROM partitions
                JOIN unnest(the_partitions, the_epochs) AS named (partition, epoch) USING (partition)
                WHERE partitions.owner = the_owner AND partitions.epoch = named.epoch
                ORDER BY partition FOR SHARE OF partitions;
            GET DIAGNOSTICS held = ROW_COUNT;
            IF held <> cardinality(the_partitions) THEN
                RAISE 'another process has taken over % of % partitions of %',
                    cardinality(the_partitions) - held, cardinality(the_partitions), the_owner
                    USING ERRCODE = 'PN001';
            END IF;
        END
    $$;
    CREATE FUNCTION begin_batch(the_owner text, the_batch bigint) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
            UPDATE writers SET batch = the_batch, is_applied = true WHERE owner = the_owner AND batch = the_batch - 1;
            IF NOT FOUND THEN
                RAISE 'batch % of % does not follow its latest one', the_batch, the_owner USING ERRCODE = 'PN002';
            END IF;
        END
    $$;
    """,
    """
    ALTER TABLE writers ADD COLUMN address text NOT NULL DEFAULT '',
        ADD COLUMN lease_until timestamptz NOT NULL DEFAULT '-infinity',
        ADD COLUMN takes boolean NOT NULL DEFAULT false, ADD COLUMN edges integer NOT NULL DEFAULT 0;
    CREATE TABLE catalog (version bigint NOT NULL);
    INSERT INTO catalog VALUES (0);
    """,
    """
    ALTER TABLE tenants ADD COLUMN policy text NOT NULL DEFAULT '';
    ALTER TABLE keys ADD COLUMN policy text NOT NULL DEFAULT '';
    ALTER TABLE reservations ADD COLUMN reserved_nanos bigint NOT NULL DEFAULT 0;
    CREATE TABLE scope_uses (
        tenant_id text NOT NULL, scope text NOT NULL, requests_full_at bigint NOT NULL, input_full_at bigint NOT NULL,
        output_full_at bigint NOT NULL, tokens_full_at bigint NOT NULL, counted_since double precision NOT NULL,
        day_start bigint NOT NULL, day_tokens bigint NOT NULL, day_nanos bigint NOT NULL, month_start bigint NOT NULL,
        month_tokens bigint NOT NULL, month_nanos bigint NOT NULL, partition smallint NOT NULL,
        PRIMARY KEY (tenant_id, scope)
    ) WITH (fillfactor = 50);
    CREATE INDEX scope_uses_by_scope ON scope_uses (scope);
    CREATE TABLE prices (
        model text PRIMARY KEY, input_nanos bigint NOT NULL, cached_input_nanos bigint NOT NULL,
        output_nanos bigint NOT NULL
    );
    """,
    LEDGER_BY_DAY,
    """
    CREATE TABLE routes (
        name text NOT NULL, tenant_id text NOT NULL, revision bigint NOT NULL, definition text NOT NULL,
        former text NOT NULL, PRIMARY KEY (name, tenant_id)
    );
    """,
    STORED_RESPONSES,
    """
    ALTER TABLE reservations
        ADD COLUMN priority smallint NOT NULL DEFAULT 0, ADD COLUMN is_delegated boolean NOT NULL DEFAULT false;
    ALTER TABLE ledger
        ADD COLUMN priority smallint NOT NULL DEFAULT 0, ADD COLUMN is_delegated boolean NOT NULL DEFAULT false;
    """,
    """
    CREATE TABLE region_shares (
        tenant_id text NOT NULL, scope text NOT NULL, region text NOT NULL, rates integer NOT NULL,
        budgets integer NOT NULL, partition smallint NOT NULL, PRIMARY KEY (tenant_id, scope, region)
    );
    CREATE INDEX region_shares_by_scope ON region_shares (scope);
    """,
    """
    ALTER TABLE catalog ADD COLUMN home text NOT NULL DEFAULT '';
    """,
    REPORTED_USAGE,
)


def migrate(connection: "psycopg.Connection[Row]") -> None:
    """Migrate the database to the present version in one transaction. Raises StoreTooNew."""
    with connection.transaction():
        if postgres.migrate(connection, MIGRATIONS, table=VERSION_TABLE, lock=MIGRATION_LOCK):
            for name in SHARED_SECRETS:
                statement = "INSERT INTO secrets VALUES (%s, %s) ON CONFLICT DO NOTHING"
                connection.execute(statement, (name, secrets.token_bytes(SECRET_BYTES)))
