"""Statements of the store, for SQLite and PostgreSQL. A value is written as `?`; SQLite ignores the locks of rows."""

from collections.abc import Sequence

import orjson

from penstock.batch.jobs.batch import Batch, Status
from penstock.chassis.database.statements import Row, Transaction

# ruff: noqa: S608  # all parts of the statements are constants
FILE_COLUMNS = "file_id, tenant_id, filename, purpose, size_bytes, created_at, expires_at"
BATCH_COLUMNS = (
    "batch_id, tenant_id, key_id, delegation, endpoint, input_file_id, completion_window, output_ttl, metadata, status,"
    " created_at, started_at, finalizing_at, ended_at, cancelled_at, expired, failure_reason, failure_message, lines,"
    " completed, failed, input_tokens, output_tokens, output_file_id, error_file_id"
)
_NEW_COLUMNS = f"{BATCH_COLUMNS}, idempotency_key"
_NEW_VALUES = ", ".join("?" for _ in _NEW_COLUMNS.split(","))
EARLY_EPOCHS = 3  # leases of a chunk after which it comes first
CHANGING_COLUMNS = (
    "status = ?, started_at = ?, finalizing_at = ?, ended_at = ?, cancelled_at = ?, expired = ?, failure_reason = ?,"
    " failure_message = ?, lines = ?, completed = ?, failed = ?, input_tokens = ?, output_tokens = ?,"
    " output_file_id = ?, error_file_id = ?"
)

ADD_FILE = f"INSERT INTO files ({FILE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
FIND_FILE = f"SELECT {FILE_COLUMNS} FROM files WHERE tenant_id = ? AND file_id = ? AND expires_at > ?"
LOCK_FILE = f"{FIND_FILE} FOR UPDATE"  # a file is not deleted while a batch of it is created
LIST_FILES = f"""
    SELECT {FILE_COLUMNS} FROM files WHERE tenant_id = ? AND expires_at > ? AND (? = 0 OR purpose = ?)
        AND (created_at, file_id) < (?, ?)
    ORDER BY created_at DESC, file_id DESC LIMIT ?
"""
BYTES_OF_TENANT = "SELECT CAST(coalesce(sum(size_bytes), 0) AS bigint) FROM files WHERE tenant_id = ?"
DELETE_FILE = "DELETE FROM files WHERE file_id = ?"
EXPIRED_FILES = "SELECT file_id FROM files WHERE expires_at <= ? ORDER BY expires_at LIMIT ?"
READERS_OF_FILE = "SELECT 1 FROM batches WHERE input_file_id = ? AND status IN (1, 2, 3, 7) LIMIT 1"
HAS_FILE = "SELECT 1 FROM files WHERE file_id = ?"
FILE_OF_BATCH = f"SELECT {FILE_COLUMNS} FROM files WHERE file_id = ?"

# Adds none if the tenant has a batch of this idempotency key.
ADD_BATCH = f"INSERT INTO batches ({_NEW_COLUMNS}) VALUES ({_NEW_VALUES}) ON CONFLICT DO NOTHING RETURNING number"
FIND_CREATED = f"SELECT number, {BATCH_COLUMNS} FROM batches WHERE tenant_id = ? AND idempotency_key = ?"
FORGET_KEY = """
    UPDATE batches SET idempotency_key = NULL WHERE tenant_id = ? AND idempotency_key = ? AND created_at <= ?
"""
FIND_BATCH = f"SELECT number, {BATCH_COLUMNS} FROM batches WHERE tenant_id = ? AND batch_id = ?"
LOCK_BATCH_OF_TENANT = f"{FIND_BATCH} FOR UPDATE"
READ_BATCH = f"SELECT number, {BATCH_COLUMNS} FROM batches WHERE number = ?"
LOCK_BATCH = f"{READ_BATCH} FOR UPDATE"
LIST_BATCHES = f"""
    SELECT number, {BATCH_COLUMNS} FROM batches WHERE tenant_id = ? AND (created_at, batch_id) < (?, ?)
    ORDER BY created_at DESC, batch_id DESC LIMIT ?
"""
OPEN_OF_TENANT = "SELECT count(*) FROM batches WHERE tenant_id = ? AND status IN (1, 2, 3, 7)"
ENDED_BATCHES = """
    SELECT number FROM batches WHERE status IN (4, 5, 6, 8) AND ended_at + output_ttl <= ? ORDER BY number LIMIT ?
"""
DELETE_BATCH = "DELETE FROM batches WHERE number = ?"
UPDATE_BATCH = f"UPDATE batches SET {CHANGING_COLUMNS} WHERE number = ?"
FIND_PLACE = "SELECT created_at FROM batches WHERE tenant_id = ? AND batch_id = ?"
FIND_FILE_PLACE = "SELECT created_at FROM files WHERE tenant_id = ? AND file_id = ?"

