"""Hourly totals in SQLite: the tables, and the charges that are counted in them."""

import sqlite3

from penstock.auth.quota.reservation import Charge
from penstock.auth.store import rows
from penstock.auth.store.store import ConfirmTotals, PutTotals
from penstock.auth.store.totals import (
    ADDITIONS,
    COUNTERS,
    DAILY_ADDITIONS,
    KEYS,
    REPLACEMENTS,
    counters_of,
    hour_of,
    late_counters_of,
)

# ruff: noqa: S608  # all parts of the statements are constants
_NAMES = ", ".join((*KEYS, *COUNTERS))
_SCRIPT_COLUMNS = """
    tenant_id TEXT NOT NULL, key_id TEXT NOT NULL, model TEXT NOT NULL, region TEXT NOT NULL,
    requests INTEGER NOT NULL DEFAULT 0, prompt_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0, output_tokens INTEGER NOT NULL DEFAULT 0,
    price_nanos INTEGER NOT NULL DEFAULT 0, completed INTEGER NOT NULL DEFAULT 0, cancelled INTEGER NOT NULL DEFAULT 0,
    shed INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0, lost INTEGER NOT NULL DEFAULT 0
"""
# A script of the schema, which is never changed. Earlier daily totals have neither regions nor outcomes.
HOURLY_USAGE = f"""
    ALTER TABLE ledger ADD COLUMN cached_tokens INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE ledger ADD COLUMN price_nanos INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE ledger ADD COLUMN worker TEXT NOT NULL DEFAULT '';
    ALTER TABLE ledger ADD COLUMN region TEXT NOT NULL DEFAULT '';
    CREATE TABLE hourly_usage (
        hour INTEGER NOT NULL, {_SCRIPT_COLUMNS},
        PRIMARY KEY (tenant_id, hour, key_id, model, region)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX hourly_usage_by_hour ON hourly_usage (hour);
    INSERT INTO hourly_usage (hour, tenant_id, key_id, model, region, requests, prompt_tokens, output_tokens, completed,
        cancelled, shed, failed, lost)
        SELECT CAST(settled_at / 3600 AS INTEGER) * 3600, tenant_id, key_id, model, region, count(*),
            sum(prompt_tokens), sum(output_tokens), sum(outcome IN ('stop', 'length')), sum(outcome = 'cancelled'),
            sum(outcome = 'shed'), sum(outcome NOT IN ('stop', 'length', 'cancelled', 'shed', 'lost')),
            sum(outcome = 'lost')
        FROM ledger GROUP BY 1, 2, 3, 4, 5;
    DROP VIEW usage;
    ALTER TABLE daily_usage RENAME TO former_daily_usage;
    CREATE TABLE daily_usage (
        day TEXT NOT NULL, {_SCRIPT_COLUMNS},
        PRIMARY KEY (day, tenant_id, key_id, model, region)
    ) STRICT, WITHOUT ROWID;
    INSERT INTO daily_usage (day, tenant_id, key_id, model, region, requests, prompt_tokens, output_tokens)
    SELECT day, tenant_id, key_id, model, '', requests, prompt_tokens, output_tokens FROM former_daily_usage;
    DROP TABLE former_daily_usage;
    CREATE VIEW usage AS
        SELECT day, tenant_id, key_id, model, sum(requests) AS requests, sum(prompt_tokens) AS prompt_tokens,
            sum(output_tokens) AS output_tokens, sum(cached_tokens) AS cached_tokens, sum(price_nanos) AS price_nanos
        FROM (
            SELECT day, tenant_id, key_id, model, requests, prompt_tokens, output_tokens, cached_tokens, price_nanos
            FROM daily_usage
            UNION ALL
            SELECT date(hour, 'unixepoch'), tenant_id, key_id, model, requests, prompt_tokens, output_tokens,
                cached_tokens, price_nanos
            FROM hourly_usage
        )
        GROUP BY day, tenant_id, key_id, model;
"""

# A script of the schema, as above. Only totals of a region whose usage another one has are ever marked.
REPORTED_USAGE = """
    ALTER TABLE hourly_usage ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE hourly_usage ADD COLUMN is_unreported INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX hourly_usage_unreported ON hourly_usage (hour) WHERE is_unreported;
"""

