"""Divides the file of a batch into chunks, and gives the lines that cannot run for their place in it their errors."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.batch.jobs.custom_ids import LINES_PER_PART, RepeatedIds
from penstock.batch.jobs.division import LINE_BYTES, FileDivision, lines_in
from penstock.batch.lines.line import custom_id_of, error_row, line_id
from penstock.batch.store import jobs
from penstock.batch.store.job_lease import JOB_LEASE_S, JobLease, JobLost
from penstock.batch.store.jobs import Chunk, ErrorRow
from penstock.batch.store.operations import StoredFile
from penstock.batch.store.store import BatchStore, in_thread

ROWS_PER_WRITE = 512  # errors


@dataclass(frozen=True, slots=True)
class FileDivider:
    """Divides one file. What it repeats after a cut gives the same rows."""

    store: BatchStore
    lease: JobLease

    async def divide(self) -> None:
        """Let the lines of the batch run, or fail it. Raises JobLost and StoreUnavailable."""
        job, run = self.lease.job, self.store.run
        file: StoredFile | None = await run(jobs.input_file, job)
        if file is None:
            await run(jobs.fail, job, "FILE_UNKNOWN", "the file of its lines was deleted")
            return
        division = FileDivision()
        async for part in self.store.read_file(file):
            await in_thread(division.feed, part)
            await self.lease.keep()
        division.finish()
        if not division.lines:
            await run(jobs.fail, job, "FILE_EMPTY", "the file has no line")
            return
        chunks = [Chunk(*each) for each in division.chunks]
        await self._add_errors([self._too_long_row(number) for number in division.too_long])
        parts = math.ceil(division.lines / LINES_PER_PART)
        for part_number in range(parts):
            await self._reject_repeated(chunks, RepeatedIds(part_number, parts))
        await run(jobs.divide, job, chunks, division.lines)
        self.store.chunks_due.set()

    async def _reject_repeated(self, chunks: Sequence[Chunk], ids: RepeatedIds) -> None:
        """Give each line an error whose custom_id an earlier line has."""
        for chunk in chunks:
            await in_thread(self._add_ids, chunk, ids)
            await self.lease.keep()
        repeated = await in_thread(ids.repeated)
        for chunk in chunks:
            first = bisect_left(repeated, chunk.first_line)
            end = bisect_left(repeated, chunk.first_line + chunk.line_count)
            if first < end:
                await self._add_errors(await in_thread(self._repeated_rows, chunk, set(repeated[first:end])))

    def _add_ids(self, chunk: Chunk, ids: RepeatedIds) -> None:
        for number, content in self._lines(chunk):
            if custom_id := custom_id_of(content):
                ids.add(number, custom_id)

    def _repeated_rows(self, chunk: Chunk, repeated: set[int]) -> list[ErrorRow]:
        text = "an earlier line of the file has this custom_id"
        return [
            self._row(number, custom_id_of(content), "duplicate_custom_id", text)
            for number, content in self._lines(chunk)
            if number in repeated
        ]

    def _too_long_row(self, number: int) -> ErrorRow:
        return self._row(number, "", "line_too_long", f"the line has more than {LINE_BYTES} bytes")

    def _row(self, number: int, custom_id: str, code: str, message: str) -> ErrorRow:
        call_id = line_id(self.lease.job.batch.batch_id, number)
        return ErrorRow(number, error_row(call_id, custom_id, code=code, message=message))

    def _lines(self, chunk: Chunk) -> Iterator[tuple[int, bytes]]:
        file_id = self.lease.job.batch.input_file_id
        content = self.store.blobs.read(file_id, chunk.byte_offset, chunk.byte_length)
        return enumerate(lines_in(content), chunk.first_line)

    async def _add_errors(self, rows: Sequence[ErrorRow]) -> None:
        for first in range(0, len(rows), ROWS_PER_WRITE):
            group = rows[first : first + ROWS_PER_WRITE]
            if not await self.store.run(jobs.add_errors, self.lease.job, group, JOB_LEASE_S):
                raise JobLost
