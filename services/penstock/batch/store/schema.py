"""The schema of the store, for each database. Times are Unix seconds of the database's clock.

Scripts are added, never changed. Ids have the collation "C" in PostgreSQL, as in SQLite: pages follow their order.
"""

SQLITE_MIGRATIONS = (
    """
    CREATE TABLE files (
        file_id TEXT PRIMARY KEY, tenant_id TEXT NOT NULL, filename TEXT NOT NULL, purpose INTEGER NOT NULL,
        size_bytes INTEGER NOT NULL, created_at REAL NOT NULL, expires_at REAL NOT NULL
    ) STRICT;
    CREATE INDEX files_of_tenant ON files (tenant_id, created_at, file_id);
    CREATE INDEX files_by_expiry ON files (expires_at);
    CREATE TABLE batches (
        number INTEGER PRIMARY KEY, batch_id TEXT NOT NULL UNIQUE, tenant_id TEXT NOT NULL, key_id TEXT NOT NULL,
        delegation BLOB NOT NULL, endpoint TEXT NOT NULL, input_file_id TEXT NOT NULL, completion_window REAL NOT NULL,
        output_ttl REAL NOT NULL, metadata TEXT NOT NULL, status INTEGER NOT NULL, created_at REAL NOT NULL,
        started_at REAL NOT NULL, finalizing_at REAL NOT NULL, ended_at REAL NOT NULL, cancelled_at REAL NOT NULL,
        expired INTEGER NOT NULL, failure_reason TEXT NOT NULL, failure_message TEXT NOT NULL, lines INTEGER NOT NULL,
        completed INTEGER NOT NULL, failed INTEGER NOT NULL, input_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL, output_file_id TEXT NOT NULL, error_file_id TEXT NOT NULL,
        job_epoch INTEGER NOT NULL DEFAULT 0, job_until REAL NOT NULL DEFAULT 0, has_rows INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE INDEX batches_of_tenant ON batches (tenant_id, created_at, batch_id);
    CREATE INDEX batches_by_status ON batches (status);
    CREATE INDEX batches_with_rows ON batches (number) WHERE has_rows = 1;
    CREATE TABLE chunks (
        number INTEGER NOT NULL REFERENCES batches ON DELETE CASCADE, first_line INTEGER NOT NULL,
        line_count INTEGER NOT NULL, byte_offset INTEGER NOT NULL, byte_length INTEGER NOT NULL,
        has_ended INTEGER NOT NULL DEFAULT 0, epoch INTEGER NOT NULL DEFAULT 0, lease_until REAL NOT NULL DEFAULT 0,
        PRIMARY KEY (number, first_line)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX chunks_open ON chunks (number, lease_until, first_line) WHERE has_ended = 0;
    CREATE TABLE results (
        number INTEGER NOT NULL REFERENCES batches ON DELETE CASCADE, line INTEGER NOT NULL, is_error INTEGER NOT NULL,
        content BLOB NOT NULL, PRIMARY KEY (number, line)
    ) STRICT;  -- without a rowid, a row of more than 1 KiB would have a page of its own
    """,
    """
    ALTER TABLE batches ADD COLUMN idempotency_key TEXT;
    CREATE UNIQUE INDEX batches_by_key ON batches (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
    """,
)

POSTGRES_MIGRATIONS = (
    """
    CREATE TABLE files (
        file_id text COLLATE "C" PRIMARY KEY, tenant_id text COLLATE "C" NOT NULL, filename text NOT NULL,
        purpose smallint NOT NULL, size_bytes bigint NOT NULL, created_at double precision NOT NULL,
        expires_at double precision NOT NULL
    );
    CREATE INDEX files_of_tenant ON files (tenant_id, created_at, file_id);
    CREATE INDEX files_by_expiry ON files (expires_at);
    CREATE TABLE batches (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, batch_id text COLLATE "C" NOT NULL UNIQUE,
        tenant_id text COLLATE "C" NOT NULL, key_id text NOT NULL, delegation bytea NOT NULL, endpoint text NOT NULL,
        input_file_id text COLLATE "C" NOT NULL, completion_window double precision NOT NULL,
        output_ttl double precision NOT NULL, metadata text NOT NULL, status smallint NOT NULL,
        created_at double precision NOT NULL, started_at double precision NOT NULL,
        finalizing_at double precision NOT NULL, ended_at double precision NOT NULL,
        cancelled_at double precision NOT NULL, expired smallint NOT NULL, failure_reason text NOT NULL,
        failure_message text NOT NULL, lines bigint NOT NULL, completed bigint NOT NULL, failed bigint NOT NULL,
        input_tokens bigint NOT NULL, output_tokens bigint NOT NULL, output_file_id text NOT NULL,
        error_file_id text NOT NULL, job_epoch bigint NOT NULL DEFAULT 0,
        job_until double precision NOT NULL DEFAULT 0, has_rows smallint NOT NULL DEFAULT 0
    ) WITH (fillfactor = 50);
    CREATE INDEX batches_of_tenant ON batches (tenant_id, created_at, batch_id);
    CREATE INDEX batches_by_status ON batches (status);
    CREATE INDEX batches_with_rows ON batches (number) WHERE has_rows = 1;
    CREATE TABLE chunks (
        number bigint NOT NULL REFERENCES batches ON DELETE CASCADE, first_line bigint NOT NULL,
        line_count integer NOT NULL, byte_offset bigint NOT NULL, byte_length bigint NOT NULL,
        has_ended smallint NOT NULL DEFAULT 0, epoch bigint NOT NULL DEFAULT 0,
        lease_until double precision NOT NULL DEFAULT 0, PRIMARY KEY (number, first_line)
    );
    CREATE INDEX chunks_open ON chunks (number, lease_until, first_line) WHERE has_ended = 0;
    CREATE TABLE results (
        number bigint NOT NULL REFERENCES batches ON DELETE CASCADE, line bigint NOT NULL, is_error smallint NOT NULL,
        content bytea NOT NULL, PRIMARY KEY (number, line)
    );
    """,
    """
    ALTER TABLE batches ADD COLUMN idempotency_key text COLLATE "C";
    CREATE UNIQUE INDEX batches_by_key ON batches (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
    """,
)
