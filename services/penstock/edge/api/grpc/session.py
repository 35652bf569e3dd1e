"""Session handler: many requests of one client on one stream."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from penstock.chassis.errors import InvalidArgument, PenstockError, Unavailable
from penstock.chassis.lifecycle import current_stop
from penstock.chassis.observability.trace_context import TRACE_ID, traceparent_or_empty
from penstock.chassis.streams import endpoint
from penstock.chassis.streams.link import Peer
from penstock.chassis.streams.ticks import TICK_S
from penstock.edge.admission.filter import CallerClassCache
from penstock.edge.api.grpc.messages import estimate_from_message, spec_of
from penstock.edge.gateway import Gateway
from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.observability.request_spans import record_rejection
from penstock.edge.lifecycle.sinks import SessionSink, UnflushedOutput, failed_frame, step_frame
from penstock.edge.regions.drain import RegionDrain
from penstock.edge.request.estimate import AdmissionResult
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1 import inference_pb2 as pb
from penstock.v1.stream_pb2 import End, Heartbeat

MAX_STALLED_FLUSHES = (
    30  # flushes of `FLUSH_TIMEOUT_S` each, after which the session of a client that does not read is closed
)


class SessionHandler:
    """Serves one session. Step frames are written one at a time; later output waits in the sinks of its requests."""

    def __init__(
        self,
        gateway: Gateway,
        peer: Peer[pb.SessionResponse, Any],
        credential: Credential,
        traceparent: str,  # of the session's call, valid or empty
        session: str = "",  # name of the conversation of all its requests; empty: it names none
        *,
        drain: RegionDrain,
    ) -> None:
        self._gateway = gateway
        self._peer = peer
        self._credential = credential
        self._traceparent = traceparent
        self._session = session
        self._region_drain = drain
        self._caller_classes = CallerClassCache()
        self._contexts: dict[int, RequestContext] = {}
        self._starting: dict[int, asyncio.Task[None]] = {}
        self._pending_sinks: dict[int, SessionSink] = {}
        self._unflushed = UnflushedOutput(gateway.memory, partial(peer.close, "client does not read"))
        self._has_output = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_draining = False
        self._is_closed = False

    async def run(self) -> None:
        """Serve the stream to its end. Requests that run when it is lost are cancelled."""
        async with asyncio.TaskGroup() as self._group:
            ends = (current_stop().requested.wait, self._region_drain.wait_move)
            loops = [self._group.create_task(each) for each in (self._write_steps(), *map(self._drain_after, ends))]
            try:
                async for frame in self._peer:
                    self._on_frame(frame)
                if self._peer.has_peer_ended:
                    await self._wait_idle()
            finally:
                self._is_closed = True
                for context in list(self._contexts.values()):
                    self._gateway.cancel(context)
                self._unflushed.release()
                for each in loops:
                    each.cancel()

    # Calls of sinks.

    def send(self, frame: pb.SessionResponse) -> None:
        # A client that lost its stream resumes at another edge, so it must not receive acknowledged cancels.
        if not self._is_closed:
            self._peer.send(frame)

    @property
    def has_client_left(self) -> bool:
        """Whether the client has closed or ended the stream, so that it reads no further frame about a cancel."""
        return self._is_closed or self._peer.has_peer_ended

    def on_output(self, sink: SessionSink) -> None:
        if not self._pending_sinks:
            self._has_output.set()
        self._pending_sinks[sink.handle] = sink

    def on_output_moved(self, size: int) -> None:
        if not self._is_closed:
            self._unflushed.add(size)
            self._has_output.set()

    def on_request_over(self, sink: SessionSink) -> None:
        self._pending_sinks.pop(sink.handle, None)
        self._contexts.pop(sink.handle, None)
        self._check_idle()

    def _check_idle(self) -> None:
        if not self._contexts:
            self._is_idle.set()

    # Frames of the client.

    def _on_frame(self, frame: pb.SessionRequest) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "generate":
            self._generate(frame.generate)
        elif kind == "cancel" and frame.cancel.handle in self._contexts:
            self._cancel(frame.cancel.handle)

    def _cancel(self, handle: int) -> None:
        """Cancel a request, and the tokenization of its prompt, so that its memory is free at once."""
        starting = self._starting.get(handle)
        self._gateway.cancel(self._contexts[handle])
        if starting:
            starting.cancel()

    def _generate(self, frame: pb.SessionGenerate) -> None:
        if frame.handle in self._contexts:
            text = f"handle {frame.handle} is in use by a running request; choose a handle that is free"
            raise InvalidArgument(text, field="handle", reason="HANDLE_IN_USE")
        parent, link = self._trace_of(frame.request)
        try:
            self._check_accepting()
            admission = self._gateway.admit(
                estimate_from_message(frame.request),
                self._credential,
                traceparent=parent,
                caller_classes=self._caller_classes,
                session=lambda: self._session,
            )
            self._start(frame, admission, parent, link)
        except InvalidArgument as error:
            self._group.create_task(self._reject_invalid(frame, error))
        except PenstockError as error:
            self._reject(frame, error)

    async def _reject_invalid(self, frame: pb.SessionGenerate, error: PenstockError) -> None:
        """Reject an invalid request. A caller whose key is no longer accepted receives that in place of `error`."""
        try:
            await self._gateway.authenticate(self._credential)
        except PenstockError as rejection:
            error = rejection
        self._reject(frame, error)

    def _reject(self, frame: pb.SessionGenerate, error: PenstockError) -> None:
        """Reject a request that has no context. Its span has no length, as the rejection takes no time."""
        record_rejection(error, *self._trace_of(frame.request))
        self.send(failed_frame(frame.handle, error))

    def _trace_of(self, request: pb.GenerateRequest) -> tuple[str, str]:
        """Return the traceparent of a request, and that of the session if it is of another trace; either may be empty.

        A request without a traceparent begins a new trace: a session may last for days.
        """
        given = traceparent_or_empty(request.traceparent)
        if given and given[TRACE_ID] == self._traceparent[TRACE_ID]:
            return self._traceparent, ""  # a proxy's span of the session lies between the client's and ours
        return given, self._traceparent

    def _start(self, frame: pb.SessionGenerate, admission: AdmissionResult, parent: str, link: str) -> None:
        spec, sink = spec_of(frame.request), SessionSink(self, frame.handle, self._gateway.memory)
        if spec.n > 1:
            raise InvalidArgument(f"n is {spec.n}; a session starts a request for each answer", field="n")
        context = self._gateway.create(spec, self._credential, admission, sink, traceparent=parent, session_link=link)
        self._contexts[frame.handle] = context
        self._is_idle.clear()
        self._starting[frame.handle] = starting = self._group.create_task(self._gateway.start(context))
        starting.add_done_callback(lambda done: self._on_started(frame.handle, done))

    def _on_started(self, handle: int, task: asyncio.Task[None]) -> None:
        if self._starting.get(handle) is task:  # the handle may be in use by a later request
            del self._starting[handle]

    def _check_accepting(self) -> None:
        if self._is_draining:
            raise Unavailable("this edge drains; open another session", reason="DRAINING", retry_after=0.1)

    # Tasks of the stream.

    async def _write_steps(self) -> None:
        """Write one frame for all requests with new output, each time the previous frame was flushed."""
        while True:
            await self._has_output.wait()
            self._has_output.clear()
            sinks = [sink for sink in self._pending_sinks.values() if sink.buffer.size_bytes]
            self._pending_sinks.clear()
            if sinks:
                self.send(step_frame(sinks))
            if sinks or self._unflushed.size_bytes:
                await self._wait_flushed()
                self._unflushed.release()

    async def _wait_flushed(self) -> None:
        for _ in range(MAX_STALLED_FLUSHES):
            begun = time.monotonic()
            await self._peer.flush()
            if time.monotonic() - begun < endpoint.FLUSH_TIMEOUT_S:
                return
        self._peer.close("client does not read")

    async def _wait_idle(self) -> None:
        """Wait until the last request ends.

        A client that sent `end` sends no more frames, so its silence limit is disabled. Transport pings still detect
        a lost client.
        """
        while self._contexts:
            self._peer.on_frame(pb.SessionRequest(heartbeat=Heartbeat()))
            try:
                async with asyncio.timeout(TICK_S):
                    await self._is_idle.wait()
            except TimeoutError:
                continue

    async def _drain_after(self, wait_drain: Callable[[], Awaitable[object]]) -> None:
        """When this edge or its region drains, reject new requests and end the stream once no request runs on it."""
        await wait_drain()
        if self._is_draining:
            return
        self._is_draining = True
        await self._is_idle.wait()
        self.send(pb.SessionResponse(end=End(reason="draining")))
        await self._peer.flush()
        self._peer.close("draining")
