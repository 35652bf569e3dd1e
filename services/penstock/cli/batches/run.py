"""The commands of `penstock batch`: submit, watch, cancel, fetch and list."""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.json_format import MessageToDict
from rich.markup import escape

from penstock.bench.progress import ProgressFn, progress_reporter
from penstock.bench.tables import new_table
from penstock.chassis.durations import set_seconds
from penstock.chassis.errors import FailedPrecondition
from penstock.cli.batches.texts import STATES, end_text, has_ended, progress_text
from penstock.cli.tables import stderr_console, stdout_console
from penstock.client.batches import BatchesClient
from penstock.v1 import batches_pb2 as pb

POLL_INTERVAL_S = 1.0
STDOUT = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """The options of one batch."""

    file: Path
    endpoint: str
    window_s: float
    metadata: Mapping[str, str]
    is_watched: bool = False


@dataclass(frozen=True, slots=True)
class Caller:
    """An edge or Envoy, and the key of the caller."""

    target: str
    api_key: str
    as_json: bool = False

    async def submit(self, options: SubmitOptions) -> None:
        """Upload a file, create its batch, and watch it if that is wanted."""
        async with self._open_client() as client:
            with progress_reporter(stderr_console) as report:
                file = await client.upload(options.file, _upload_progress(options.file, report))
            request = pb.CreateBatchRequest(input_file_id=file.id, endpoint=options.endpoint, metadata=options.metadata)
            set_seconds(request.completion_window, options.window_s)
            batch = await client.create(request)
            self._show(batch, batch.id)
            if options.is_watched:
                await self._watch(client, batch.id)

    async def watch(self, batch_id: str) -> None:
        """Show the progress of a batch until it has ended. Raises FailedPrecondition unless it is completed."""
        async with self._open_client() as client:
            await self._watch(client, batch_id)

    async def cancel(self, batch_id: str) -> None:
        async with self._open_client(patience=0.0) as client:
            batch = await client.cancel(batch_id)
        self._show(batch, f"{batch.id} is {STATES[batch.status]}; its answers so far are written")

    async def fetch(self, batch_id: str, output: str, errors: str) -> None:
        """Write the answers and the errors of a batch that has ended to files; `-` is stdout."""
        async with self._open_client() as client:
            batch = await client.find(batch_id)
            if not has_ended(batch):
                text = f"{batch_id} is {STATES[batch.status]}; its files are written at its end: penstock batch watch"
                raise FailedPrecondition(text, reason="BATCH_NOT_ENDED")
            for file_id, name in ((batch.output_file_id, output), (batch.error_file_id, errors)):
                if file_id:
                    await _download(client, file_id, name)
        stderr_console.print(escape(end_text(batch).partition(";")[0]))

    async def list(self, limit: int) -> None:
        async with self._open_client(patience=0.0) as client:
            found = await client.list(limit)
        if self.as_json:
            stdout_console.print_json(data=[MessageToDict(each) for each in found])
            return
        table = new_table("batch", "state", "endpoint", "created", numbers=("lines", "completed", "failed"))
        for each in found:
            counts = (each.lines.total, each.lines.completed, each.lines.failed)
            created = f"{each.create_time.ToDatetime().isoformat(timespec='seconds')}Z"
            table.add_row(each.id, STATES[each.status], each.endpoint, created, *(f"{count:,}" for count in counts))
        stdout_console.print(table)

    async def _watch(self, client: BatchesClient, batch_id: str) -> None:
        with progress_reporter(stderr_console) as report:
            batch = await client.find(batch_id)
            while not has_ended(batch):
                report(progress_text(batch, time.time()))
                await asyncio.sleep(POLL_INTERVAL_S)
                batch = await client.find(batch_id)
        if batch.status != pb.BATCH_STATUS_COMPLETED:
            raise FailedPrecondition(end_text(batch), reason="BATCH_NOT_COMPLETED")
        self._show(batch, end_text(batch))

    def _open_client(self, patience: float = 60.0) -> BatchesClient:
        return BatchesClient(self.target, api_key=self.api_key, patience=patience)

    def _show(self, batch: pb.Batch, text: str) -> None:
        if self.as_json:
            stdout_console.print_json(data=MessageToDict(batch))
        else:
            stdout_console.print(escape(text))


def _upload_progress(path: Path, report: ProgressFn) -> Callable[[int], None]:
    size = max(1, path.stat().st_size)
    return lambda sent: report(f"uploading {path.name}: {sent / size:.0%} of {size / 1e6:,.1f} MB")


async def _download(client: BatchesClient, file_id: str, name: str) -> None:
    """Write a file, which has its name once it is complete."""
    path = Path(name)
    part = path.with_name(f"{path.name}.part")
    opened = nullcontext(sys.stdout.buffer) if name == STDOUT else part.open("wb")
    written = 0
    try:
        with opened as out, progress_reporter(stderr_console) as report:
            async for content in client.read(file_id):
                out.write(content)
                written += len(content)
                report(f"{name}: {written:,} bytes")
        if name != STDOUT:
            part.replace(path)
    finally:
        if name != STDOUT:
            part.unlink(missing_ok=True)