_INSERT_CHARGE = f"""
    INSERT INTO ledger ({rows.LEDGER_COLUMNS})
    VALUES ({", ".join("?" * len(rows.LEDGER_COLUMNS.split(",")))}) ON CONFLICT DO NOTHING
"""
_FORMER = """
    SELECT settled_at, tenant_id, key_id, model, region, prompt_tokens, cached_tokens, output_tokens, price_nanos
    FROM ledger WHERE reservation_id = ? AND outcome = 'lost'
"""
_DELETE_CHARGE = "DELETE FROM ledger WHERE reservation_id = ?"
_ADD = f"""
    INSERT INTO hourly_usage (hour, {_NAMES}) VALUES ({", ".join("?" * (1 + len(KEYS) + len(COUNTERS)))})
    ON CONFLICT DO UPDATE SET {ADDITIONS}
"""
_ADD_UNREPORTED = f"""
    INSERT INTO hourly_usage (hour, {_NAMES}, revision, is_unreported)
    VALUES ({", ".join("?" * (2 + len(KEYS) + len(COUNTERS)))}, 1)
    ON CONFLICT DO UPDATE SET {ADDITIONS}, revision = max(hourly_usage.revision + 1, excluded.revision),
        is_unreported = 1
"""
_DUE_HOURS = f"""
    SELECT hour, {_NAMES} FROM hourly_usage WHERE hour < ? AND NOT (is_unreported AND ?) ORDER BY hour LIMIT ?
"""
_ADD_TO_DAY = f"""
    INSERT INTO daily_usage (day, {_NAMES}) VALUES (date(?, 'unixepoch'){", ?" * (len(KEYS) + len(COUNTERS))})
    ON CONFLICT DO UPDATE SET {DAILY_ADDITIONS}
"""
_OF_KEY = "hour = ? AND tenant_id = ? AND key_id = ? AND model = ? AND region = ?"
_DELETE_HOUR = f"DELETE FROM hourly_usage WHERE {_OF_KEY}"
_PUT_TOTAL = f"""
    INSERT INTO hourly_usage (hour, {_NAMES}, revision) VALUES ({", ".join("?" * (2 + len(KEYS) + len(COUNTERS)))})
    ON CONFLICT DO UPDATE SET {REPLACEMENTS} WHERE excluded.revision > hourly_usage.revision
"""
_REPLACE_TOTAL = f"""
    UPDATE hourly_usage SET {", ".join(f"{each} = ?" for each in (*COUNTERS, "revision"))}
    WHERE {_OF_KEY} AND revision < ?
"""
_CONFIRM_TOTAL = f"UPDATE hourly_usage SET is_unreported = 0 WHERE {_OF_KEY} AND revision = ?"


def put_charge(connection: sqlite3.Connection, charge: Charge, *, is_reported: bool = False) -> None:
    """Add a row to the ledger and count it. A correction replaces the lost row, and moves its request to its own hour.

    The correction of a row that is gone adds its tokens, because the request is counted as lost. If usage `is_reported`
    to another region, the changed totals are marked.
    """
    revision = (int(charge.settled_at * 1e6),) if is_reported else ()
    add = _ADD_UNREPORTED if is_reported else _ADD
    if charge.is_correction:
        key = (charge.reservation.reservation_id,)
        former = connection.execute(_FORMER, key).fetchone()
        if former is None:
            connection.execute(add, (*_key_of(charge), *late_counters_of(charge), *revision))
            return
        connection.execute(_DELETE_CHARGE, key)
        settled_at, *names = former[:5]
        tokens = (-each for each in former[5:])
        connection.execute(add, (hour_of(settled_at), *names, -1, *tokens, 0, 0, 0, 0, -1, *revision))
    if connection.execute(_INSERT_CHARGE, rows.charge_row(charge)).rowcount:
        connection.execute(add, (*_key_of(charge), *counters_of(charge), *revision))


def _key_of(charge: Charge) -> rows.Row:
    request = charge.reservation.request
    return (hour_of(charge.settled_at), request.tenant_id, request.key_id, request.model, charge.region)


def put_totals(connection: sqlite3.Connection, change: PutTotals) -> None:
    for each in change.totals:
        key = (each.hour, each.tenant_id, each.key_id, each.model, change.region)
        if each.hour >= change.insert_from:
            connection.execute(_PUT_TOTAL, (*key, *each.counters, each.revision))
        else:
            connection.execute(_REPLACE_TOTAL, (*each.counters, each.revision, *key, each.revision))


def confirm_totals(connection: sqlite3.Connection, change: ConfirmTotals) -> None:
    for each in change.totals:
        key = (each.hour, each.tenant_id, each.key_id, each.model, change.region)
        connection.execute(_CONFIRM_TOTAL, (*key, each.revision))


def move_hours(connection: sqlite3.Connection, before: float, count: int, *, keeps_unreported: bool = False) -> int:
    """Move the totals of the first `count` hours before a time to totals of their day. Return their number."""
    due = connection.execute(_DUE_HOURS, (before, keeps_unreported, count)).fetchall()
    connection.executemany(_ADD_TO_DAY, due)
    connection.executemany(_DELETE_HOUR, [each[:5] for each in due])
    return len(due)
