"""Statements on stored responses, for both databases.

A value is written as `?`. `FOR UPDATE` and `SKIP LOCKED` are for PostgreSQL; SQLite has one writer. Rows are locked in
the order of their keys, and rows of `response_usage` after them in the order of theirs, so that no two transactions
wait for each other.
"""

from penstock.auth.responses.response import Response, Status
from penstock.chassis.database.statements import Row

# ruff: noqa: S608  # all parts of the statements are constants
COLUMNS = (
    "number, tenant_id, response_id, previous_response_id, background, created_at, expires_at, status, epoch,"
    " lease_until, cancel_requested, token_count, context_bytes, size"
)

FIND = f"SELECT {COLUMNS} FROM responses WHERE tenant_id = ? AND response_id = ?"
LOCK = f"{FIND} FOR UPDATE"
INSERT = """
    INSERT INTO responses (tenant_id, response_id, previous_response_id, background, created_at, expires_at, status,
        epoch, lease_until, cancel_requested, token_count, context_bytes, size)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING number
"""
UPDATE = """
    UPDATE responses SET expires_at = ?, status = ?, epoch = ?, lease_until = ?, cancel_requested = ?, token_count = ?,
        context_bytes = ?, size = ?
    WHERE number = ?
"""
DELETE = "DELETE FROM responses WHERE number = ?"
CLAIMABLE = f"""
    SELECT {COLUMNS} FROM responses WHERE status = 1 AND background AND lease_until <= ?
    ORDER BY lease_until LIMIT ? FOR UPDATE SKIP LOCKED
"""
CHAIN = f"""
    WITH RECURSIVE chain AS (
        SELECT {COLUMNS}, 1 AS depth FROM responses WHERE tenant_id = ? AND response_id = ?
        UNION ALL
        SELECT {", ".join(f"responses.{each.strip()}" for each in COLUMNS.split(","))}, depth + 1
        FROM chain JOIN responses
            ON responses.tenant_id = chain.tenant_id AND responses.response_id = chain.previous_response_id
        WHERE depth <= ?
    )
    SELECT {COLUMNS} FROM chain ORDER BY depth DESC
"""
KEEP = "UPDATE responses SET expires_at = ? WHERE tenant_id = ? AND response_id = ? AND expires_at < ?"

PUT_CONTENT = "INSERT INTO response_contents (number, kind, sealed) VALUES (?, ?, ?)"
READ_CONTENTS = "SELECT number, kind, sealed FROM response_contents WHERE number = ? AND kind <> ?"
ERASE_CONTENT = "DELETE FROM response_contents WHERE number = ? AND kind = ? RETURNING length(sealed)"

PUT_TOKENS = "INSERT INTO response_tokens (number, first_index, token_count, parts) VALUES (?, ?, ?, ?)"
READ_TOKENS = """
    SELECT parts FROM response_tokens WHERE number = ? AND first_index >= coalesce(
        (SELECT max(first_index) FROM response_tokens WHERE number = ? AND first_index <= ?), 0)
    ORDER BY first_index
"""
ALL_TOKENS = "SELECT first_index, token_count, parts FROM response_tokens WHERE number = ? ORDER BY first_index"
BEGINS_PART = "SELECT 1 FROM response_tokens WHERE number = ? AND first_index = ?"
DELETE_TOKENS = "DELETE FROM response_tokens WHERE number = ?"
ERASE_TOKENS = "DELETE FROM response_tokens WHERE number = ? AND first_index >= ? RETURNING length(parts)"

ADD_TENANT = "INSERT INTO response_usage (tenant_id, bytes, responses) VALUES (?, 0, 0) ON CONFLICT DO NOTHING"
LOCK_USAGE = "SELECT bytes FROM response_usage WHERE tenant_id = ? FOR UPDATE"
ADD_USAGE = "UPDATE response_usage SET bytes = bytes + ?, responses = responses + ? WHERE tenant_id = ?"
TOTALS = "SELECT coalesce(sum(bytes), 0), coalesce(sum(responses), 0) FROM response_usage"
FORGET_TENANT = "DELETE FROM response_usage WHERE tenant_id = ? AND responses = 0"

LAPSED = f"""
    SELECT {COLUMNS} FROM responses WHERE status = 1 AND cancel_requested AND lease_until <= ?
    LIMIT ? FOR UPDATE SKIP LOCKED
"""
EXPIRED = f"""
    SELECT {COLUMNS} FROM responses WHERE expires_at <= ? AND (status <> 1 OR lease_until <= ?)
    ORDER BY expires_at LIMIT ? FOR UPDATE SKIP LOCKED
"""
OF_TENANT = f"SELECT {COLUMNS} FROM responses WHERE tenant_id = ? ORDER BY response_id LIMIT ? FOR UPDATE"


def response_of(row: Row) -> Response:
    """Return the response of a row with COLUMNS."""
    number, tenant_id, response_id, previous, background, created_at, expires_at, status, epoch, lease_until = row[:10]
    return Response(
        tenant_id=tenant_id,
        response_id=response_id,
        previous_response_id=previous,
        is_background=bool(background),
        created_at=created_at,
        expires_at=expires_at,
        status=Status(status),
        epoch=epoch,
        lease_until=lease_until,
        is_cancel_requested=bool(row[10]),
        token_count=row[11],
        context_bytes=row[12],
        size=row[13],
        number=number,
    )


def insert_values(response: Response) -> Row:
    return (
        *(response.tenant_id, response.response_id, response.previous_response_id, response.is_background),
        *(response.created_at, response.expires_at, int(response.status), response.epoch, response.lease_until),
        *(response.is_cancel_requested, response.token_count, response.context_bytes, response.size),
    )


def update_values(response: Response) -> Row:
    return (
        *(response.expires_at, int(response.status), response.epoch, response.lease_until),
        *(response.is_cancel_requested, response.token_count, response.context_bytes, response.size),
        response.number,
    )
