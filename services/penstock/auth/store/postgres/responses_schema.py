"""Tables of stored responses in PostgreSQL.

Keys have the collation "C", in whose order rows are locked. `lease_until` changes with each extension and is in no
index, so that these updates leave the indexes as they are.
"""

STORED_RESPONSES = """
    CREATE TABLE responses (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant_id text COLLATE "C" NOT NULL,
        response_id text COLLATE "C" NOT NULL, previous_response_id text COLLATE "C" NOT NULL,
        background boolean NOT NULL, created_at double precision NOT NULL, expires_at double precision NOT NULL,
        status smallint NOT NULL, epoch bigint NOT NULL, lease_until double precision NOT NULL,
        cancel_requested boolean NOT NULL, token_count bigint NOT NULL, context_bytes bigint NOT NULL,
        size bigint NOT NULL, UNIQUE (tenant_id, response_id)
    ) WITH (fillfactor = 70);
    CREATE INDEX responses_by_expiry ON responses (expires_at);
    CREATE INDEX responses_in_progress ON responses (number) WHERE status = 1;
    CREATE TABLE response_contents (
        number bigint NOT NULL REFERENCES responses ON DELETE CASCADE, kind text NOT NULL, sealed bytea NOT NULL,
        PRIMARY KEY (number, kind)
    );
    ALTER TABLE response_contents ALTER COLUMN sealed SET STORAGE EXTERNAL;
    CREATE TABLE response_tokens (
        number bigint NOT NULL REFERENCES responses ON DELETE CASCADE, first_index bigint NOT NULL,
        token_count bigint NOT NULL, parts bytea NOT NULL, PRIMARY KEY (number, first_index)
    );
    ALTER TABLE response_tokens ALTER COLUMN parts SET STORAGE EXTERNAL;
    CREATE TABLE response_usage (
        tenant_id text COLLATE "C" PRIMARY KEY, bytes bigint NOT NULL, responses bigint NOT NULL
    ) WITH (fillfactor = 50);
"""
