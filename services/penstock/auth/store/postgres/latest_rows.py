"""The latest rows of the ledger, which a new owner of partitions reads: a bounded number, over an index.

The index has the rows of each partition of tenants in the order of their settlement, so that the rows of a few
partitions are as easy to read as those of all.
"""

import math

import psycopg

from penstock.auth.store import rows
from penstock.auth.store.rows import Row

# s before the newest row. The latest rows of all partitions are looked for in the first window, and in the second one
# if the first has too few of them. An answer that is continued a day later is charged separately.
CHARGE_WINDOWS_S = (600.0, 86_400.0)
LOST_WINDOWS_S = (math.inf,)  # few rows, each of which an edge may still settle

_NEWEST = """
    SELECT max(newest.settled_at) FROM unnest(%(partitions)s::smallint[]) AS owned (number) CROSS JOIN LATERAL (
        SELECT settled_at FROM ledger WHERE ledger.partition = owned.number AND {condition}
        ORDER BY settled_at DESC, reservation_id DESC LIMIT 1
    ) AS newest
"""
_LATEST = """
    SELECT {columns} FROM unnest(%(partitions)s::smallint[]) AS owned (number) CROSS JOIN LATERAL (
        SELECT * FROM ledger WHERE ledger.partition = owned.number AND {condition} AND settled_at >= %(since)s
        ORDER BY settled_at DESC, reservation_id DESC LIMIT %(count)s
    ) AS latest
    ORDER BY settled_at DESC, reservation_id DESC LIMIT %(count)s
"""
_LOST, _SETTLED = "outcome = 'lost'", "outcome <> 'lost'"


def latest_lost(connection: "psycopg.Connection[Row]", partitions: list[int], count: int) -> list[Row]:
    """Return the latest lost rows of these partitions of tenants, newest first."""
    return _latest(connection, rows.CHARGED_RESERVATION_COLUMNS, _LOST, partitions, count, windows=LOST_WINDOWS_S)


def latest_charges(connection: "psycopg.Connection[Row]", partitions: list[int], count: int) -> list[Row]:
    """Return the latest rows of these partitions of tenants without lost ones, newest first, of at most a day."""
    return _latest(connection, rows.LATEST_CHARGE_COLUMNS, _SETTLED, partitions, count, windows=CHARGE_WINDOWS_S)


def _latest(
    connection: "psycopg.Connection[Row]",
    columns: str,
    condition: str,
    partitions: list[int],
    count: int,
    *,
    windows: tuple[float, ...],
) -> list[Row]:
    values = {"partitions": partitions, "count": count}
    newest = connection.execute(_NEWEST.format(condition=condition), values).fetchone()
    if newest is None or newest[0] is None:
        return []
    statement, found = _LATEST.format(columns=columns, condition=condition), []
    for window in windows:
        found = connection.execute(statement, {**values, "since": newest[0] - window}).fetchall()
        if len(found) == count:
            break
    return found
