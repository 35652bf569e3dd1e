"""Jobs of batches: divides files, writes outputs in the order of the lines, and deletes what is kept no longer."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from penstock.batch.jobs.batch import Status
from penstock.batch.jobs.division import lines_in
from penstock.batch.lines.line import LineInvalid, error_row, line_id, parse_line
from penstock.batch.store import jobs
from penstock.batch.store.file_division import FileDivider
from penstock.batch.store.job_lease import JOB_LEASE_S, JobLease, JobLost
from penstock.batch.store.jobs import ErrorRow, Job, WorkTaken
from penstock.batch.store.output import write_output
from penstock.batch.store.store import BatchStore, in_thread
from penstock.batch.work_signal import LOOK_INTERVAL_S
from penstock.chassis.errors import PenstockError

log = structlog.get_logger()

JOBS_AT_ONCE = 2  # so that a small batch need not wait for the division or the output of a large one
JOB_RETRY_S = 0.25  # after a failure, and the least time between two looks without a signal
UPKEEP_INTERVAL_S = 60.0
ORPHAN_AGE_S = 86_400.0  # of contents without a file; longer than an upload or an output takes
NAMES_PER_READ = 256  # contents that are looked up in one transaction
EXPIRED_PER_SLICE = 100  # files or batches
ROWS_PER_SLICE = 2_000  # results of ended batches


@dataclass(frozen=True, slots=True)
class JobWorker:
    """Does a few jobs at a time. Replicas share jobs by leases, which it renews as a job goes on."""

    store: BatchStore
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)  # one looks for a job, or waits for it, at a time

    async def run(self) -> None:
        """Do jobs until cancelled. Those that this cuts are free for other replicas at once."""
        async with asyncio.TaskGroup() as group:
            for _ in range(JOBS_AT_ONCE):
                group.create_task(self._run_jobs())

    async def _run_jobs(self) -> None:
        while True:
            try:
                async with self._looking:
                    job = await self._next_job()
                await self.do(job)
            except PenstockError as error:
                log.warning("batch_job_failed", error=error.message)
                await asyncio.sleep(JOB_RETRY_S)

    async def _next_job(self) -> Job:
        """Wait for a job, and delete results of batches that have ended meanwhile. Raises StoreUnavailable."""
        while True:
            taken = await self.take_work()
            if taken.job:
                return taken.job
            if not taken.has_dropped:
                await self.store.jobs_due.wait(min(LOOK_INTERVAL_S, max(JOB_RETRY_S, taken.next_due_s)))

    async def run_upkeep(self) -> None:
        """Delete expired files and batches, and contents without a file, until cancelled."""
        while True:
            try:
                await self.drop_expired()
                await self.drop_orphans(self.store.clock() - ORPHAN_AGE_S)
            except PenstockError as error:
                log.warning("batch_upkeep_failed", error=error.message)
            await asyncio.sleep(UPKEEP_INTERVAL_S)

    async def take_work(self) -> WorkTaken:
        """Look for a job. Raises StoreUnavailable."""
        taken: WorkTaken = await self.store.run(jobs.take_work, JOB_LEASE_S, ROWS_PER_SLICE)
        return taken

    async def do(self, job: Job) -> None:
        """Divide a file, or write an output. Raises StoreUnavailable."""
        lease = JobLease(self.store, job)
        try:
            if job.batch.status is Status.VALIDATING:
                await FileDivider(self.store, lease).divide()
            else:
                if job.batch.expired:
                    await self._add_expired(lease)
                await write_output(self.store, lease)
        except asyncio.CancelledError:
            with suppress(PenstockError):  # else its lease ends by itself
                await lease.release()
            raise
        except JobLost:
            log.warning("batch_job_lost", batch_id=job.batch.batch_id)
        self.store.jobs_due.set()  # its output may be due, or its results may be deleted

    async def drop_expired(self) -> None:
        """Delete a slice of the files and batches that are kept no longer. Raises StoreUnavailable."""
        for file_id in await self.store.run(self.store.operations.drop_expired_files, EXPIRED_PER_SLICE):
            await in_thread(self.store.blobs.delete, file_id)
        await self.store.run(jobs.drop_ended_batches, EXPIRED_PER_SLICE)

    async def drop_orphans(self, older_than: float) -> None:
        """Delete contents that a process that died has left, written before `older_than`. Raises StoreUnavailable.

        older_than: Unix time of the folder, s.
        """
        await in_thread(self.store.blobs.delete_parts, older_than)
        names = await in_thread(self.store.blobs.names, older_than)
        for first in range(0, len(names), NAMES_PER_READ):
            group = names[first : first + NAMES_PER_READ]
            for name in await self.store.run(self.store.operations.without_file, group):
                await in_thread(self.store.blobs.delete, name)

    async def _add_expired(self, lease: JobLease) -> None:
        """Give each line without a result an error."""
        job, first_line = lease.job, 0
        while found := await self.store.run(jobs.next_chunk, job, first_line):
            chunk, done = found
            first_line = chunk.first_line + chunk.line_count
            if len(done) == chunk.line_count:
                continue
            place = chunk.byte_offset, chunk.byte_length
            lines = lines_in(await in_thread(self.store.blobs.read, job.batch.input_file_id, *place))
            numbered = enumerate(lines, chunk.first_line)
            rows = [_expired_row(job, number, content) for number, content in numbered if number not in done]
            if not await self.store.run(jobs.add_errors, job, rows, JOB_LEASE_S):
                raise JobLost


def _expired_row(job: Job, number: int, content: bytes) -> ErrorRow:
    """Return the error of a line that has not run in the window, or why it could not have run."""
    call_id = line_id(job.batch.batch_id, number)
    try:
        custom_id = parse_line(content, job.batch.endpoint).custom_id
    except LineInvalid as error:
        return ErrorRow(number, error_row(call_id, error.custom_id, code=error.code, message=error.message))
    text = "the completion window of the batch ended before this line was answered"
    return ErrorRow(number, error_row(call_id, custom_id, code="batch_expired", message=text))
