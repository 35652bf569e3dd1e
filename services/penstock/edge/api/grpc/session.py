"""One client's session: many requests on one stream, each ending alone."""

import asyncio
import time
from typing import Any

from penstock.chassis.errors import InvalidArgument, PenstockError, Unavailable
from penstock.chassis.lifecycle import current_stop
from penstock.chassis.streams import endpoint
from penstock.chassis.streams.link import Peer
from penstock.edge.admission.filter import CallerClassCache
from penstock.edge.api.grpc.messages import estimate_from_message, spec_of
from penstock.edge.gateway import Gateway
from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.sinks import SessionSink, failed_frame, step_frame
from penstock.edge.request.estimate import AdmissionProbe, AdmissionResult
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1 import inference_pb2 as pb
from penstock.v1.stream_pb2 import End, Heartbeat

MAX_STALLED_FLUSHES = 30  # tries of FLUSH_TIMEOUT each; a client that takes nothing in all of them loses its session


class SessionHandler:
    """Handles to flights. Step frames are written one at a time: what comes meanwhile waits with its own request."""

    def __init__(
        self, gateway: Gateway, peer: Peer[pb.SessionResponse, Any], credential: Credential, traceparent: str
    ) -> None:
        self._gateway = gateway
        self._peer = peer
        self._credential = credential
        self._traceparent = traceparent
        self._caller_classes = CallerClassCache()
        self._contexts: dict[int, RequestContext] = {}
        self._probing: dict[int, asyncio.Task[None]] = {}  # nothing else is known of these
        self._starting: dict[int, asyncio.Task[None]] = {}
        self._pending_sinks: dict[int, SessionSink] = {}
        self._has_output = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_draining = False
        self._is_closed = False

    async def run(self) -> None:
        """Serve the stream to its end; what still runs when it is cut is cancelled."""
        async with asyncio.TaskGroup() as self._group:
            loops = [self._group.create_task(self._write_steps()), self._group.create_task(self._drain())]
            try:
                async for frame in self._peer:
                    self._on_frame(frame)
                if self._peer.has_peer_ended:
                    await self._wait_idle()
            finally:
                self._is_closed = True
                for context in list(self._contexts.values()):
                    self._gateway.cancel(context)
                for each in (*loops, *self._probing.values()):
                    each.cancel()

    # What a request's outlet tells.

    def send(self, frame: pb.SessionResponse) -> None:
        # Whoever loses its stream is to go on elsewhere; a receipt would say that it had cancelled.
        if not self._is_closed:
            self._peer.send(frame)

    def on_output(self, sink: SessionSink) -> None:
        self._pending_sinks[sink.handle] = sink
        self._has_output.set()

    def on_request_over(self, sink: SessionSink) -> None:
        self._pending_sinks.pop(sink.handle, None)
        self._contexts.pop(sink.handle, None)
        self._check_idle()

    def _check_idle(self) -> None:
        if not (self._contexts or self._probing):
            self._is_idle.set()

    # What the client says.

    def _on_frame(self, frame: pb.SessionRequest) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "generate":
            self._generate(frame.generate)
        elif kind == "cancel" and frame.cancel.handle in self._contexts:
            self._cancel(frame.cancel.handle)
        elif kind == "cancel" and frame.cancel.handle in self._probing:
            self._probing.pop(frame.cancel.handle).cancel()
            self.send(pb.SessionResponse(cancelled=pb.SessionCancelled(handle=frame.cancel.handle)))
            self._check_idle()

    def _cancel(self, handle: int) -> None:
        """A prompt that still waits to be tokenized is let go as well: its room at this edge is free from now on."""
        preparing = self._starting.get(handle)
        self._gateway.cancel(self._contexts[handle])
        if preparing:
            preparing.cancel()

    def _generate(self, frame: pb.SessionGenerate) -> None:
        if frame.handle in self._contexts or frame.handle in self._probing:
            text = f"handle {frame.handle} names a running request already; nobody could tell the two apart"
            raise InvalidArgument(text, field="handle", reason="HANDLE_IN_USE")
        traceparent = frame.request.traceparent or self._traceparent
        try:
            self._check_accepting()
            admission = self._gateway.admit(
                estimate_from_message(frame.request),
                self._credential,
                traceparent=traceparent,
                caller_classes=self._caller_classes,
            )
            if admission.probe:
                self._is_idle.clear()
                self._probing[frame.handle] = self._group.create_task(
                    self._probe(frame, admission.probe, admission, traceparent)
                )
                return
            self._start(frame, admission, traceparent)
        except PenstockError as error:
            self.send(failed_frame(frame.handle, error))

    async def _probe(
        self, frame: pb.SessionGenerate, probe: AdmissionProbe, admission: AdmissionResult, traceparent: str
    ) -> None:
        """Nothing is made of a request while the queue is asked, so a cancel has nothing to end but this."""
        try:
            await self._gateway.probe(probe, frame.ByteSize())
            del self._probing[frame.handle]
            self._check_accepting()
            self._start(frame, admission, traceparent)
        except PenstockError as error:
            self._probing.pop(frame.handle, None)
            self.send(failed_frame(frame.handle, error))
        self._check_idle()

    def _start(self, frame: pb.SessionGenerate, admission: AdmissionResult, traceparent: str) -> None:
        spec, sink = spec_of(frame.request), SessionSink(self, frame.handle)
        context = self._gateway.create(spec, self._credential, admission, sink, traceparent=traceparent)
        self._contexts[frame.handle] = context
        self._is_idle.clear()
        self._starting[frame.handle] = preparing = self._group.create_task(self._gateway.start(context))
        preparing.add_done_callback(lambda done: self._on_started(frame.handle, done))

    def _on_started(self, handle: int, task: asyncio.Task[None]) -> None:
        if self._starting.get(handle) is task:  # a handle that is free again may be taken by the next request
            del self._starting[handle]

    def _check_accepting(self) -> None:
        if self._is_draining:
            raise Unavailable("this edge drains; open a session to another", reason="DRAINING", retry_after=0.1)

    # Loops of the stream.

    async def _write_steps(self) -> None:
        """One frame for all requests that have something new, each time the last frame was taken."""
        while True:
            await self._has_output.wait()
            self._has_output.clear()
            sinks = list(self._pending_sinks.values())
            self._pending_sinks.clear()
            if sinks:
                self.send(step_frame(sinks))
                await self._wait_flushed()

    async def _wait_flushed(self) -> None:
        for _ in range(MAX_STALLED_FLUSHES):
            begun = time.monotonic()
            await self._peer.flush()
            if time.monotonic() - begun < endpoint.FLUSH_TIMEOUT_S:
                return
        self._peer.close("client does not read")

    async def _wait_idle(self) -> None:
        """Go on until the last request ends. A client that said `end` is silent by right, so its silence is no news:
        the transport's own pings still tell when it dies.
        """
        while self._contexts or self._probing:
            self._peer.on_frame(pb.SessionRequest(heartbeat=Heartbeat()))
            try:
                async with asyncio.timeout(endpoint.TICK_S):
                    await self._is_idle.wait()
            except TimeoutError:
                continue

    async def _drain(self) -> None:
        """When this process is to end: take nothing new, and end the stream once nothing runs on it."""
        await current_stop().requested.wait()
        self._is_draining = True
        await self._is_idle.wait()
        self.send(pb.SessionResponse(end=End(reason="draining")))
        await self._peer.flush()
        self._peer.close("draining")
