"""Operations of the store: each runs in a transaction, on either database. Pure but for the transaction."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.batch.jobs.batch import Batch, Status
from penstock.batch.jobs.chunks import ChunkKey, ChunkState, Claim, ClaimedChunk, LineResult
from penstock.batch.jobs.claims import RunningBatch, shares
from penstock.batch.jobs.urgency import class_of_lines
from penstock.batch.store import statements as sql
from penstock.batch.store.errors import (
    BatchUnknown,
    FileInUse,
    FilesFull,
    FileUnknown,
    IdempotencyKeyReused,
    TooManyBatches,
)
from penstock.batch.store.statements import batch_of
from penstock.chassis.database.statements import Row, Transaction

FAR = 1e18  # s, after every time
MAX_ID = "~"  # after every id
KEY_LIFE_S = 86_400.0  # for which a repeated call with an idempotency key returns the first batch


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
        return _first_file(transaction.run(sql.FIND_FILE, tenant_id, file_id, transaction.now), file_id)

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
        _first_file(transaction.run(sql.LOCK_FILE, tenant_id, file_id, transaction.now), file_id)
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

    def create(self, transaction: Transaction, batch: Batch, idempotency_key: str = "") -> Batch:
        """Return the batch, or the one that was created with the key before.

        Raises FileUnknown, TooManyBatches and IdempotencyKeyReused.
        """
        if idempotency_key:
            forgotten = batch.tenant_id, idempotency_key, transaction.now - KEY_LIFE_S
            transaction.write(sql.FORGET_KEY, [forgotten])
            if created := _created_before(transaction, batch, idempotency_key):
                return created
        file_id = batch.input_file_id
        _first_file(transaction.run(sql.LOCK_FILE, batch.tenant_id, file_id, transaction.now), file_id)
        if transaction.run(sql.OPEN_OF_TENANT, batch.tenant_id)[0][0] >= self.batches_per_tenant:
            text = f"the tenant has {self.batches_per_tenant} batches that have not ended"
            raise TooManyBatches(text, retry_after=60.0)
        if transaction.run(sql.ADD_BATCH, *sql.new_row(batch, idempotency_key)):
            return batch
        created = _created_before(transaction, batch, idempotency_key)
        assert created, "a batch conflicts with that of its key alone, which was committed meanwhile"
        return created

    def find(self, transaction: Transaction, tenant_id: str, batch_id: str) -> Batch:
        """Raises BatchUnknown."""
        return _first_batch(transaction.run(sql.FIND_BATCH, tenant_id, batch_id), batch_id)

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
        batch = _first_batch(transaction.run(sql.LOCK_BATCH_OF_TENANT, tenant_id, batch_id), batch_id)
        batch.cancel(transaction.now)
        sql.update(transaction, batch)
        return batch

    # Chunks.

    def claim(self, transaction: Transaction, limit: int, lease_s: float) -> Claim:
        """Claim chunks for this replica, of the batches that `shares` names."""
        now, claimed = transaction.now, list[ClaimedChunk]()
        rows = transaction.run(sql.RUNNING, now, now)
        running = {row[0]: _running(row, now) for row in rows}
        while running and len(claimed) < limit:
            for number, count in shares(list(running.values()), limit - len(claimed)).items():
                found = self._claim_of(transaction, number, count, lease_s)
                claimed += found
                running[number].held += len(found)
                if len(found) < count:  # the others are held, or another replica claims them now
                    del running[number]
        return Claim(claimed, min((row[-1] - now for row in rows if row[-1] is not None), default=math.inf))

    def _claim_of(self, transaction: Transaction, number: int, count: int, lease_s: float) -> list[ClaimedChunk]:
        now = transaction.now
        free = number, now, count
        found = transaction.run(sql.HOLD_CHUNKS, *free, *free, count, now + lease_s, number)
        if not found:
            return []
        batch = batch_of(transaction.run(sql.READ_BATCH, number)[0])
        whose = batch.tenant_id, batch.key_id, batch.delegation, batch.endpoint
        times, priority = (batch.expires_at, batch.expires_at - now), class_of_lines(batch, now)
        return [
            ClaimedChunk(ChunkKey(batch.batch_id, first_line), epoch, line_count, *whose, *times, priority)
            for first_line, line_count, epoch in sorted(found)
        ]

    def renew(self, transaction: Transaction, held: Sequence[tuple[ChunkKey, int]], lease_s: float) -> list[ChunkState]:
        locked = _locked_chunks(transaction, sql.LOCK_CHUNK_ALONE, [key for key, _ in held])
        states = {each: locked[each[0]].state_under(each[1]) if each[0] in locked else ChunkState.LOST for each in held}
        kept = [locked[key] for (key, _), state in states.items() if state is not ChunkState.LOST]
        until = transaction.now + lease_s
        transaction.write(sql.LEASE_CHUNK, [(until, each.number, each.first_line) for each in kept])
        return [states[each] for each in held]

    def lines_done(self, transaction: Transaction, number: int, first_line: int, line_count: int) -> set[int]:
        rows = transaction.run(sql.LINES_WITH_RESULT, number, first_line, first_line + line_count)
        return {row[0] for row in rows}

    def put_results(self, transaction: Transaction, results: Sequence[LineResult]) -> list[bool]:
        """Store results under the epochs of their chunks, each line once, and count them."""
        locked = _locked_chunks(transaction, sql.LOCK_CHUNK, {each.key for each in results})
        present = [each.key in locked and locked[each.key].is_held_under(each.epoch) for each in results]
        rows = [
            (locked[each.key].number, each.number, int(each.is_error), each.row)
            for each, is_present in zip(results, present, strict=True)
            if is_present
        ]
        added = set(transaction.run_many(sql.ADD_RESULT, rows))
        stored: list[bool] = []
        counts: dict[int, list[int]] = {}  # of each batch: completed, failed, input and output tokens
        for each, is_present in zip(results, present, strict=True):
            number = locked[each.key].number if is_present else 0
            is_new = (number, each.number) in added
            added.discard((number, each.number))  # a second result of the line in this group is not stored
            stored.append(is_new)
            if is_new:
                new = not each.is_error, each.is_error, each.input_tokens, each.output_tokens
                counts[number] = [sum(pair) for pair in zip(counts.get(number, (0, 0, 0, 0)), new, strict=True)]
        transaction.write(sql.ADD_COUNTS, [(*found, number) for number, found in sorted(counts.items())])
        return stored

    def release(self, transaction: Transaction, held: Sequence[tuple[ChunkKey, int]]) -> bool:
        """Give chunks back, or end those whose lines all have results. The last one ends its batch.

        Return whether the output of a batch may be due.
        """
        locked = _locked_chunks(transaction, sql.LOCK_CHUNK, [key for key, _ in held])
        ended: list[tuple[int, int]] = []
        is_job_due = False
        for key, epoch in held:
            chunk = locked.get(key)
            if chunk is None or not chunk.is_held_under(epoch):
                continue
            is_job_due |= chunk.status != Status.IN_PROGRESS
            end = chunk.first_line + chunk.line_count
            if transaction.run(sql.COUNT_RESULTS, chunk.number, chunk.first_line, end)[0][0] == chunk.line_count:
                ended.append((chunk.number, chunk.first_line))
            else:
                transaction.write(sql.LEASE_CHUNK, [(0.0, chunk.number, chunk.first_line)])
        transaction.write(sql.END_CHUNK, ended)
        for number in sorted({number for number, _ in ended}):
            if not transaction.run(sql.OPEN_CHUNK, number):
                batch = batch_of(transaction.run(sql.LOCK_BATCH, number)[0])
                batch.on_lines_ended(transaction.now)
                sql.update(transaction, batch)
                is_job_due = True
        return is_job_due


class LockedChunk(NamedTuple):
    """A chunk's row, with the state of its batch."""

    number: int  # of its batch
    first_line: int
    line_count: int
    epoch: int
    has_ended: bool
    status: int

    def is_held_under(self, epoch: int) -> bool:
        return epoch == self.epoch and not self.has_ended

    def state_under(self, epoch: int) -> ChunkState:
        if not self.is_held_under(epoch):
            return ChunkState.LOST
        return ChunkState.HELD if self.status == Status.IN_PROGRESS else ChunkState.STOPPED


