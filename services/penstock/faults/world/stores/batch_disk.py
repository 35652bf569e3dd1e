"""Files and batches of a world: one database and one folder for all batch processes. Committed writes survive them."""

import asyncio
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from penstock.batch.blobs.blobs import BlobUnavailable
from penstock.batch.config import BatchConfig
from penstock.batch.store.errors import StoreUnavailable
from penstock.batch.store.opening import database_clock
from penstock.batch.store.operations import BatchOperations
from penstock.batch.store.sqlite import SqliteDatabase
from penstock.batch.store.store import BatchStore
from penstock.chassis.database.location import MEMORY

TRANSACTION_DELAY_S = (0.0002, 0.004)  # range of s, each way
AWAY_DELAYS_S = (0.002, 2.0)  # s until a process finds that the database is away: it refuses, or does not answer
IN_DOUBT_SHARE = 0.2  # share of transactions that a database which is away commits; their answers are lost


@dataclass(eq=False)
class BatchDisk:
    """The tier's own tables and operations in SQLite, and contents of files in memory. The database has the clock."""

    rng: random.Random
    clock: Callable[[], float]  # of the database, Unix s
    is_full: bool = False
    away_from: set[str] = field(default_factory=set)  # processes that cannot reach the database
    contents: dict[str, bytes] = field(default_factory=dict)  # by name
    database: SqliteDatabase = field(init=False)

    def __post_init__(self) -> None:
        self.database = SqliteDatabase(MEMORY, self.clock)

    @contextmanager
    def open_store(self, config: BatchConfig, clock: Callable[[], float]) -> Iterator["WorldBatchStore"]:
        """Replace the tier's `opened_store`. A process can always open it."""
        operations = BatchOperations(config.file_bytes_per_tenant, config.batches_per_tenant)
        blobs, now = WorldBlobs(self), database_clock(self.database, clock)
        yield WorldBatchStore(self.database, blobs, operations, now, config.max_file_bytes, self, _process_name())

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        with self.database.transaction() as transaction:
            return transaction.run(statement)


def _process_name() -> str:
    return str(getattr(asyncio.get_running_loop(), "name", ""))


@dataclass(frozen=True, slots=True)
class WorldBatchStore(BatchStore):
    """The store of one process: a transaction takes time both ways, and is committed in between."""

    disk: BatchDisk
    process: str

    async def run(self, operation: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(self.disk.rng.uniform(*TRANSACTION_DELAY_S))
        if self._is_away and self.disk.rng.random() >= IN_DOUBT_SHARE:
            await self._lose(is_in_doubt=False)
        with self.database.transaction() as transaction:
            if self.disk.is_full:
                raise StoreUnavailable("database or disk is full")
            result = operation(transaction, *arguments, **named)
        # The process may die here, and the database may be lost, between the commit and its answer.
        await asyncio.sleep(self.disk.rng.uniform(*TRANSACTION_DELAY_S))
        if self._is_away:
            await self._lose(is_in_doubt=True)
        return result

    @property
    def _is_away(self) -> bool:
        return self.process in self.disk.away_from

    async def _lose(self, *, is_in_doubt: bool) -> NoReturn:
        await asyncio.sleep(self.disk.rng.choice(AWAY_DELAYS_S))
        raise StoreUnavailable("the database is away", is_in_doubt=is_in_doubt)


@dataclass(frozen=True, slots=True)
class WorldBlobs:
    """Contents of all processes."""

    disk: BatchDisk

    def create(self, name: str) -> "WorldBlobWriter":
        self.check_writable()
        return WorldBlobWriter(self, name)

    def read(self, name: str, offset: int, size: int) -> bytes:
        if name not in self.disk.contents:
            raise BlobUnavailable(f"there is no content {name}")
        return self.disk.contents[name][offset : offset + size]

    def delete(self, name: str) -> None:
        self.disk.contents.pop(name, None)

    def names(self, older_than: float) -> Sequence[str]:
        """Return none: a world ends before a content is old."""
        del older_than
        return ()

    def free_bytes(self) -> float:
        return 0.0 if self.disk.is_full else math.inf

    def used_share(self) -> float:
        return float(self.disk.is_full)

    def delete_parts(self, older_than: float) -> int:
        """Delete none: a content that is not committed is its writer's alone."""
        del older_than
        return 0

    def check_writable(self) -> None:
        if self.disk.is_full:
            raise BlobUnavailable("the disk is full")


@dataclass(slots=True)
class WorldBlobWriter:
    """Writes one content."""

    blobs: WorldBlobs
    name: str
    parts: list[bytes] = field(default_factory=list)

    def write(self, content: bytes) -> None:
        self.blobs.check_writable()
        self.parts.append(content)

    def commit(self) -> None:
        self.blobs.check_writable()
        self.blobs.disk.contents[self.name] = b"".join(self.parts)

    def abort(self) -> None:
        self.parts.clear()
