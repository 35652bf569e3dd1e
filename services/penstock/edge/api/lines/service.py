"""The service `LineService` of an edge: runs lines of batches for batch processes."""

import asyncio
from contextlib import suppress
from typing import Any

import structlog

from penstock.chassis.errors import (
    InvalidArgument,
    Overloaded,
    PenstockError,
    Unavailable,
    error_from_failure,
    failure_from,
)
from penstock.chassis.lifecycle import background
from penstock.chassis.observability.metrics import counter
from penstock.chassis.streams.link import Peer, accept_stream
from penstock.edge import series
from penstock.edge.api.lines.run import LineRun
from penstock.edge.api.lines.verdict import verdict_of
from penstock.edge.api.openai.errors import http_error
from penstock.edge.gateway import Gateway
from penstock.mesh.limits.bounds import LINE_PROGRESS_BYTES
from penstock.mesh.v1 import batch_pb2 as pb
from penstock.mesh.v1.batch_pb2_grpc import LineServiceServicer
from penstock.v1.stream_pb2 import Hello

log = structlog.get_logger()

MAX_LINES = 4_096  # of one batch process at one edge
OUTBOX_FRAMES = 4 * MAX_LINES
PROGRESS_INTERVAL_S = 2.0
RETRY_AFTER_S = 1.0
SETTLE_TIMEOUT_S = 1.0  # at a drain, for auth to confirm the charges that are on the way
RELEASE_TIMEOUT_S = 2.0  # for the last frames to be sent

_lines = counter(series.LINES)

LinePeer = Peer[pb.RunResponse, pb.RunRequest]


