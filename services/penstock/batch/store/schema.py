"""The schema of the store. Times are Unix seconds."""

# For SQLite; one script per version. Scripts are added, never changed.
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
        job_epoch INTEGER NOT NULL DEFAULT 0, job_until REAL NOT NULL DEFAULT 0
    ) STRICT;
    CREATE INDEX batches_of_tenant ON batches (tenant_id, created_at, batch_id);
    CREATE INDEX batches_open ON batches (status) WHERE status IN (1, 2, 3, 7);
    CREATE TABLE chunks (
        number INTEGER NOT NULL REFERENCES batches ON DELETE CASCADE, first_line INTEGER NOT NULL,
        line_count INTEGER NOT NULL, byte_offset INTEGER NOT NULL, byte_length INTEGER NOT NULL,
        has_ended INTEGER NOT NULL DEFAULT 0, epoch INTEGER NOT NULL DEFAULT 0, lease_until REAL NOT NULL DEFAULT 0,
        PRIMARY KEY (number, first_line)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX chunks_open ON chunks (number, lease_until) WHERE has_ended = 0;
    CREATE TABLE results (
        number INTEGER NOT NULL REFERENCES batches ON DELETE CASCADE, line INTEGER NOT NULL, is_error INTEGER NOT NULL,
        content BLOB NOT NULL, PRIMARY KEY (number, line)
    ) STRICT, WITHOUT ROWID;
    """,
)
