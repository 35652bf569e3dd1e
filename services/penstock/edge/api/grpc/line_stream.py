"""One stream of `RunLines`: stores lines in small batches, and sends what becomes of them."""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import suppress
from itertools import count
from typing import Any

import orjson

from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import InvalidArgument, NotFound, PenstockError, error_from_failure, failure_from
from penstock.chassis.lifecycle import background
from penstock.edge.api.grpc.line_groups import LineCollector, LineGroup, ResultNumbers
from penstock.edge.api.openai.batches.objects import ENDPOINTS
from penstock.edge.gateway import Gateway
from penstock.edge.upstreams.batches import BatchClient
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.mesh.v1.batch_pb2 import Owner
from penstock.v1 import batches_pb2 as pb

STREAM_KEY = "penstock.stream"  # in the metadata of its batches
NAME_FORMAT = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
WINDOW_RANGE_S = (60.0, 7 * 86_400.0)
MAX_BODY_BYTES = 4 << 20
MAX_CUSTOM_ID_CHARS = 64
MAX_OPEN_BATCHES = 16  # of one stream; then lines wait at the program
MAX_WAITING_FRAMES = 64  # to the program
POLL_INTERVAL_S = 0.5
POLLS_PER_FRAME = 10  # the program hears from the edge as often at least
OUTPUT_TTL_S = 86_400  # for which results wait for a program
UPLOAD_TIMEOUT_S = 60.0
BATCHES_PER_PAGE = 100
RUNNING = frozenset(
    {
        pb.BATCH_STATUS_VALIDATING,
        pb.BATCH_STATUS_IN_PROGRESS,
        pb.BATCH_STATUS_FINALIZING,
        pb.BATCH_STATUS_CANCELLING,
    }
)


