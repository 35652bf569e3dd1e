"""Census of the store: batches by state, lines without a result, and the size of files."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from penstock.batch.jobs.batch import Batch, Status
from penstock.batch.metrics import STATE_FIGURE
from penstock.batch.store.statements import BATCH_COLUMNS, batch_of
from penstock.batch.store.store import BatchStore, in_thread
from penstock.chassis.database.statements import Transaction
from penstock.chassis.errors import PenstockError

# ruff: noqa: S608  # all parts of the statements are constants
log = structlog.get_logger()

CENSUS_INTERVAL_S = 2.0
MAX_BATCHES = 1_000  # whose time left is known
MAX_ROWS = 50  # of a snapshot

COUNTS = "SELECT status, count(*) FROM batches GROUP BY status"
LINES_LEFT = "SELECT coalesce(sum(lines - completed - failed), 0) FROM batches WHERE status = 2"
FILE_BYTES = "SELECT coalesce(sum(size_bytes), 0) FROM files"
OPEN_BATCHES = f"SELECT number, {BATCH_COLUMNS} FROM batches WHERE status IN (1, 2, 3, 7) ORDER BY number LIMIT ?"


@dataclass(frozen=True, slots=True)
class Census:
    """The content of the store at one time, in Unix s."""

    now: float = 0.0
    counts: Mapping[Status, int] = field(default_factory=dict)
    lines_left: int = 0
    batches: Sequence[Batch] = ()  # that have not ended, the oldest ones first
    file_bytes: int = 0

    @property
    def figures(self) -> dict[str, float]:
        counts = {f"{STATE_FIGURE}{each.name.lower()}": self.counts.get(each, 0) for each in Status}
        return {
            **counts,
            "lines_left": self.lines_left,
            "time_left_s": max(map(self._time_left, self.batches), default=0.0),
            "file_bytes": self.file_bytes,
        }

    @property
    def tables(self) -> dict[str, Any]:
        """Tables of the admin snapshot."""
        return {"batches": list(map(self._row, self.batches[:MAX_ROWS]))}

    def _row(self, batch: Batch) -> dict[str, Any]:
        return {
            "batch_id": batch.batch_id,
            "tenant_id": batch.tenant_id,
            "state": batch.status.name.lower(),
            "lines": batch.lines,
            "completed": batch.completed,
            "failed": batch.failed,
            "time_left_s": self._time_left(batch),
            "window_left_s": max(0.0, batch.expires_at - self.now),
        }

    def _time_left(self, batch: Batch) -> float:
        return max(0.0, batch.expected_end(self.now) - self.now)


def take_census(transaction: Transaction) -> Census:
    counts = {Status(status): count for status, count in transaction.run(COUNTS)}
    batches = [batch_of(row) for row in transaction.run(OPEN_BATCHES, MAX_BATCHES)]
    lines_left, file_bytes = (int(transaction.run(each)[0][0]) for each in (LINES_LEFT, FILE_BYTES))
    return Census(transaction.now, counts, lines_left, batches, file_bytes)


class CensusTaker:
    """Looks at the store in intervals. `latest` is empty until the first look."""

    def __init__(self, store: BatchStore) -> None:
        self._store = store
        self.latest = Census()
        self.disk_used = 0.0  # share of the volume of the contents
        self.is_available = True

    @property
    def figures(self) -> dict[str, float]:
        return {**self.latest.figures, "disk_used": self.disk_used, "store_available": self.is_available}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(CENSUS_INTERVAL_S)

    async def look(self) -> None:
        try:
            self.latest = await self._store.run(take_census)
            self.disk_used = await in_thread(self._store.blobs.used_share)
        except PenstockError as error:
            if self.is_available:
                log.warning("store_unavailable", error=error.message)
            self.is_available = False
        else:
            if not self.is_available:
                log.info("store_available")
            self.is_available = True
