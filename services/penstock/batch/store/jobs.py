"""Operations on jobs: the division of a file into chunks, and the output of a batch. Each runs in a transaction."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from penstock.batch.jobs.batch import Batch, Status
from penstock.batch.store import statements as sql
from penstock.batch.store.operations import StoredFile
from penstock.batch.store.statements import batch_of
from penstock.chassis.database.statements import Transaction

READ_RESULTS = 256  # rows that one read of an output returns
READ_BYTES = 4 << 20  # of their contents


class Chunk(NamedTuple):
    """A chunk of a file: a range of lines and their bytes."""

    first_line: int
    line_count: int
    byte_offset: int
    byte_length: int


class Job(NamedTuple):
    """A batch whose file this replica divides, or whose output it writes, while its lease lasts."""

    batch: Batch
    epoch: int


class WorkTaken(NamedTuple):
    """What a look for a job has found."""

    job: Job | None
    has_dropped: bool = False  # whether it has deleted results of a batch that has ended
    next_due_s: float = math.inf  # without either: s until the next job is due that no signal tells of


class ErrorRow(NamedTuple):
    """The row of a line in the error file."""

    line: int
    content: bytes  # JSON without a line break


class StoredResult(NamedTuple):
    """The row of a line in one of the files of the output."""

    line: int
    is_error: bool
    content: bytes


def _lapse(transaction: Transaction) -> None:
    for row in transaction.run(sql.LAPSING, transaction.now):
        batch = batch_of(row)
        if batch.lapse(transaction.now):
            sql.update(transaction, batch)


def take_work(transaction: Transaction, lease_s: float, row_limit: int) -> WorkTaken:
    """Claim a job, or delete results of a batch that has ended if none is due."""
    if job := claim_job(transaction, lease_s):
        return WorkTaken(job)
    if drop_rows(transaction, row_limit):
        return WorkTaken(None, has_dropped=True)
    [(due_at,)] = transaction.run(sql.NEXT_JOB, transaction.now)
    return WorkTaken(None) if due_at is None else WorkTaken(None, next_due_s=due_at - transaction.now)


def claim_job(transaction: Transaction, lease_s: float) -> Job | None:
    """End the windows that are over, and claim a batch to divide or to write, if no replica holds its chunks.

    A batch that is written takes no further result: a replica that was paused would count one that the output lacks.
    """
    _lapse(transaction)
    for row in transaction.run(sql.DUE_JOB, transaction.now, transaction.now):
        batch = batch_of(row)
        if batch.status is not Status.VALIDATING:
            transaction.write(sql.END_CHUNKS, [(batch.number, batch.number)])
        epoch = transaction.run(sql.HOLD_JOB, transaction.now + lease_s, batch.number)[0][0]
        return Job(batch, epoch)
    return None


def renew_job(transaction: Transaction, job: Job, lease_s: float) -> bool:
    """Return False if another replica has the job."""
    return bool(transaction.run(sql.RENEW_JOB, transaction.now + lease_s, job.batch.number, job.epoch))


def input_file(transaction: Transaction, job: Job) -> StoredFile | None:
    """Return the file of a job's lines, also if it has expired: it is kept while the batch reads it."""
    for row in transaction.run(sql.FILE_OF_BATCH, job.batch.input_file_id):
        return StoredFile(*row)
    return None


def divide(transaction: Transaction, job: Job, chunks: Sequence[Chunk], lines: int) -> bool:
    """Store the chunks of a file and let its lines run. Return False if another replica has the job."""
    batch = _locked(transaction, job)
    if batch is None:
        return False
    transaction.write(sql.DROP_CHUNKS, [(batch.number,)])
    transaction.write(sql.ADD_CHUNK, [(batch.number, *each) for each in chunks])
    batch.start(lines, transaction.now)
    if not chunks:
        batch.on_lines_ended(transaction.now)
    sql.update(transaction, batch)
    return True


def fail(transaction: Transaction, job: Job, reason: str, message: str) -> None:
    """End a batch whose file cannot be divided."""
    if batch := _locked(transaction, job):
        batch.fail(reason, message, transaction.now)
        sql.update(transaction, batch)


def next_chunk(transaction: Transaction, job: Job, first_line: int) -> tuple[Chunk, set[int]] | None:
    """Return the chunk at or after `first_line`, and its lines that have a result; None after the last one."""
    for row in transaction.run(sql.CHUNKS_FROM, job.batch.number, first_line):
        chunk = Chunk(*row)
        end = chunk.first_line + chunk.line_count
        return chunk, {
            row[0] for row in transaction.run(sql.LINES_WITH_RESULT, job.batch.number, chunk.first_line, end)
        }
    return None


def add_errors(transaction: Transaction, job: Job, rows: Sequence[ErrorRow], lease_s: float) -> bool:
    """Store and count the errors of lines without a result. Return False if another replica has the job."""
    if not renew_job(transaction, job, lease_s):
        return False
    number = job.batch.number
    added = transaction.run_many(sql.ADD_RESULT, [(number, each.line, 1, each.content) for each in rows])
    transaction.write(sql.ADD_COUNTS, [(0, len(added), 0, 0, number)])
    return True


def finish(transaction: Transaction, job: Job, output: StoredFile | None, errors: StoredFile | None) -> bool:
    """End a batch whose output is written. Return False if another replica has the job."""
    batch = _locked(transaction, job)
    if batch is None:
        return False
    transaction.write(sql.ADD_FILE, [tuple(each) for each in (output, errors) if each])
    ids = [each.file_id if each else "" for each in (output, errors)]
    batch.finish(transaction.now, *ids)
    sql.update(transaction, batch)
    return True


def read_results(transaction: Transaction, number: int, after: int) -> list[StoredResult]:
    """Return the next results after line `after`, at most `READ_BYTES` or one; none after the last one."""
    last, size = after, 0
    for line, length in transaction.run(sql.RESULT_SIZES, number, after, READ_RESULTS):
        size += length
        if size > READ_BYTES and last != after:
            break
        last = line
    rows = transaction.run(sql.READ_RESULTS, number, after, last)
    return [StoredResult(line, bool(is_error), content) for line, is_error, content in rows]


def drop_rows(transaction: Transaction, limit: int) -> bool:
    """Delete at most `limit` results of a batch that has ended. Return whether there was one."""
    for (number,) in transaction.run(sql.BATCH_WITH_ROWS):
        first = transaction.run(sql.FIRST_RESULT, number)[0][0]
        if first is not None:
            transaction.write(sql.DROP_RESULTS, [(number, first + limit)])
        else:
            transaction.write(sql.DROP_CHUNKS, [(number,)])
            transaction.write(sql.FORGET_ROWS, [(number,)])
        return True
    return False


def drop_ended_batches(transaction: Transaction, limit: int) -> int:
    """Delete batches whose files have expired. Return their number."""
    found = transaction.run(sql.ENDED_BATCHES, transaction.now, limit)
    transaction.write(sql.DELETE_BATCH, found)
    return len(found)


def _locked(transaction: Transaction, job: Job) -> Batch | None:
    """Return the batch of a job that this replica still has, and end the lease of the job."""
    if not renew_job(transaction, job, 0.0):
        return None
    return batch_of(transaction.run(sql.LOCK_BATCH, job.batch.number)[0])
