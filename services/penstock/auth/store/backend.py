"""The interface of a database behind the store's thread. All methods run in that thread."""

from typing import Protocol

from penstock.auth.store.roll_up import LedgerUpkeep
from penstock.auth.store.store import OnEvent, PendingChange, StoredState, TenantUse


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

    @property
    def epochs(self) -> dict[int, int] | None:
        """The partitions that this process owns, with their epochs. None: it alone uses the database."""

    def notify_events(self, on_event: OnEvent) -> None:
        """Call `on_event` in the thread for each event from now on."""

    def owner_address(self, partition: int) -> str:
        """Return the address of the process that owns a partition; empty if it is unknown. Called in any thread."""

    def read_uses(self) -> list[TenantUse]:
        """Return the use of all tenants, as it is stored. Called in any thread; raises StoreUnusable."""

    def count_edges(self, edges: int) -> None:
        """This number of edges is connected to this process. Called in any thread."""

    def hand_over(self) -> None:
        """Give all partitions to other processes from now on. Called in any thread."""

    def open(self) -> StoredState:
        """Open the database, migrate it and read the state. Raises StoreUnusable, StoreTooNew."""

    def commit(self, batch: list[PendingChange]) -> Exception | None:
        """Write all changes of a batch in one transaction, or none. Return the error; None on success.

        PartitionsLost names the partitions of the batch that another process owns.

        An empty batch finds out whether the database can be written.
        """

    def server_time(self) -> float | None:
        """Return the Unix time in s of the database's clock, which all processes share; None: it has none."""

    def used_share(self) -> float:
        """Return the used share of the volume that holds the database; 0 if it is unknown."""

    def close(self) -> None:
        """Close the database after the last commit."""