def _locked_chunks(transaction: Transaction, lock: str, keys: Iterable[ChunkKey]) -> dict[ChunkKey, LockedChunk]:
    """Lock chunks in the order of their keys, so that no two transactions wait for each other."""
    return {
        ChunkKey(batch_id, first_line): LockedChunk(number, first_line, line_count, epoch, bool(has_ended), status)
        for batch_id, first_line, number, line_count, epoch, has_ended, status in transaction.run_many(
            lock, sorted(keys)
        )
    }


def _running(row: Row, now: float) -> RunningBatch:
    number, tenant_id, lines, done, expires_at, started_at, held, _ = row
    pace = done / (now - started_at) if now > started_at else 0.0
    return RunningBatch(number, tenant_id, lines - done, expires_at - now, pace, held)


def _first_file(rows: Sequence[Row], file_id: str) -> StoredFile:
    for row in rows:
        return StoredFile(*row)
    raise FileUnknown(f"file {file_id!r} does not exist; GET /v1/files lists those that do")


def _created_before(transaction: Transaction, batch: Batch, idempotency_key: str) -> Batch | None:
    """Return the batch of the key, if there is one. Raises IdempotencyKeyReused."""
    for row in transaction.run(sql.FIND_CREATED, batch.tenant_id, idempotency_key):
        created = batch_of(row)
        if _given(created) != _given(batch):
            text = f"batch {created.batch_id} was created with this idempotency key and other fields; use another key"
            raise IdempotencyKeyReused(text, field="idempotency_key")
        return created
    return None


def _given(batch: Batch) -> tuple[object, ...]:
    """Return what a client gives to create a batch."""
    return batch.endpoint, batch.input_file_id, batch.window, batch.output_ttl, dict(batch.metadata)


def _first_batch(rows: Sequence[Row], batch_id: str) -> Batch:
    for row in rows:
        return batch_of(row)
    raise BatchUnknown(f"batch {batch_id!r} does not exist; GET /v1/batches lists those that do")
