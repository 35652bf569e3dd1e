"""The output of a batch: a file of its answers and one of its errors, each in the order of the lines."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.batch.blobs.blobs import BlobUnavailable, BlobWriter
from penstock.batch.jobs.batch import Batch
from penstock.batch.store import jobs
from penstock.batch.store.errors import is_undone
from penstock.batch.store.job_lease import JobLease, JobLost
from penstock.batch.store.operations import StoredFile
from penstock.batch.store.store import BatchStore, in_thread, new_file_id
from penstock.v1.batches_pb2 import FILE_PURPOSE_BATCH_OUTPUT


@dataclass(slots=True)
class OutputFile:
    """A file that begins with its first row."""

    store: BatchStore
    batch: Batch
    file_id: str
    is_error: bool
    size: int = 0  # bytes
    _writer: BlobWriter | None = None

    async def add(self, rows: Sequence[bytes]) -> None:
        """Raises StoreUnavailable."""
        if not rows:
            return
        if self._writer is None:
            self._writer = await self.store.begin_content(self.file_id)
        content = b"".join(row + b"\n" for row in rows)
        await in_thread(self._writer.write, content)
        self.size += len(content)

    async def commit(self) -> StoredFile | None:
        """Make the file durable. Return its row; None if it has no row. Raises StoreUnavailable."""
        if self._writer is None:
            return None
        await in_thread(self._writer.commit)
        batch, now = self.batch, self.store.clock()
        name = f"{batch.batch_id}_{'error' if self.is_error else 'output'}.jsonl"
        kept_until = now + batch.output_ttl
        return StoredFile(self.file_id, batch.tenant_id, name, FILE_PURPOSE_BATCH_OUTPUT, self.size, now, kept_until)

    async def drop(self, *, is_kept: bool) -> None:
        """Drop the content. If `is_kept`, one that is committed stays."""
        if self._writer:
            await asyncio.to_thread(self._writer.abort)
        if not is_kept:
            with suppress(BlobUnavailable):  # the upkeep deletes it
                await asyncio.to_thread(self.store.blobs.delete, self.file_id)


async def write_output(store: BatchStore, lease: JobLease) -> None:
    """Write the files of a batch from its results, and end it. Raises JobLost and StoreUnavailable."""
    job = lease.job
    files = [OutputFile(store, job.batch, new_file_id(), is_error=each) for each in (False, True)]
    try:
        last = -1
        while rows := await store.run(jobs.read_results, job.batch.number, last):
            for each in files:
                await each.add([row.content for row in rows if row.is_error == each.is_error])
            last = rows[-1].line
            await lease.keep()
        if not await store.run(jobs.finish, job, *[await each.commit() for each in files]):
            raise JobLost  # noqa: TRY301  # as by `keep`
    except BaseException as error:  # the batch may have the files of a transaction that is in doubt
        for each in files:
            await each.drop(is_kept=not (isinstance(error, JobLost) or is_undone(error)))
        raise
