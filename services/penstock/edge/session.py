"""One client's session: many requests on one stream, each ending alone."""

import asyncio
import time
from typing import Any

from penstock.chassis import stream_end
from penstock.chassis.errors import InvalidArgument, PenstockError, Unavailable
from penstock.chassis.lifecycle import this_stop
from penstock.chassis.streams import Peer
from penstock.edge.gateway import Gateway
from penstock.edge.outlets.session_outlet import SessionOutlet, failed_of, step_of
from penstock.edge.passage import Passage
from penstock.edge.request.outline import Arrival, Knock
from penstock.edge.standing import Standings
from penstock.edge.wire import outline_of, spec_of
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1 import inference_pb2 as pb
from penstock.v1.stream_pb2 import End, Heartbeat

STALLED_FLUSHES = 30  # tries of FLUSH_TIMEOUT each; a client that takes nothing in all of them loses its session


class Session:
    """Handles to flights. Step frames are written one at a time: what comes meanwhile waits with its own request."""

    def __init__(
        self, gateway: Gateway, peer: Peer[pb.SessionResponse, Any], credential: Credential, traceparent: str
    ) -> None:
        self._gateway = gateway
        self._peer = peer
        self._credential = credential
        self._traceparent = traceparent
        self._standings = Standings()
        self._running: dict[int, Passage] = {}
        self._knocking: dict[int, asyncio.Task[None]] = {}  # nothing else is known of these
        self._preparing: dict[int, asyncio.Task[None]] = {}
        self._with_pieces: dict[int, SessionOutlet] = {}
        self._has_pieces = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_draining = False
        self._is_left = False

    async def run(self) -> None:
        """Serve the stream to its end; what still runs when it is cut is cancelled."""
        async with asyncio.TaskGroup() as self._group:
            loops = [self._group.create_task(self._write_steps()), self._group.create_task(self._drain())]
            try:
                async for frame in self._peer:
                    self._on_frame(frame)
                if self._peer.ended:
                    await self._outlast()
            finally:
                self._is_left = True
                for passage in list(self._running.values()):
                    self._gateway.cancel(passage)
                for each in (*loops, *self._knocking.values()):
                    each.cancel()

    # What a request's outlet tells.

    def say(self, frame: pb.SessionResponse) -> None:
        # Whoever loses its stream is to go on elsewhere; a receipt would say that it had cancelled.
        if not self._is_left:
            self._peer.send(frame)

    def has_piece(self, outlet: SessionOutlet) -> None:
        self._with_pieces[outlet.handle] = outlet
        self._has_pieces.set()

    def is_over(self, outlet: SessionOutlet) -> None:
        self._with_pieces.pop(outlet.handle, None)
        self._running.pop(outlet.handle, None)
        self._look()

    def _look(self) -> None:
        if not (self._running or self._knocking):
            self._is_idle.set()

    # What the client says.

    def _on_frame(self, frame: pb.SessionRequest) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "generate":
            self._generate(frame.generate)
        elif kind == "cancel" and frame.cancel.handle in self._running:
            self._cancel(frame.cancel.handle)
        elif kind == "cancel" and frame.cancel.handle in self._knocking:
            self._knocking.pop(frame.cancel.handle).cancel()
            self.say(pb.SessionResponse(cancelled=pb.SessionCancelled(handle=frame.cancel.handle)))
            self._look()

    def _cancel(self, handle: int) -> None:
        """A prompt that still waits to be tokenized is let go as well: its room at this edge is free from now on."""
        preparing = self._preparing.get(handle)
        self._gateway.cancel(self._running[handle])
        if preparing:
            preparing.cancel()

    def _generate(self, asked: pb.SessionGenerate) -> None:
        if asked.handle in self._running or asked.handle in self._knocking:
            text = f"handle {asked.handle} names a running request already; nobody could tell the two apart"
            raise InvalidArgument(text, field="handle", reason="HANDLE_IN_USE")
        traceparent = asked.request.traceparent or self._traceparent
        try:
            self._check_open()
            arrival = self._gateway.arrive(
                outline_of(asked.request), self._credential, traceparent=traceparent, standings=self._standings
            )
            if arrival.knock:
                self._is_idle.clear()
                self._knocking[asked.handle] = self._group.create_task(
                    self._knock(asked, arrival.knock, arrival, traceparent)
                )
                return
            self._open(asked, arrival, traceparent)
        except PenstockError as error:
            self.say(failed_of(asked.handle, error))

    async def _knock(self, asked: pb.SessionGenerate, knock: Knock, arrival: Arrival, traceparent: str) -> None:
        """Nothing is made of a request while the queue is asked, so a cancel has nothing to end but this."""
        try:
            await self._gateway.knock(knock, asked.ByteSize())
            del self._knocking[asked.handle]
            self._check_open()
            self._open(asked, arrival, traceparent)
        except PenstockError as error:
            self._knocking.pop(asked.handle, None)
            self.say(failed_of(asked.handle, error))
        self._look()

    def _open(self, asked: pb.SessionGenerate, arrival: Arrival, traceparent: str) -> None:
        spec, outlet = spec_of(asked.request), SessionOutlet(self, asked.handle)
        passage = self._gateway.open(spec, self._credential, arrival, outlet, traceparent=traceparent)
        self._running[asked.handle] = passage
        self._is_idle.clear()
        self._preparing[asked.handle] = preparing = self._group.create_task(self._gateway.prepare(passage))
        preparing.add_done_callback(lambda done: self._is_prepared(asked.handle, done))

    def _is_prepared(self, handle: int, preparing: asyncio.Task[None]) -> None:
        if self._preparing.get(handle) is preparing:  # a handle that is free again may be taken by the next request
            del self._preparing[handle]

    def _check_open(self) -> None:
        if self._is_draining:
            raise Unavailable("this edge drains; open a session to another", reason="DRAINING", retry_after=0.1)

    # Loops of the stream.

    async def _write_steps(self) -> None:
        """One frame for all requests that have something new, each time the last frame was taken."""
        while True:
            await self._has_pieces.wait()
            self._has_pieces.clear()
            outlets = list(self._with_pieces.values())
            self._with_pieces.clear()
            if outlets:
                self.say(step_of(outlets))
                await self._taken()

    async def _taken(self) -> None:
        for _ in range(STALLED_FLUSHES):
            begun = time.monotonic()
            await self._peer.flush()
            if time.monotonic() - begun < stream_end.FLUSH_TIMEOUT:
                return
        self._peer.close("client does not read")

    async def _outlast(self) -> None:
        """Go on until the last request ends. A client that said `end` is silent by right, so its silence is no news:
        the transport's own pings still tell when it dies.
        """
        while self._running or self._knocking:
            self._peer.understand(pb.SessionRequest(heartbeat=Heartbeat()))
            try:
                async with asyncio.timeout(stream_end.TICK):
                    await self._is_idle.wait()
            except TimeoutError:
                continue

    async def _drain(self) -> None:
        """When this process is to end: take nothing new, and end the stream once nothing runs on it."""
        await this_stop().asked.wait()
        self._is_draining = True
        await self._is_idle.wait()
        self.say(pb.SessionResponse(end=End(reason="draining")))
        await self._peer.flush()
        self._peer.close("draining")
