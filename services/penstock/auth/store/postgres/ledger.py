"""The ledger in PostgreSQL: moves rows to daily totals."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psycopg

from penstock.auth.store.postgres.connection import BEGIN, StoreConnection, roll_back
from penstock.auth.store.postgres.ownership import hold, is_taken

_NEWEST_LOST = """
    SELECT settled_at FROM ledger WHERE outcome = 'lost' ORDER BY settled_at DESC, reservation_id DESC LIMIT 1 OFFSET %s
"""
# One statement: a row is counted by the process that deletes it.
_MOVE = """
    WITH due AS (
        SELECT reservation_id FROM ledger WHERE outcome {is_lost} 'lost' AND settled_at < %s
        ORDER BY settled_at, reservation_id LIMIT %s
    ),
    moved AS (
        DELETE FROM ledger USING due WHERE ledger.reservation_id = due.reservation_id
        RETURNING day_of(settled_at) AS day, tenant_id, key_id, model, prompt_tokens, output_tokens
    ),
    totals AS (
        INSERT INTO daily_usage
        SELECT day, tenant_id, key_id, model, count(*), sum(prompt_tokens), sum(output_tokens)
        FROM moved GROUP BY 1, 2, 3, 4
        ON CONFLICT (day, tenant_id, key_id, model) DO UPDATE SET requests = daily_usage.requests + excluded.requests,
            prompt_tokens = daily_usage.prompt_tokens + excluded.prompt_tokens,
            output_tokens = daily_usage.output_tokens + excluded.output_tokens
    )
    SELECT count(*) FROM moved
"""
_MOVE_LOST, _MOVE_SETTLED = _MOVE.format(is_lost="="), _MOVE.format(is_lost="<>")


ROLL_UP_PARTITION = 0  # its owner rolls the whole ledger up


@dataclass(eq=False)
class PostgresLedger:
    """The ledger of a database, over the connection that the backend has at the time."""

    connected: Callable[[], StoreConnection | None]
    owner: str
    epochs: Mapping[int, int]  # of the partitions that this process owns at the time

    def count_rows(self) -> int:
        return self._value("SELECT count(*) FROM ledger", ()) or 0

    def transact(self, work: Callable[[], int]) -> int | None:
        connection, epoch = self.connected(), self.epochs.get(ROLL_UP_PARTITION)
        if connection is None or connection.closed or epoch is None:
            return None
        try:
            with connection.pipeline():  # the answers are awaited with that to the first move, and with the commit
                connection.execute(BEGIN)
                connection.execute(*hold(self.owner, [(ROLL_UP_PARTITION, epoch)]))
                moved = work()
                connection.execute("COMMIT")
        except psycopg.Error as error:
            roll_back(connection)
            is_taken(error)  # the next look finds out which partitions were taken
            return None
        return moved

    def newest_lost(self, skip: int) -> float | None:
        return self._value(_NEWEST_LOST, (skip,))

    def move(self, *, lost: bool, before: float, count: int) -> int:
        return self._value(_MOVE_LOST if lost else _MOVE_SETTLED, (before, count)) or 0

    def _value(self, statement: str, values: tuple[object, ...]) -> "int | None":
        connection = self.connected()
        if connection is None:
            return None
        row = connection.execute(statement, values).fetchone()
        return row[0] if row else None
