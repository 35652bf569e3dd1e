"""Responses in PostgreSQL: a transaction for each call, on a connection that its thread alone uses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import psycopg
import structlog

from penstock.auth.responses.errors import ResponseStoreUnavailable
from penstock.auth.responses.messages import failed
from penstock.auth.store.postgres.connection import application_name
from penstock.auth.store.responses import statements, upkeep
from penstock.auth.store.responses.backend import ResponseTotals
from penstock.auth.store.responses.operations import ResponseOperations
from penstock.chassis.database.location import StoreLocation
from penstock.chassis.database.postgres import text_of
from penstock.chassis.database.postgres_transaction import PostgresSession, PostgresTransaction
from penstock.chassis.errors import Internal, PenstockError
from penstock.mesh.v1.responses_pb2 import StoreCall, StoreResult

log = structlog.get_logger()

CONNECTIONS = 4  # of each process, each with its thread
STATEMENT_TIMEOUT_S = 1.5  # s; a call has failed after that
OWNER = "responses"  # of the connections' name at the server

Result = TypeVar("Result")

# Forms of statements that have an array for each value; a run for each response costs 40 µs at this end alone.
BY_ARRAY: Mapping[str, str] = {
    statements.LOCK: f"""
        SELECT {statements.COLUMNS} FROM responses WHERE (tenant_id, response_id) IN (
            SELECT * FROM unnest((?)::text[] COLLATE "C", (?)::text[] COLLATE "C")
        ) ORDER BY tenant_id, response_id FOR UPDATE
    """,  # noqa: S608  # constants
    statements.UPDATE: """
        UPDATE responses SET expires_at = new.expires_at, status = new.status, epoch = new.epoch,
            lease_until = new.lease_until, cancel_requested = new.cancel_requested, token_count = new.token_count,
            context_bytes = new.context_bytes, size = new.size
        FROM unnest((?)::float8[], (?)::int2[], (?)::int8[], (?)::float8[], (?)::bool[], (?)::int8[], (?)::int8[],
            (?)::int8[], (?)::int8[])
            AS new (expires_at, status, epoch, lease_until, cancel_requested, token_count, context_bytes, size, number)
        WHERE responses.number = new.number
    """,
    statements.PUT_TOKENS: """
        INSERT INTO response_tokens (number, first_index, token_count, parts)
        SELECT * FROM unnest((?)::int8[], (?)::int8[], (?)::int8[], (?)::bytea[])
    """,
}


@dataclass(eq=False)
class PostgresResponses:
    """One connection. The backend of the ledger has migrated the database."""

    location: StoreLocation
    operations: ResponseOperations
    group_size: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        self._session = PostgresSession(self.location, application_name(OWNER), STATEMENT_TIMEOUT_S, BY_ARRAY)

    def open(self) -> None:
        """Connect at the first call, because the database may go away at any time."""

    def perform(self, calls: Sequence[StoreCall]) -> list[StoreResult]:
        return [self._perform_one(each) for each in calls]

    def _perform_one(self, call: StoreCall) -> StoreResult:
        try:
            with self._session.transaction() as transaction:
                return self.operations.perform(transaction, call)
        except PenstockError as error:
            return failed(call.call_id, error)
        except psycopg.Error as error:
            return failed(call.call_id, ResponseStoreUnavailable(text_of(error)))
        except Exception:  # of one call; later ones are performed
            log.exception("stored_response_failed", operation=call.WhichOneof("operation"))
            return failed(call.call_id, Internal("internal error"))

    def run_upkeep(self) -> bool:
        return self._run(upkeep.run_slice)

    def delete_of_tenant(self, tenant_id: str) -> bool:
        return self._run(lambda transaction: upkeep.delete_of_tenant(transaction, tenant_id))

    def totals(self) -> ResponseTotals:
        return self._run(lambda transaction: ResponseTotals(*map(int, transaction.run(statements.TOTALS)[0])))

    def _run(self, work: Callable[[PostgresTransaction], Result]) -> Result:
        try:
            with self._session.transaction() as transaction:
                return work(transaction)
        except psycopg.Error as error:
            raise ResponseStoreUnavailable(text_of(error)) from None

    def close(self) -> None:
        self._session.close()
