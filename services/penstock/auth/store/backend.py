"""The interface of a database behind the store's thread. All methods run in that thread."""

import threading
from typing import Protocol

from penstock.auth.store.roll_up import LedgerUpkeep
from penstock.auth.store.store import PendingChange, StoredState


class Backend(Protocol):
    """One database. An error that is not returned ends the thread, and with it the process."""

    @property
    def roll_up(self) -> LedgerUpkeep:
        """The upkeep of its ledger, once it is open."""

    @property
    def name(self) -> str:
        """Its location for messages, without a password."""

    @property
    def probe_due(self) -> float:
        """Time, in s of `time.monotonic`, from which an empty batch must be committed if no other batch is."""

    def open(self, closing: threading.Event) -> StoredState:
        """Open the database, migrate it and read the state. Raises StoreUnusable, StoreTooNew.

        `closing` ends a wait for another process.
        """

    def commit(self, batch: list[PendingChange]) -> Exception | None:
        """Write all changes of a batch in one transaction, or none. Return the error; None on success.

        An empty batch finds out whether the database can be written.
        """

    def used_share(self) -> float:
        """Return the used share of the volume that holds the database; 0 if it is unknown."""

    def close(self) -> None:
        """Close the database after the last commit."""
