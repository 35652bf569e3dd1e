"""The writer: commits changes in order, and retries charges until they are committed. Knows no thread and no loop."""

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.auth.store.store import Charged, PendingChange

MAX_CHANGES_PER_TRANSACTION = 1_000


@dataclass(eq=False)
class ChangeWriter:
    """Commits changes in transactions of at most `MAX_CHANGES_PER_TRANSACTION`.

    A change that cannot be committed has failed, except for a charge, which stays unwritten and comes first the next
    time. The work of one call is linear in the number of changes, and after the first failure it commits no more.
    """

    commit: Callable[[list[PendingChange]], Exception | None]  # all changes or none; without changes it is a probe
    report: Callable[[list[PendingChange], Exception | None], None]  # the completed changes; None: they are committed
    unwritten: list[PendingChange] = field(default_factory=list)  # charges in order
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
            error = self.commit(batch)
            self.is_available = error is None
            if error:
                self._fail(pending[start:], error)
                return
            self.report(batch, None)

    def _fail(self, changes: list[PendingChange], error: Exception) -> None:
        failed: list[PendingChange] = []
        for each in changes:
            (self.unwritten if isinstance(each[0], Charged) else failed).append(each)
        self.report(failed, error)
