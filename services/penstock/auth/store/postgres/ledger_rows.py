"""Charges of a batch in the ledger and in the hourly totals, as one statement each."""

from typing import NamedTuple

from penstock.auth.store import rows
from penstock.auth.store.postgres.documents import record_set, selected
from penstock.auth.store.totals import ADDITIONS, COUNTERS, KEYS, OUTCOME_CASES, OUTCOMES, TOKENS, TOTAL_KEY

_INTEGERS, _TIMES = ("bigint",) * 2, ("float8",) * 2
LEDGER_TYPES = (
    *("text",) * 6,
    *_INTEGERS,
    *_TIMES,
    *("float8", "bigint", "bigint", "text"),
    *("text", "bigint", "bytea", "bigint"),
    *("bigint", "bigint", "text", "text"),
    *("smallint", "boolean"),
    "smallint",
)
LEDGER_COLUMNS = [*(each.strip() for each in rows.LEDGER_COLUMNS.split(",")), "partition"]

# ruff: noqa: S608  # all parts of the statements are constants
_KEY = "reserved_at, reservation_id"
_NAMES = ", ".join(LEDGER_COLUMNS)
_REPLACEMENTS = ", ".join(f"{each} = excluded.{each}" for each in LEDGER_COLUMNS if each not in _KEY.split(", "))
_TOTAL_NAMES = ", ".join(("hour", *KEYS, *COUNTERS))
_CASES = ", ".join(f"({OUTCOME_CASES[each]})::int AS {each}" for each in OUTCOMES)
_SUMS = ", ".join(f"sum({each})" for each in COUNTERS)
# In the order of the key, so that transactions that write the same totals cannot wait for each other in a circle.
_ADD_TO_TOTALS = f"""
    INSERT INTO hourly_usage ({_TOTAL_NAMES})
    SELECT hour, {", ".join(KEYS)}, {_SUMS} FROM counted GROUP BY hour, {", ".join(KEYS)}
    ORDER BY {", ".join(TOTAL_KEY)}
    ON CONFLICT ({", ".join(TOTAL_KEY)}) DO UPDATE SET {ADDITIONS}
"""
# The revision is a time, so that it also grows if the database is restored to an earlier state.
_ADD_TO_UNREPORTED_TOTALS = f"""
    INSERT INTO hourly_usage ({_TOTAL_NAMES}, revision, is_unreported)
    SELECT hour, {", ".join(KEYS)}, {_SUMS}, (extract(epoch FROM statement_timestamp()) * 1e6)::bigint, true
    FROM counted GROUP BY hour, {", ".join(KEYS)}
    ORDER BY {", ".join(TOTAL_KEY)}
    ON CONFLICT ({", ".join(TOTAL_KEY)}) DO UPDATE SET {ADDITIONS},
        revision = greatest(hourly_usage.revision + 1, excluded.revision), is_unreported = true
"""
# A row that exists was counted before.
_PUT_CHARGES = f"""
    WITH charged AS (
        INSERT INTO ledger ({_NAMES}) SELECT {selected(LEDGER_TYPES)} FROM {record_set(LEDGER_TYPES)}
        ON CONFLICT ({_KEY}) DO NOTHING
        RETURNING {", ".join((*KEYS, *TOKENS))}, settled_at, outcome
    ),
    counted AS (
        SELECT hour_of(settled_at) AS hour, {", ".join(KEYS)}, 1 AS requests, {", ".join(TOKENS)}, {_CASES} FROM charged
    )
"""
# Counts rows that were written by other means, such as COPY: those of reservations of a range of time.
COUNT_ROWS = f"""
    WITH counted AS (
        SELECT hour_of(settled_at) AS hour, {", ".join(KEYS)}, 1 AS requests, {", ".join(TOKENS)}, {_CASES}
        FROM ledger WHERE reserved_at >= %s AND reserved_at < %s
    )
    {_ADD_TO_TOTALS}
"""
# A correction replaces the lost row, and moves its request from the hour in which it was lost to its own. If the row is
# gone, its request stays counted as lost, and the correction adds its tokens. The rows are found one by one, because
# the planner cannot know how few they are.
_CORRECT_CHARGES = f"""
    WITH corrected ({_NAMES}) AS MATERIALIZED (SELECT {selected(LEDGER_TYPES)} FROM {record_set(LEDGER_TYPES)}),
    former AS MATERIALIZED (
        SELECT found.* FROM corrected CROSS JOIN LATERAL (
            SELECT {_KEY}, settled_at, {", ".join((*KEYS, *TOKENS))} FROM ledger
            WHERE ledger.reserved_at = corrected.reserved_at AND ledger.reservation_id = corrected.reservation_id
                AND ledger.outcome = 'lost'
            LIMIT 1
        ) AS found
    ),
    replaced AS (
        INSERT INTO ledger ({_NAMES})
        SELECT {", ".join(f"corrected.{each}" for each in LEDGER_COLUMNS)} FROM corrected JOIN former USING ({_KEY})
        ON CONFLICT ({_KEY}) DO UPDATE SET {_REPLACEMENTS}
    ),
    counted AS (
        SELECT hour_of(settled_at) AS hour, {", ".join(KEYS)}, -1 AS requests,
            {", ".join(f"-{each} AS {each}" for each in TOKENS)},
            {", ".join(f"{-int(each == 'lost')} AS {each}" for each in OUTCOMES)}
        FROM former
        UNION ALL
        SELECT hour_of(corrected.settled_at), {", ".join(f"corrected.{each}" for each in KEYS)}, is_here,
            {", ".join(f"corrected.{each}" for each in TOKENS)},
            {", ".join(f"is_here * (corrected.{OUTCOME_CASES[each]})::int" for each in OUTCOMES)}
        FROM corrected
        LEFT JOIN former USING ({_KEY})
        CROSS JOIN LATERAL (SELECT (former.reservation_id IS NOT NULL)::int AS is_here) AS found
    )
"""


class ChargeStatements(NamedTuple):
    """Statements that write charges and count them, each of many rows."""

    put: str
    correct: str


CHARGES = ChargeStatements(f"{_PUT_CHARGES}{_ADD_TO_TOTALS}", f"{_CORRECT_CHARGES}{_ADD_TO_TOTALS}")
UNREPORTED_CHARGES = ChargeStatements(
    f"{_PUT_CHARGES}{_ADD_TO_UNREPORTED_TOTALS}", f"{_CORRECT_CHARGES}{_ADD_TO_UNREPORTED_TOTALS}"
)