# A batch whose file has to be divided, or whose output has to be written once replicas hold none of its chunks.
DUE_JOB = f"""
    SELECT number, {BATCH_COLUMNS} FROM batches
    WHERE status IN (1, 3, 7) AND job_until <= ? AND (status = 1 OR NOT EXISTS (
        SELECT 1 FROM chunks WHERE chunks.number = batches.number AND has_ended = 0 AND lease_until > ?
    ))
    ORDER BY number LIMIT 1 FOR UPDATE SKIP LOCKED
"""
# When the next window ends, or the next batch is due because a replica has lost its job or its chunks.
NEXT_JOB = """
    SELECT min(CASE
        WHEN status = 2 THEN created_at + completion_window
        WHEN job_until > ? THEN job_until
        ELSE (SELECT max(lease_until) FROM chunks WHERE chunks.number = batches.number AND has_ended = 0)
    END)
    FROM batches WHERE status IN (1, 2, 3, 7)
"""
HOLD_JOB = """
    UPDATE batches SET job_epoch = job_epoch + 1, job_until = ?, has_rows = 1 WHERE number = ? RETURNING job_epoch
"""
RENEW_JOB = "UPDATE batches SET job_until = ? WHERE number = ? AND job_epoch = ? RETURNING number"
LAPSING = f"""
    SELECT number, {BATCH_COLUMNS} FROM batches WHERE status = 2 AND created_at + completion_window <= ?
    FOR UPDATE SKIP LOCKED
"""

ADD_CHUNK = "INSERT INTO chunks (number, first_line, line_count, byte_offset, byte_length) VALUES (?, ?, ?, ?, ?)"
DROP_CHUNKS = "DELETE FROM chunks WHERE number = ?"
# Each batch that runs, with the number of chunks that replicas hold, and the end of the first of their leases.
RUNNING = """
    SELECT number, tenant_id, lines, completed + failed, created_at + completion_window, started_at,
        (SELECT count(*) FROM chunks WHERE chunks.number = batches.number AND has_ended = 0 AND lease_until > ?),
        (SELECT min(lease_until) FROM chunks WHERE chunks.number = batches.number AND has_ended = 0 AND lease_until > ?)
    FROM batches WHERE status = 2
"""
_FREE_CHUNKS = "SELECT first_line FROM chunks WHERE number = ? AND has_ended = 0 AND lease_until <= ?"
_EARLIEST = "ORDER BY lease_until, first_line LIMIT ? FOR UPDATE SKIP LOCKED"
# Chunks whose holder has died come first: auth charges a line once as long as it runs again within about a minute. One
# that outlives many holders, and may have ended them, comes last.
HOLD_CHUNKS = f"""
    WITH lost AS MATERIALIZED ({_FREE_CHUNKS} AND lease_until > 0 AND epoch <= {EARLY_EPOCHS} {_EARLIEST}),
    others AS MATERIALIZED ({_FREE_CHUNKS} {_EARLIEST}),
    free AS MATERIALIZED (
        SELECT 1 AS place, first_line FROM lost
        UNION ALL SELECT 2, first_line FROM others WHERE first_line NOT IN (SELECT first_line FROM lost)
        ORDER BY place, first_line LIMIT ?
    )
    UPDATE chunks SET epoch = epoch + 1, lease_until = ?
    WHERE number = ? AND first_line IN (SELECT first_line FROM free)
    RETURNING first_line, line_count, epoch
"""
_CHUNK = """
    SELECT batch_id, first_line, number, line_count, epoch, has_ended, status FROM batches JOIN chunks USING (number)
    WHERE batch_id = ? AND first_line = ?
"""
# For what may change the batch, too: it is locked before its chunks, as by `DUE_JOB` and `END_CHUNKS`.
LOCK_CHUNK = f"{_CHUNK} FOR UPDATE"
LOCK_CHUNK_ALONE = f"{_CHUNK} FOR UPDATE OF chunks"
LEASE_CHUNK = "UPDATE chunks SET lease_until = ? WHERE number = ? AND first_line = ?"
END_CHUNK = "UPDATE chunks SET has_ended = 1, lease_until = 0 WHERE number = ? AND first_line = ?"
END_CHUNKS = """
    WITH open AS MATERIALIZED (
        SELECT first_line FROM chunks WHERE number = ? AND has_ended = 0 ORDER BY first_line FOR UPDATE
    )
    UPDATE chunks SET has_ended = 1, lease_until = 0
    WHERE number = ? AND first_line IN (SELECT first_line FROM open)
"""
CHUNKS_FROM = """
    SELECT first_line, line_count, byte_offset, byte_length FROM chunks WHERE number = ? AND first_line >= ?
    ORDER BY first_line LIMIT 1
"""
OPEN_CHUNK = "SELECT 1 FROM chunks WHERE number = ? AND has_ended = 0 ORDER BY lease_until LIMIT 1"  # by the index
PLACE_OF_CHUNK = """
    SELECT chunks.number, input_file_id, byte_offset, byte_length FROM chunks JOIN batches USING (number)
    WHERE batch_id = ? AND first_line = ?
"""