class LineStream:
    """Iterate `responses` for the frames to the program."""

    def __init__(
        self, gateway: Gateway, batches: BatchClient, credential: Credential, owner: Owner, opened: pb.OpenLines
    ) -> None:
        """Raises InvalidArgument."""
        _check(opened)
        self._gateway = gateway
        self._batches = batches
        self._credential = credential
        self._owner = owner
        self._opened = opened
        self._lines = LineCollector(opened.endpoint)
        self._numbers = ResultNumbers()
        self._stored = 0  # lines of this stream
        self._open: deque[str] = deque()  # batches whose results are not sent, the oldest first
        self._files: dict[str, tuple[str, ...]] = {}  # of batches whose results are sent, until they are deleted
        self._is_storing = False  # lines that were taken, and are in no batch yet
        self._has_ended = False  # no line follows
        self._changed = asyncio.Event()  # there are more lines, or none follows
        self._has_room = asyncio.Event()  # lines were taken to be stored
        self._frames: asyncio.Queue[pb.RunLinesResponse | PenstockError | None] = asyncio.Queue(MAX_WAITING_FRAMES)

    async def responses(self, requests: AsyncIterator[pb.RunLinesRequest]) -> AsyncGenerator[pb.RunLinesResponse, None]:
        """Yield frames until all results are acknowledged, or the program leaves. Raises the first error."""
        await self._find_batches()
        work = (self._read(requests), self._store(), self._collect())
        async with background(*map(self._reported, work)):
            while (frame := await self._frames.get()) is not None:
                if isinstance(frame, PenstockError):
                    raise frame
                yield frame

    async def _reported(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001  # logged by `failure_from`; the program receives it
            await self._frames.put(error_from_failure(failure_from(error)))

    async def _find_batches(self) -> None:
        """Find the batches of earlier streams of this name."""
        found: list[str] = []
        after, has_more = "", True
        while has_more:
            request = pb.ListBatchesRequest(page_size=BATCHES_PER_PAGE, after=after)
            page = (await self._batches.call(self._owner, list_batches=request)).batches
            found += [each.id for each in page.batches if each.metadata.get(STREAM_KEY) == self._opened.name]
            has_more, after = page.has_more, page.batches[-1].id if page.batches else ""
        self._open.extend(reversed(found))

    # Lines.

    async def _read(self, requests: AsyncIterator[pb.RunLinesRequest]) -> None:
        loop = asyncio.get_running_loop()
        async for request in requests:
            match request.WhichOneof("frame"):
                case "line" if not self._has_ended:
                    _check_line(request.line)
                    self._lines.add(request.line.custom_id, request.line.body, loop.time())
                    self._changed.set()
                    if not self._lines.due_in(loop.time()):  # the program waits for room
                        self._has_room.clear()
                        await self._has_room.wait()
                case "acknowledge":
                    await self._delete(self._numbers.acknowledge(request.acknowledge.number))
                    await self._end_if_done()
                case "end":
                    self._has_ended = True
                    self._changed.set()
                    await self._end_if_done()
                case _:
                    raise InvalidArgument("after `open` a stream has lines, acknowledgements and `end`", field="frame")
        await self._frames.put(None)

    async def _store(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._lines:
                if not self._has_ended and (delay := self._lines.due_in(loop.time())):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(delay):
                            await self._changed.wait()
                            self._changed.clear()
                    continue
                while len(self._open) >= MAX_OPEN_BATCHES:  # noqa: ASYNC110  # `_collect` looks at them as often
                    await asyncio.sleep(POLL_INTERVAL_S)
                self._is_storing = True
                group = self._lines.take()
                self._has_room.set()
                await self._store_group(group)
                self._is_storing = False
            await self._end_if_done()

    async def _store_group(self, group: LineGroup) -> None:
        async def content() -> AsyncIterator[bytes]:
            yield group.content

        header = pb.UploadHeader(filename=f"{self._opened.name}.jsonl", purpose=pb.FILE_PURPOSE_BATCH)
        file = await self._batches.upload(self._owner, header, content(), timeout=UPLOAD_TIMEOUT_S)
        request = pb.CreateBatchRequest(
            input_file_id=file.id, endpoint=self._opened.endpoint, metadata={STREAM_KEY: self._opened.name}
        )
        if self._opened.HasField("completion_window"):
            request.completion_window.CopyFrom(self._opened.completion_window)
        request.output_ttl.seconds = OUTPUT_TTL_S
        owner = Owner()
        owner.CopyFrom(self._owner)
        owner.delegation = await self._gateway.delegate(self._credential)
        batch = (await self._batches.call(owner, create_batch=request)).batch
        self._open.append(batch.id)
        self._stored += group.lines
        await self._send_stored()

    async def _send_stored(self) -> None:
        await self._frames.put(pb.RunLinesResponse(stored=pb.LinesStored(lines=self._stored)))

    # Results.

    async def _collect(self) -> None:
        """Send the results of batches that have ended, in any order of batches."""
        for poll in count(1):
            for batch_id in list(self._open):
                request = pb.GetBatchRequest(batch_id=batch_id)
                batch = (await self._batches.call(self._owner, get_batch=request)).batch
                if batch.status not in RUNNING:
                    await self._send_results(batch)
                    self._open.remove(batch_id)
            await self._end_if_done()
            if poll % POLLS_PER_FRAME == 0:
                await self._send_stored()
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _send_results(self, batch: pb.Batch) -> None:
        """Send the results of one batch. An earlier stream may have deleted them, once they were acknowledged."""
        for file_id, is_error in ((batch.output_file_id, False), (batch.error_file_id, True)):
            if not file_id:
                continue
            try:
                async for row in self._rows(file_id):
                    result = pb.LineResult(
                        number=self._numbers.next_number(),
                        custom_id=orjson.loads(row)["custom_id"] or "",
                        is_error=is_error,
                        row=row,
                    )
                    await self._frames.put(pb.RunLinesResponse(result=result))
            except NotFound:
                continue
        self._files[batch.id] = (batch.output_file_id, batch.error_file_id, batch.input_file_id)
        self._numbers.end_batch(batch.id)
        await self._delete(self._numbers.acknowledge(0))  # one without results

    async def _rows(self, file_id: str) -> AsyncIterator[bytes]:
        rest = b""
        async for content in self._batches.read(self._owner, file_id):
            *rows, rest = (rest + content).split(b"\n")
            for row in rows:
                yield row
        if rest:
            yield rest

    async def _delete(self, batch_ids: list[str]) -> None:
        for batch_id in batch_ids:
            for file_id in filter(None, self._files[batch_id]):
                with suppress(NotFound):
                    await self._batches.call(self._owner, delete_file=pb.DeleteFileRequest(file_id=file_id))
            del self._files[batch_id]

    async def _end_if_done(self) -> None:
        if self._has_ended and not (self._lines or self._is_storing or self._open or self._files):
            await self._frames.put(None)


def _check(opened: pb.OpenLines) -> None:
    if not NAME_FORMAT.fullmatch(opened.name):
        raise InvalidArgument("name must have 1 to 64 letters, digits, `-`, `_`, `.` or `:`", field="open.name")
    if opened.endpoint not in ENDPOINTS:
        raise InvalidArgument(f"endpoint must be one of {', '.join(ENDPOINTS)}", field="open.endpoint")
    low, high = WINDOW_RANGE_S
    if opened.HasField("completion_window") and not low <= seconds_of(opened.completion_window) <= high:
        text = f"completion_window must be {low:g} to {high:g} s"
        raise InvalidArgument(text, field="open.completion_window")


def _check_line(line: pb.BatchLine) -> None:
    if not 1 <= len(line.custom_id) <= MAX_CUSTOM_ID_CHARS:
        text = f"custom_id must have 1 to {MAX_CUSTOM_ID_CHARS} characters"
        raise InvalidArgument(text, field="line.custom_id")
    if len(line.body) > MAX_BODY_BYTES:
        text = f"body has {len(line.body)} bytes; at most {MAX_BODY_BYTES} are allowed"
        raise InvalidArgument(text, field="line.body")
