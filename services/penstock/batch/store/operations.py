"""Operations of the store: each runs in a transaction, on either database. Pure but for the transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.batch.jobs.batch import Batch, Status
from penstock.batch.jobs.chunks import ChunkKey, ChunkState, ClaimedChunk, LineResult
from penstock.batch.store import statements as sql
from penstock.batch.store.errors import BatchUnknown, FileInUse, FilesFull, FileUnknown, TooManyBatches
from penstock.batch.store.statements import Transaction, batch_of

FAR = 1e18  # s, after every time
MAX_ID = "~"  # after every id


class StoredFile(NamedTuple):
    """A file's row."""

    file_id: str
    tenant_id: str
    filename: str
    purpose: int
    size_bytes: int
    created_at: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class BatchOperations:
    """The operations, with the settings that they follow. Keeps no state."""

    file_bytes_per_tenant: int
    batches_per_tenant: int  # that have not ended

    # Files.

    def check_room(self, transaction: Transaction, tenant_id: str, size: int) -> None:
        """Raise FilesFull if the tenant may not store `size` more bytes."""
        used = transaction.run(sql.BYTES_OF_TENANT, tenant_id)[0][0]
        if used + size > self.file_bytes_per_tenant:
            text = f"the tenant's files have {used} of {self.file_bytes_per_tenant} bytes; delete files first"
            raise FilesFull(text, retry_after=3_600.0)

    def add_file(self, transaction: Transaction, file: StoredFile) -> None:
        """Raises FilesFull."""
        self.check_room(transaction, file.tenant_id, file.size_bytes)
        transaction.write(sql.ADD_FILE, [tuple(file)])

    def find_file(self, transaction: Transaction, tenant_id: str, file_id: str) -> StoredFile:
        """Raises FileUnknown."""
        for row in transaction.run(sql.FIND_FILE, tenant_id, file_id, transaction.now):
            return StoredFile(*row)
        raise FileUnknown(f"file {file_id!r} does not exist; GET /v1/files lists those that do")

    def list_files(
        self, transaction: Transaction, tenant_id: str, *, purpose: int, after: str, limit: int
    ) -> tuple[list[StoredFile], bool]:
        """Return a page of files, the newest first, and whether there are more. Raises FileUnknown."""
        place = (FAR, MAX_ID)
        if after:
            rows = transaction.run(sql.FIND_FILE_PLACE, tenant_id, after)
            if not rows:
                raise FileUnknown(f"file {after!r} of `after` does not exist")
            place = rows[0][0], after
        rows = transaction.run(sql.LIST_FILES, tenant_id, transaction.now, purpose, purpose, *place, limit + 1)
        return [StoredFile(*row) for row in rows[:limit]], len(rows) > limit

    def delete_file(self, transaction: Transaction, tenant_id: str, file_id: str) -> None:
        """Raises FileUnknown and FileInUse."""
        self.find_file(transaction, tenant_id, file_id)
        if transaction.run(sql.READERS_OF_FILE, file_id):
            raise FileInUse(f"a batch reads file {file_id!r}; cancel it, or wait for its end")
        transaction.write(sql.DELETE_FILE, [(file_id,)])

    def drop_expired_files(self, transaction: Transaction, limit: int) -> list[str]:
        """Delete the rows of expired files that no batch reads. Return their ids."""
        found = [row[0] for row in transaction.run(sql.EXPIRED_FILES, transaction.now, limit)]
        expired = [each for each in found if not transaction.run(sql.READERS_OF_FILE, each)]
        transaction.write(sql.DELETE_FILE, [(each,) for each in expired])
        return expired

    def without_file(self, transaction: Transaction, names: Sequence[str]) -> list[str]:
        """Return the names of contents that no file has."""
        return [each for each in names if not transaction.run(sql.HAS_FILE, each)]

    # Batches.

    def create(self, transaction: Transaction, batch: Batch) -> None:
        """Raises FileUnknown and TooManyBatches."""
        self.find_file(transaction, batch.tenant_id, batch.input_file_id)
        if transaction.run(sql.OPEN_OF_TENANT, batch.tenant_id)[0][0] >= self.batches_per_tenant:
            text = f"the tenant has {self.batches_per_tenant} batches that have not ended"
            raise TooManyBatches(text, retry_after=60.0)
        transaction.write(sql.ADD_BATCH, [sql.new_row(batch)])

    def find(self, transaction: Transaction, tenant_id: str, batch_id: str) -> Batch:
        """Raises BatchUnknown."""
        for row in transaction.run(sql.FIND_BATCH, tenant_id, batch_id):
            return batch_of(row)
        raise BatchUnknown(f"batch {batch_id!r} does not exist; GET /v1/batches lists those that do")

    def list_batches(
        self, transaction: Transaction, tenant_id: str, *, after: str, limit: int
    ) -> tuple[Sequence[Batch], bool]:
        """Return a page of batches, the newest first, and whether there are more. Raises BatchUnknown."""
        place = (FAR, MAX_ID)
        if after:
            rows = transaction.run(sql.FIND_PLACE, tenant_id, after)
            if not rows:
                raise BatchUnknown(f"batch {after!r} of `after` does not exist")
            place = rows[0][0], after
        rows = transaction.run(sql.LIST_BATCHES, tenant_id, *place, limit + 1)
        return [batch_of(row) for row in rows[:limit]], len(rows) > limit

    def cancel(self, transaction: Transaction, tenant_id: str, batch_id: str) -> Batch:
        """Raises BatchUnknown and BatchEnded."""
        batch = self.find(transaction, tenant_id, batch_id)
        batch.cancel(transaction.now)
        sql.update(transaction, batch)
        return batch

    # Chunks.

    def claim(self, transaction: Transaction, limit: int, lease_s: float) -> list[ClaimedChunk]:
        """Claim chunks for this replica, from the tenants that have the fewest at work, the earliest deadline first."""
        now = transaction.now
        running = [list(row) for row in transaction.run(sql.RUNNING, now)]
        claimed: list[ClaimedChunk] = []
        while running and len(claimed) < limit:
            held: dict[str, int] = {}
            for _, tenant_id, _, count in running:
                held[tenant_id] = held.get(tenant_id, 0) + count
            chosen = min(running, key=lambda row: (held[row[1]], row[2]))
            chunk = self._claim_next(transaction, chosen[0], lease_s)
            if chunk is None:
                running.remove(chosen)
                continue
            chosen[3] += 1
            claimed.append(chunk)
        return claimed

    def _claim_next(self, transaction: Transaction, number: int, lease_s: float) -> ClaimedChunk | None:
        now = transaction.now
        for first_line, line_count in transaction.run(sql.NEXT_CHUNKS, number, now, 1):
            epoch = transaction.run(sql.HOLD_CHUNK, now + lease_s, number, first_line)[0][0]
            batch = batch_of(transaction.run(sql.LOCK_BATCH, number)[0])
            whose = batch.tenant_id, batch.key_id, batch.delegation, batch.endpoint
            key, left = ChunkKey(batch.batch_id, first_line), batch.expires_at - now
            return ClaimedChunk(key, epoch, line_count, *whose, batch.expires_at, left)
        return None

    def renew(self, transaction: Transaction, held: Sequence[tuple[ChunkKey, int]], lease_s: float) -> list[ChunkState]:
        return [self._renew_one(transaction, key, epoch, lease_s) for key, epoch in held]

    def _renew_one(self, transaction: Transaction, key: ChunkKey, epoch: int, lease_s: float) -> ChunkState:
        for number, _, present, has_ended, _, status in transaction.run(sql.LOCK_CHUNK, *key):
            if epoch != present or has_ended:
                return ChunkState.LOST
            transaction.write(sql.RENEW_CHUNK, [(transaction.now + lease_s, number, key.first_line)])
            return ChunkState.HELD if status == Status.IN_PROGRESS else ChunkState.STOPPED
        return ChunkState.LOST

    def lines_done(self, transaction: Transaction, number: int, first_line: int, line_count: int) -> set[int]:
        rows = transaction.run(sql.LINES_WITH_RESULT, number, first_line, first_line + line_count)
        return {row[0] for row in rows}

    def put_results(self, transaction: Transaction, results: Sequence[LineResult]) -> list[bool]:
        """Store results under the epochs of their chunks, each line once, and count them."""
        epochs: dict[ChunkKey, tuple[int, int]] = {}  # number of the batch, present epoch
        for key in sorted({each.key for each in results}):
            for number, _, epoch, has_ended, *_ in transaction.run(sql.LOCK_CHUNK, *key):
                epochs[key] = number, -1 if has_ended else epoch
        stored: list[bool] = []
        by_number: dict[int, list[LineResult]] = {}
        for each in results:
            number, epoch = epochs.get(each.key, (0, -1))
            row = number, each.number, int(each.is_error), each.row
            is_new = epoch == each.epoch and bool(transaction.run(sql.ADD_RESULT, *row))
            stored.append(is_new)
            if is_new:
                by_number.setdefault(number, []).append(each)
        for number, added in sorted(by_number.items()):
            batch = batch_of(transaction.run(sql.LOCK_BATCH, number)[0])
            for each in added:
                batch.record(is_error=each.is_error, input_tokens=each.input_tokens, output_tokens=each.output_tokens)
            sql.update(transaction, batch)
        return stored

    def release(self, transaction: Transaction, held: Sequence[tuple[ChunkKey, int]]) -> None:
        """Give chunks back, or end those whose lines all have results. The last one ends its batch."""
        for key, epoch in sorted(held):
            for number, line_count, present, has_ended, *_ in transaction.run(sql.LOCK_CHUNK, *key):
                if epoch != present or has_ended:
                    continue
                done = self.lines_done(transaction, number, key.first_line, line_count)
                if len(done) < line_count:
                    transaction.write(sql.RENEW_CHUNK, [(0.0, number, key.first_line)])
                    continue
                transaction.write(sql.END_CHUNK, [(number, key.first_line)])
                if not transaction.run(sql.OPEN_CHUNKS, number)[0][0]:
                    batch = batch_of(transaction.run(sql.LOCK_BATCH, number)[0])
                    batch.on_lines_ended(transaction.now)
                    sql.update(transaction, batch)
