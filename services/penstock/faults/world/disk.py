"""Auth's file: what was committed outlives the process, what was not is lost with it."""

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from penstock.auth.store import sql
from penstock.auth.store.schema import migrate
from penstock.auth.store.store import Barrier, Change, Charged, OnPersisted, StoredState

COMMIT_DELAY_S = (0.0002, 0.004)  # s
RETRY_INTERVAL_S = 0.2  # s; between tries to keep a charge

PendingWrite = tuple[Change, OnPersisted]


class DiskFull(sqlite3.OperationalError):
    """As SQLite says it."""


class Disk:
    """One SQLite database in memory, with the tier's own tables."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"{seed} disk")
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.is_full = False
        migrate(self.connection)

    def commit(self, batch: list[PendingWrite]) -> Exception | None:
        """Keep all of `batch` or nothing; returns why nothing."""
        if self.is_full:
            return DiskFull("database or disk is full")
        self.connection.execute("BEGIN")
        for change, _ in batch:
            sql.apply(self.connection, change)
        self.connection.execute("COMMIT")
        return None

    @asynccontextmanager
    async def open_store(self, path: str, *, fsync: bool = False) -> AsyncIterator[tuple["DiskStore", StoredState]]:
        """Stands for `opened_store`."""
        del path, fsync
        store = DiskStore(self)
        yield store, sql.read(self.connection)
        await store.flush()


@dataclass(eq=False)
class DiskStore:
    """One process's way to its disk: a commit takes its time, and takes along all that piled up meanwhile."""

    disk: Disk
    pending: int = 0
    _entries: list[PendingWrite] = field(default_factory=list)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _is_committing: bool = False

    def write(self, change: Change, on_persisted: OnPersisted) -> None:
        self.pending += 1
        self._entries.append((change, on_persisted))
        if not self._is_committing:
            self._schedule_commit(self.disk.rng.uniform(*COMMIT_DELAY_S))

    async def flush(self) -> None:
        kept = asyncio.Event()
        self.write(Barrier(), lambda _: kept.set())
        await kept.wait()

    def _schedule_commit(self, seconds: float) -> None:
        self._is_committing = True
        self._loop.call_later(seconds, self._commit)

    def _commit(self) -> None:
        batch, self._entries = self._entries, []
        error = self.disk.commit(batch)
        owed = [entry for entry in batch if error and isinstance(entry[0], Charged)]
        self._entries = owed
        self._is_committing = False
        # The process may die here, between what is kept and who is told.
        self._loop.call_later(
            self.disk.rng.uniform(*COMMIT_DELAY_S), self._finish, [e for e in batch if e not in owed], error
        )
        if owed:
            self._schedule_commit(RETRY_INTERVAL_S)

    def _finish(self, batch: list[PendingWrite], error: Exception | None) -> None:
        self.pending -= len(batch)
        for _, then in batch:
            then(error)
        if self._entries and not self._is_committing:
            self._schedule_commit(self.disk.rng.uniform(*COMMIT_DELAY_S))
