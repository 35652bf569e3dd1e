"""The writer: commits changes in order, and retries charges until they are committed. Knows no thread and no loop."""

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.auth.store.store import (
    Barrier,
    Charged,
    DeleteTenant,
    PartitionsLost,
    PendingChange,
    PutShare,
    Release,
    Reserved,
)
from penstock.mesh.partitions import partition_of

MAX_CHANGES_PER_TRANSACTION = 1_000


@dataclass(eq=False)
class ChangeWriter:
    """Commits changes in transactions of at most `MAX_CHANGES_PER_TRANSACTION`.

    A change that cannot be committed has failed, except for a charge or a release, which stays unwritten and comes
    first the next time. Changes of partitions that another replica owns have failed, and the others are committed. The
    work of one call is linear in the number of changes, and after the first failure it commits no more.
    """

    commit: Callable[[list[PendingChange]], Exception | None]  # all changes or none; without changes it is a probe
    report: Callable[[list[PendingChange], Exception | None], None]  # the completed changes; None: they are committed
    unwritten: list[PendingChange] = field(default_factory=list)  # charges and releases in order
    is_available: bool = True  # whether the latest commit succeeded

    def write(self, changes: list[PendingChange], *, is_probe_due: bool = False) -> None:
        """Commit the unwritten charges and then these changes.

        Without any, probe a store that was unavailable or whose probe is due.
        """
        pending, self.unwritten = [*self.unwritten, *changes], []
        if not pending and self.is_available and not is_probe_due:
            return
        for start in range(0, max(1, len(pending)), MAX_CHANGES_PER_TRANSACTION):
            batch = pending[start : start + MAX_CHANGES_PER_TRANSACTION]
            batch, error = self._commit_owned(batch)
            self.is_available = error is None
            if error:
                self._fail([*batch, *pending[start + MAX_CHANGES_PER_TRANSACTION :]], error)
                return
            self.report(batch, None)

    def _commit_owned(self, batch: list[PendingChange]) -> tuple[list[PendingChange], Exception | None]:
        """Commit the changes of a batch whose partitions this process owns. Return them, and the error."""
        error = self.commit(batch)
        while isinstance(error, PartitionsLost):
            lost = error.partitions
            self.report([each for each in batch if partition_of_change(each) in lost], error)
            batch = [each for each in batch if partition_of_change(each) not in lost]
            if not batch:
                return batch, None
            error = self.commit(batch)
        return batch, error

    def _fail(self, changes: list[PendingChange], error: Exception) -> None:
        failed: list[PendingChange] = []
        for each in changes:
            (self.unwritten if isinstance(each[0], Charged | Release) else failed).append(each)
        self.report(failed, error)


def partition_of_change(pending: PendingChange) -> int | None:
    """Return the partition whose owner alone may write a change; None if each process may."""
    match pending[0]:
        case Reserved() | Charged() | PutShare():
            return partition_of(pending[0].balance.tenant_id)
        case DeleteTenant(tenant_id, _):
            return partition_of(tenant_id)
        case Barrier(partition):
            return partition
        case _:
            return None