ADD_RESULT = """
    INSERT INTO results (number, line, is_error, content) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING
    RETURNING number, line
"""
ADD_COUNTS = """
    UPDATE batches SET completed = completed + ?, failed = failed + ?, input_tokens = input_tokens + ?,
        output_tokens = output_tokens + ?
    WHERE number = ?
"""
LINES_WITH_RESULT = "SELECT line FROM results WHERE number = ? AND line >= ? AND line < ?"
COUNT_RESULTS = "SELECT count(*) FROM results WHERE number = ? AND line >= ? AND line < ?"
RESULT_SIZES = "SELECT line, length(content) FROM results WHERE number = ? AND line > ? ORDER BY line LIMIT ?"
READ_RESULTS = "SELECT line, is_error, content FROM results WHERE number = ? AND line > ? AND line <= ? ORDER BY line"

# A batch that has ended, whose results and chunks are deleted in slices.
BATCH_WITH_ROWS = """
    SELECT number FROM batches WHERE has_rows = 1 AND status IN (4, 5, 6, 8) ORDER BY number LIMIT 1
    FOR UPDATE SKIP LOCKED
"""
FIRST_RESULT = "SELECT min(line) FROM results WHERE number = ?"
DROP_RESULTS = "DELETE FROM results WHERE number = ? AND line < ?"
FORGET_ROWS = "UPDATE batches SET has_rows = 0 WHERE number = ?"


def batch_of(row: Row) -> Batch:
    """Return a batch of its number and `BATCH_COLUMNS`."""
    number, batch_id, tenant_id, key_id, delegation, endpoint, input_file_id, window, ttl, metadata, *rest = row
    status, created, started, finalizing, ended, cancelled, expired, reason, message, *counts = rest
    lines, completed, failed, input_tokens, output_tokens, output_file_id, error_file_id = counts
    return Batch(
        batch_id=batch_id,
        tenant_id=tenant_id,
        key_id=key_id,
        delegation=bytes(delegation),
        endpoint=endpoint,
        input_file_id=input_file_id,
        window=window,
        output_ttl=ttl,
        metadata=orjson.loads(metadata),
        status=Status(status),
        created_at=created,
        started_at=started,
        finalizing_at=finalizing,
        ended_at=ended,
        cancelled_at=cancelled,
        expired=bool(expired),
        failure_reason=reason,
        failure_message=message,
        lines=lines,
        completed=completed,
        failed=failed,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        output_file_id=output_file_id,
        error_file_id=error_file_id,
        number=number,
    )


def new_row(batch: Batch, idempotency_key: str) -> Sequence[object]:
    """Return the values of `ADD_BATCH`."""
    fixed = batch.batch_id, batch.tenant_id, batch.key_id, batch.delegation, batch.endpoint, batch.input_file_id
    metadata = orjson.dumps(dict(batch.metadata)).decode()
    status, *rest = changing_row(batch)
    given = batch.window, batch.output_ttl, metadata
    return (*fixed, *given, status, batch.created_at, *rest, idempotency_key or None)


def changing_row(batch: Batch) -> Sequence[object]:
    """Return the values of `CHANGING_COLUMNS`."""
    times = batch.started_at, batch.finalizing_at, batch.ended_at, batch.cancelled_at, int(batch.expired)
    counts = batch.lines, batch.completed, batch.failed, batch.input_tokens, batch.output_tokens
    failure = batch.failure_reason, batch.failure_message
    return (batch.status.value, *times, *failure, *counts, batch.output_file_id, batch.error_file_id)


def update(transaction: Transaction, batch: Batch) -> None:
    """Write what has changed of a batch that is locked."""
    transaction.write(UPDATE_BATCH, [(*changing_row(batch), batch.number)])
