"""Outcomes of batches: whether a batch whose commit was not answered was applied, so that none is applied twice.

A batch has a number, which its transaction writes to the row of its owner. If the connection is lost before the commit
is answered, the next connection writes the same number with `is_applied = false` unless the batch has: from then on,
the outcome is decided, and a transaction that is still on its way fails.
"""

from collections.abc import Collection, Iterator

import structlog

from penstock.auth.store.postgres.charges import Statement
from penstock.auth.store.store import (
    Barrier,
    Charged,
    ConfirmTotals,
    PendingChange,
    PutTotals,
    Release,
    Reserved,
)
from penstock.chassis.database.postgres import StoreConnection
from penstock.mesh.partitions import partition_of

log = structlog.get_logger()

_DECIDE = "UPDATE writers SET batch = %s, is_applied = false WHERE owner = %s AND batch = %s - 1"
_OUTCOME = "SELECT is_applied FROM writers WHERE owner = %s AND batch = %s"
_DELETE_RESERVATIONS = "DELETE FROM reservations WHERE reservation_id = ANY(%s)"
_DELETE_GRANT_USES = "DELETE FROM grant_uses WHERE reservation_id = ANY(%s)"


class BatchOutcomes:
    """The numbers of an owner's batches, the batch in doubt, and what follows if it was applied.

    The changes of a failed batch have been reported as failed, except for charges and releases, which are in the next
    batch. If the failed batch was applied, these are not written again, and the reservations are deleted.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._number = 0  # of the latest batch that is decided
        self._in_doubt: list[PendingChange] | None = None  # sent and not answered
        self._is_reported = False  # whether the batch in doubt was reported as failed
        self._applied: dict[int, PendingChange] = {}  # by id; changes that need not be written again
        self._cancelled: dict[
            str, int
        ] = {}  # reservations that were reported as failed and are in the store; partitions

    def is_applied(self, batch: list[PendingChange]) -> bool:
        """Return whether nothing is left to write: an attempt that was in doubt has applied the whole batch."""
        if not batch or self._cancelled or any(id(each) not in self._applied for each in batch):
            return False
        for each in batch:
            del self._applied[id(each)]
        return True

    def begin(self, batch: list[PendingChange]) -> list[PendingChange]:
        """Begin a batch. Return what is not applied of it."""
        self._in_doubt, self._is_reported = batch, False
        return [each for each in batch if id(each) not in self._applied] if self._applied else batch

    def begin_statement(self) -> Statement:
        return "SELECT begin_batch(%s, %s)", (self._owner, self._number + 1)

    @property
    def cancelled_partitions(self) -> set[int]:
        """Partitions of the reservations that `compensation` deletes."""
        return set(self._cancelled.values())

    def forget_partitions(self, partitions: Collection[int]) -> None:
        """Cancel nothing in partitions that another replica owns. Its edges settle what they do not use."""
        self._cancelled = {
            each: partition for each, partition in self._cancelled.items() if partition not in partitions
        }

    def compensation(self) -> Iterator[Statement]:
        """Return statements that cancel what was applied after all."""
        if self._cancelled:
            yield _DELETE_RESERVATIONS, (list(self._cancelled),)
            yield _DELETE_GRANT_USES, (list(self._cancelled),)

    def on_applied(self) -> None:
        """Count the batch as applied."""
        self._number += 1
        for each in self._in_doubt or ():
            self._applied.pop(id(each), None)
        self._in_doubt, self._cancelled = None, {}

    def on_rejected(self) -> None:
        """Count the batch as not applied: the server has rolled it back, and its number is free."""
        self._in_doubt = None

    def on_failed(self) -> None:
        """The changes of the batch, except for charges, have been reported as failed."""
        self._is_reported = True

    def decide(self, connection: StoreConnection) -> None:
        """Find out whether the batch in doubt was applied. Raises psycopg.Error, and the batch stays in doubt."""
        if self._in_doubt is None:
            return
        number = self._number + 1
        with connection.transaction():
            connection.execute(_DECIDE, (number, self._owner, number))
            row = connection.execute(_OUTCOME, (self._owner, number)).fetchone()
        batch, self._in_doubt, self._number = self._in_doubt, None, number
        is_applied = bool(row and row[0])
        log.info("store_outcome_decided", applied=is_applied, changes=len(batch), reported=self._is_reported)
        if is_applied:
            self._on_applied_late(batch)

    def _on_applied_late(self, batch: list[PendingChange]) -> None:
        self._cancelled = {}
        if not self._is_reported:
            self._applied |= {id(each): each for each in batch}
            return
        self._applied |= {id(each): each for each in batch if isinstance(each[0], Charged | Release)}
        for change, _ in batch:
            if isinstance(change, Reserved):
                reservation = change.reservation
                self._cancelled[reservation.reservation_id] = partition_of(reservation.request.tenant_id)
            elif not isinstance(change, Charged | Release | Barrier | PutTotals | ConfirmTotals):
                log.error("store_change_applied_late", change=type(change).__name__)
