"""The commands of `penstock batch`: submit, watch, cancel, fetch and list."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from google.protobuf.json_format import MessageToDict
from rich.markup import escape

from penstock.bench.progress import progress_reporter
from penstock.bench.tables import new_table
from penstock.chassis.durations import set_seconds
from penstock.chassis.errors import FailedPrecondition, Unavailable
from penstock.cli.batches.calls import BatchCalls, open_calls
from penstock.cli.batches.texts import STATES, end_text, has_ended, progress_text
from penstock.cli.tables import stderr_console, stdout_console
from penstock.v1 import batches_pb2 as pb

POLL_INTERVAL_S = 1.0
MAX_SILENCE_S = 60.0  # for which calls that fail are repeated
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
        async with open_calls(self.target, self.api_key) as calls:
            with progress_reporter(stderr_console) as report:
                file = await calls.upload(options.file, report)
            request = pb.CreateBatchRequest(input_file_id=file.id, endpoint=options.endpoint, metadata=options.metadata)
            set_seconds(request.completion_window, options.window_s)
            request.idempotency_key = uuid4().hex
            batch = await _patiently(lambda: calls.create(request))
            self._show(batch, batch.id)
            if options.is_watched:
                await self._watch(calls, batch.id)

    async def watch(self, batch_id: str) -> None:
        """Show the progress of a batch until it has ended. Raises FailedPrecondition unless it is completed."""
        async with open_calls(self.target, self.api_key) as calls:
            await self._watch(calls, batch_id)

    async def cancel(self, batch_id: str) -> None:
        async with open_calls(self.target, self.api_key) as calls:
            batch = await calls.cancel(batch_id)
        self._show(batch, f"{batch.id} is {STATES[batch.status]}; its answers so far are written")

    async def fetch(self, batch_id: str, output: str, errors: str) -> None:
        """Write the answers and the errors of a batch that has ended to files; `-` is stdout."""
        async with open_calls(self.target, self.api_key) as calls:
            batch = await calls.find(batch_id)
            if not has_ended(batch):
                text = f"{batch_id} is {STATES[batch.status]}; its files are written at its end: penstock batch watch"
                raise FailedPrecondition(text, reason="BATCH_NOT_ENDED")
            for file_id, name in ((batch.output_file_id, output), (batch.error_file_id, errors)):
                if file_id:
                    await _download(calls, file_id, name)
        stderr_console.print(escape(end_text(batch).partition(";")[0]))

    async def list(self, limit: int) -> None:
        async with open_calls(self.target, self.api_key) as calls:
            found = await calls.list(limit)
        if self.as_json:
            stdout_console.print_json(data=[MessageToDict(each) for each in found])
            return
        table = new_table("batch", "state", "endpoint", "created", numbers=("lines", "completed", "failed"))
        for each in found:
            counts = (each.lines.total, each.lines.completed, each.lines.failed)
            created = f"{each.create_time.ToDatetime().isoformat(timespec='seconds')}Z"
            table.add_row(each.id, STATES[each.status], each.endpoint, created, *(f"{count:,}" for count in counts))
        stdout_console.print(table)

    async def _watch(self, calls: BatchCalls, batch_id: str) -> None:
        with progress_reporter(stderr_console) as report:
            batch = await _patiently(lambda: calls.find(batch_id))
            while not has_ended(batch):
                report(progress_text(batch, time.time()))
                await asyncio.sleep(POLL_INTERVAL_S)
                batch = await _patiently(lambda: calls.find(batch_id))
        if batch.status != pb.BATCH_STATUS_COMPLETED:
            raise FailedPrecondition(end_text(batch), reason="BATCH_NOT_COMPLETED")
        self._show(batch, end_text(batch))

    def _show(self, batch: pb.Batch, text: str) -> None:
        if self.as_json:
            stdout_console.print_json(data=MessageToDict(batch))
        else:
            stdout_console.print(escape(text))


async def _patiently(call: Callable[[], Awaitable[pb.Batch]]) -> pb.Batch:
    """Return a batch, also if no edge answers for up to a minute. Raises PenstockError."""
    failed_since = 0.0
    while True:
        try:
            return await call()
        except Unavailable:
            failed_since = failed_since or time.monotonic()
            if time.monotonic() - failed_since > MAX_SILENCE_S:
                raise
        await asyncio.sleep(POLL_INTERVAL_S)


async def _download(calls: BatchCalls, file_id: str, name: str) -> None:
    """Write a file, which has its name once it is complete. A read that is cut goes on where it was."""
    path = Path(name)
    part = path.with_name(f"{path.name}.part")
    opened = nullcontext(sys.stdout.buffer) if name == STDOUT else part.open("wb")
    written = 0
    try:
        with opened as out, progress_reporter(stderr_console) as report:
            while True:
                before = written
                try:
                    async for content in calls.read(file_id, written):
                        out.write(content)
                        written += len(content)
                        report(f"{name}: {written:,} bytes")
                    break
                except Unavailable:
                    if written == before:
                        raise
        if name != STDOUT:
            part.replace(path)
    finally:
        if name != STDOUT:
            part.unlink(missing_ok=True)