class LineService(LineServiceServicer):
    """The streams of this edge to batch processes."""

    def __init__(self, gateway: Gateway, hello: Hello) -> None:
        self._gateway = gateway
        self._hello = hello
        self._streams: dict[_LineStream, None] = {}  # in order of connection
        self._is_released = False

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the admin snapshot."""
        return {"lines": sum(len(each) for each in self._streams), "line_streams": len(self._streams)}

    async def Run(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # yields nothing
        async with accept_stream(
            context, pb.RunResponse, self._hello, capacity=OUTBOX_FRAMES, tiers=("batch",)
        ) as peer:
            stream = _LineStream(self._gateway, peer)
            self._streams[stream] = None
            if self._is_released:
                stream.end()
            try:
                async with background(stream.report()):
                    async for frame in peer:
                        stream.on_frame(frame)
            finally:
                del self._streams[stream]
                await stream.close()

    async def release(self) -> None:
        """Give all lines back, each with what it has generated, and start none after that.

        A line that is answered ends here once its charge is confirmed: its batch may be cancelled, and run it no more.
        """
        self._is_released = True
        streams = list(self._streams)
        for each in streams:
            each.release()
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await asyncio.gather(*(each.settled() for each in streams))
        for each in streams:
            each.end()
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await asyncio.gather(*(each.flush() for each in streams))
        except TimeoutError:
            log.warning("lines_not_released", streams=len(streams))


class _LineStream:
    """The lines that one batch process runs here, by number. Each ends with one `ended`, unless the stream is cut."""

    def __init__(self, gateway: Gateway, peer: LinePeer) -> None:
        self._gateway = gateway
        self._peer = peer
        self.runs: dict[int, tuple[LineRun, asyncio.Task[None]]] = {}
        self._is_released = False
        self._refused: list[int] = []  # lines that arrived after the release
        self._tasks: set[asyncio.Task[None]] = set()  # of lines that have not unwound

    def __len__(self) -> int:
        """Return the number of lines that have not ended."""
        return len(self.runs) + len(self._refused)

    def on_frame(self, frame: pb.RunRequest) -> None:
        match frame.WhichOneof("frame"):
            case "start":
                self._start(frame.start)
            case "stop":
                self._stop(frame.stop.number)

    def _start(self, start: pb.StartLine) -> None:
        if start.number in self.runs:
            text = f"line {start.number} is running; give each line a number of its own"
            raise InvalidArgument(text, field="number", reason="LINE_NUMBER_IN_USE")
        if len(self) >= MAX_LINES:
            text = f"this edge runs {MAX_LINES} lines of this process and accepts no more now"
            self._end(start.number, Overloaded(text, reason="EDGE_FULL", retry_after=RETRY_AFTER_S))
        elif self._is_released:
            self._refused.append(start.number)  # refused at once, it would be started here again
        else:
            number = start.number
            run = LineRun(
                self._gateway,
                start,
                lambda: self._peer.send(pb.RunResponse(running=pb.LineRunning(number=number))),
            )
            task = asyncio.get_running_loop().create_task(self._run(run), name=f"line {start.line_id}")
            self.runs[number] = run, task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _stop(self, number: int) -> None:
        """End a line, except one that is answered and charged: there may be no further run that reports the answer."""
        if number in self.runs and not self.runs[number][0].settlements.is_settling:
            self._give_back(number, _stopped())

    async def _run(self, run: LineRun) -> None:
        number = run.start.number
        try:
            body = await run.answer()
            await run.settlements.settle()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  # logged by `failure_from`; one line must not end its stream
            failed = error if isinstance(error, PenstockError) else error_from_failure(failure_from(error))
            if run.is_resumed and failed.reason == "MODEL_REPLACED":  # the next run begins anew
                self._send_progress(number, b"")
            self._end(number, failed, has_own_timeout=run.has_own_timeout)
        else:
            del self.runs[number]
            ended = pb.LineEnded(
                number=number,
                verdict=pb.LINE_VERDICT_ANSWERED,
                status=200,
                body=body,
                input_tokens=run.input_tokens,
                output_tokens=run.output_tokens,
                request_id=run.start.line_id,
            )
            self._send_ended(ended)
        finally:
            run.settlements.drop()

    def _end(self, number: int, error: PenstockError, *, has_own_timeout: bool = False) -> None:
        run = self.runs.pop(number, None)
        response = http_error(error)
        ended = pb.LineEnded(
            number=number,
            verdict=verdict_of(error, has_own_timeout=has_own_timeout),
            status=response.status,
            body=response.body,
            request_id=run[0].start.line_id if run else "",
        )
        error.write_to(ended.failure)
        self._send_ended(ended)

    def _send_ended(self, ended: pb.LineEnded) -> None:
        _lines.labels(pb.LineVerdict.Name(ended.verdict).removeprefix("LINE_VERDICT_").lower()).inc()
        self._peer.send(pb.RunResponse(ended=ended))

    def _give_back(self, number: int, error: PenstockError) -> None:
        """End a line that runs, with what it has generated. No effect on one that has ended."""
        if number not in self.runs:
            return
        run, task = self.runs[number]
        if state := run.progress():
            self._send_progress(number, state.SerializeToString())
        self._end(number, error)
        task.cancel()

    def release(self) -> None:
        """Give all lines back except those that are answered, and start none."""
        self._is_released = True
        for number, (run, _) in list(self.runs.items()):
            if not run.settlements.is_settling:
                self._give_back(number, _drains())

    async def settled(self) -> None:
        """Return once the lines that were left by `release` have ended."""
        if tasks := [task for _, task in self.runs.values()]:
            await asyncio.wait(tasks)

    def end(self) -> None:
        """Give back what is left. The end of the stream follows, because nothing is read after it."""
        self._is_released = True
        for number in list(self.runs):
            self._give_back(number, _drains())
        for number in self._refused:
            self._end(number, _drains())
        self._refused.clear()
        self._peer.send_end("this edge drains")

    async def flush(self) -> None:
        await self._peer.flush()

    async def report(self) -> None:
        """Send what lines have generated, until cancelled."""
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            for number, (run, _) in list(self.runs.items()):
                if state := run.progress():
                    self._send_progress(number, state.SerializeToString())

    def _send_progress(self, number: int, progress: bytes) -> None:
        """A line whose progress is too large for a frame begins anew elsewhere."""
        if len(progress) <= LINE_PROGRESS_BYTES:
            self._peer.send(pb.RunResponse(progress=pb.LineProgress(number=number, progress=progress)))

    async def close(self) -> None:
        """Cancel the lines that are left: another edge may run them."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


def _stopped() -> PenstockError:
    return Unavailable("the batch process has stopped the line", reason="LINE_STOPPED", retry_after=0.0)


def _drains() -> PenstockError:
    return Unavailable("this edge drains", reason="DRAINING", retry_after=0.0)
