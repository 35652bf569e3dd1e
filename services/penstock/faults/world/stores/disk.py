"""Auth's disk: committed changes survive the process, the others are lost with it."""

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.auth.store.sqlite import sql
from penstock.auth.store.sqlite.sql import MIGRATIONS
from penstock.auth.store.store import (
    Barrier,
    Change,
    OnAvailability,
    OnEvent,
    OnPersisted,
    PartitionsLost,
    PendingChange,
    StoredState,
    StoreEvent,
)
from penstock.auth.store.writer import ChangeWriter
from penstock.chassis.database.sqlite import migrate

COMMIT_DELAY_S = (0.0002, 0.004)  # range of s
RETRY_INTERVAL_S = 0.2  # s between two attempts to write a charge


class Completed(NamedTuple):
    """Changes of one transaction that are committed or have failed."""

    batch: list[PendingChange]
    error: Exception | None  # None: they are committed


class DiskFull(sqlite3.OperationalError):
    """The error that SQLite raises if the disk is full."""


class Disk:
    """One SQLite database in memory, with auth's own tables. `on_commit` is called with each committed change."""

    def __init__(self, seed: int | str) -> None:
        self.rng = random.Random(f"{seed} disk")
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.is_full = False
        self.reports_usage = False  # whether charges mark their totals for a report to another region
        self.on_commit: Callable[[Change], None] = lambda _: None
        migrate(self.connection, MIGRATIONS)

    def commit(self, batch: list[PendingChange]) -> Exception | None:
        """Commit all of `batch` or none of it; return the error, or None after a commit."""
        if self.is_full:
            return DiskFull("database or disk is full")
        self.connection.execute("BEGIN")
        for change, _ in batch:
            sql.apply(self.connection, change, reports_usage=self.reports_usage)
        self.connection.execute("COMMIT")
        for change, _ in batch:
            self.on_commit(change)
        return None

    @asynccontextmanager
    async def open_store(
        self, path: str, *, instance_id: str = "", reports_usage: bool = False, **settings: object
    ) -> AsyncIterator[tuple["DiskStore", StoredState]]:
        """Replace auth's `opened_store`. No row becomes a daily total."""
        del path, instance_id, settings
        self.reports_usage = reports_usage
        store = DiskStore(self.rng, self.commit)
        yield store, sql.read(self.connection)
        await store.flush()


@dataclass(eq=False)
class DiskStore:
    """The store of one process: a commit takes time, and changes written meanwhile form the next batch."""

    rng: random.Random
    commit: Callable[[list[PendingChange]], Exception | None]
    pending: int = 0
    clock_offset: float = 0.0  # s
    is_available: bool = True
    epochs: Mapping[int, int] | None = None  # at the start; None: the process alone uses the store
    _on_availability: list[OnAvailability] = field(default_factory=list)
    _on_event: list[OnEvent] = field(default_factory=list)
    _entries: list[PendingChange] = field(default_factory=list)
    _completed: list[Completed | StoreEvent] = field(default_factory=list)  # in the order of the store
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _is_committing: bool = False

    def __post_init__(self) -> None:
        self._writer = ChangeWriter(self.commit, lambda *given: self._completed.append(Completed(*given)))

    @property
    def figures(self) -> dict[str, float]:
        return {"store_pending": self.pending, "store_available": self.is_available}

    def notify_availability(self, on_change: OnAvailability) -> None:
        self._on_availability.append(on_change)

    def notify_events(self, on_event: OnEvent) -> None:
        self._on_event.append(on_event)

    def count_edges(self, edges: int) -> None:
        """No other process takes part."""

    async def hand_over(self) -> None:
        """Give nothing: no other process uses the store."""

    async def watch(self) -> None:
        """Wait until cancelled. This store has no thread that could fail."""
        await asyncio.Event().wait()

    def write(self, change: Change, on_persisted: OnPersisted) -> None:
        self.pending += 1
        self._entries.append((change, on_persisted))
        if not self._is_committing:
            self._schedule_commit(self.rng.uniform(*COMMIT_DELAY_S))

    async def flush(self) -> None:
        persisted = asyncio.Event()
        self.write(Barrier(), lambda _: persisted.set())
        await persisted.wait()

    def _schedule_commit(self, seconds: float) -> asyncio.TimerHandle:
        self._is_committing = True
        return self._loop.call_later(seconds, self._commit)

    def _commit(self) -> None:
        batch, self._entries = self._entries, []
        self._writer.write(batch)
        # The process may die here, between the commit and the callbacks.
        self._loop.call_later(self.rng.uniform(*COMMIT_DELAY_S), self._finish)

    def _finish(self) -> None:
        self._is_committing = False
        completed, self._completed = self._completed, []
        for each in completed:
            if isinstance(each, Completed):
                self._complete(*each)
            else:
                self._report_event(each)
        if self._is_committing:  # a callback wrote a change
            return
        if not self._writer.is_available:
            self._schedule_commit(RETRY_INTERVAL_S)
        elif self._entries:
            self._schedule_commit(self.rng.uniform(*COMMIT_DELAY_S))

    def _report_event(self, event: StoreEvent) -> None:
        for on_event in self._on_event:
            on_event(event)

    def _complete(self, batch: list[PendingChange], error: Exception | None) -> None:
        if not isinstance(error, PartitionsLost):
            self._set_available(is_available=error is None)
        self.pending -= len(batch)
        for _, on_persisted in batch:
            on_persisted(error)

    def _set_available(self, *, is_available: bool) -> None:
        if is_available != self.is_available:
            self.is_available = is_available
            for on_change in self._on_availability:
                on_change(is_available)
