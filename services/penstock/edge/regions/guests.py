"""The service `RegionService` of an edge: runs requests of other regions as guests."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from penstock.chassis.durations import NANOS_PER_S
from penstock.chassis.errors import (
    InvalidArgument,
    NotFound,
    Overloaded,
    PenstockError,
    Unavailable,
)
from penstock.chassis.observability.metrics import counter
from penstock.chassis.observability.trace_context import traceparent_or_empty
from penstock.chassis.streams.link import Peer, accept_stream
from penstock.edge import series
from penstock.edge.gateway import Gateway
from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.effects import Emit, Settle
from penstock.edge.models.catalog import ModelCatalog
from penstock.edge.regions.drain import RegionDrain
from penstock.edge.regions.guest_run import GuestRun, failed_frame, rejected_frame
from penstock.edge.regions.offered import identity_of, plan_of, spec_of
from penstock.edge.request.estimate import AdmissionResult
from penstock.edge.request.limits import TIMEOUT_S
from penstock.edge.runner import RequestRunner
from penstock.mesh.regions import REGION_DRAINED
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.mesh.v1.region_pb2 import GuestOffer, RegionServiceRunRequest, RegionServiceRunResponse
from penstock.mesh.v1.region_pb2_grpc import RegionServiceServicer
from penstock.mesh.v1.worker_pb2 import Step
from penstock.v1.stream_pb2 import Hello

log = structlog.get_logger()

MAX_SHARE_OF_STREAM = 0.5  # of the guests of an edge
OUTBOX_FRAMES = 16_384
RETRY_AFTER_S = 1.0
DRAINED_RETRY_AFTER_S = 5.0
RELEASE_TIMEOUT_S = 2.0
STARTED = "started"

_offers = counter(series.GUEST_OFFERS)

HomePeer = Peer[RegionServiceRunResponse, RegionServiceRunRequest]


class GuestService(RegionServiceServicer):
    """The streams of this edge to edges of other regions."""

    def __init__(
        self,
        gateway: Gateway,
        runner: RequestRunner,
        catalog: ModelCatalog,
        hello: Hello,
        *,
        max_guests: int,
        drain: RegionDrain,
    ) -> None:
        self._gateway = gateway
        self._runner = runner
        self._catalog = catalog
        self._hello = hello
        self._max_guests = max_guests
        self._drain = drain
        self._streams: dict[GuestStream, None] = {}  # in order of connection
        self._is_released = False

    @property
    def running(self) -> int:
        """Guests that wait or run here."""
        return sum(len(each.guests) for each in self._streams)

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the admin snapshot."""
        return {"guests": self.running, "guest_streams": len(self._streams)}

    async def Run(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # yields nothing
        async with accept_stream(
            context,
            RegionServiceRunResponse,
            self._hello,
            capacity=OUTBOX_FRAMES,
            tiers=("edge",),
            may_be_relayed=True,
        ) as peer:
            stream = GuestStream(self, self._runner, peer)
            self._streams[stream] = None
            if self._is_released:
                stream.release()
            try:
                async for frame in peer:
                    stream.on_frame(frame)
            finally:
                del self._streams[stream]
                stream.close()

    def start(self, stream: "GuestStream", offer: GuestOffer) -> None:
        """Enqueue a guest. Raises the error by which it is rejected at once."""
        if self._drain.is_on:
            text = "this region is drained and accepts no guests"
            raise Unavailable(text, reason=REGION_DRAINED, retry_after=DRAINED_RETRY_AFTER_S)
        of_stream = self._max_guests * MAX_SHARE_OF_STREAM
        if self.running >= self._max_guests or len(stream.guests) >= of_stream:
            text = f"this edge runs {self.running} requests of other regions and accepts no more now"
            raise Overloaded(text, reason="GUESTS_FULL", retry_after=RETRY_AFTER_S)
        model = self._catalog.get_version(offer.model)
        if model is None:
            raise NotFound(f"this region does not serve {offer.model[:64]!r}", reason="MODEL_UNKNOWN")
        plan, now = plan_of(offer, model), self._runner.now()
        time_limit = offer.time_left_nanos / NANOS_PER_S or TIMEOUT_S
        run = GuestRun(offer.handle, stream, self._gateway.memory)
        context = self._gateway.create(
            spec_of(offer, model),
            Credential(),
            AdmissionResult(now, time_limit),
            run,
            traceparent=traceparent_or_empty(offer.traceparent),
        )
        context.away_nanos = max(1, offer.away_nanos)
        context.hold_settlement = partial(self._on_settled, run, context)
        stream.guests[offer.handle] = context
        self._gateway.add_bytes(context, plan.prompt_bytes)
        if not context.request.is_done:
            self._runner.apply(context, context.request.on_guest(plan, identity_of(offer), now))

    def _on_settled(
        self, run: GuestRun, context: RequestContext, settlement: Settle, _: Callable[[Settle], None]
    ) -> None:
        """A guest has ended. Its home edge settles its reservation."""
        run.end(context, settlement, self._runner.now())

    async def release(self) -> None:
        """Give all guests back, and accept none after that."""
        self._is_released = True
        for each in self._streams:
            each.release()
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await asyncio.gather(*(each.flush() for each in self._streams))
        except TimeoutError:
            log.warning("guests_not_released", streams=len(self._streams))


class GuestStream:
    """The guests of one edge of another region, by handle."""

    def __init__(self, service: GuestService, runner: RequestRunner, peer: HomePeer) -> None:
        self.guests: dict[int, RequestContext] = {}
        self._service = service
        self._runner = runner
        self._peer = peer
        self._is_released = False
        self._steps: dict[tuple[bool, int], Step] = {}  # by whether its tokens have logprobs, and how many others each

    def on_frame(self, frame: RegionServiceRunRequest) -> None:
        match frame.WhichOneof("frame"):
            case "offer":
                self._on_offer(frame.offer)
            case "cancel":
                if context := self.guests.get(frame.cancel.handle):
                    self._runner.cancel(context)

    def _on_offer(self, offer: GuestOffer) -> None:
        if offer.handle in self.guests:
            text = f"request {offer.handle} is running; give each request a handle of its own"
            raise InvalidArgument(text, field="handle", reason="HANDLE_IN_USE")
        try:
            if self._is_released:
                raise _drains()
            self._service.start(self, offer)
        except PenstockError as error:
            self.end(offer.handle, rejected_frame(offer.handle, error))

    def send(self, frame: RegionServiceRunResponse) -> None:
        if frame.WhichOneof("frame") == "started":
            _offers.labels(STARTED).inc()
        self._peer.send(frame)

    def add_tokens(self, handle: int, delta: Emit) -> None:
        """Send tokens in one frame for all guests that have some in this turn of the event loop."""
        if handle not in self.guests:
            return
        if not self._steps:
            asyncio.get_running_loop().call_soon(self._send_steps)
        count = len(delta.token_ids)
        key = bool(delta.logprobs), len(delta.top_token_ids) // max(1, count)
        step = self._steps.setdefault(key, Step())
        step.handles.extend([handle] * count)
        step.token_ids.extend(delta.token_ids)
        step.indexes.extend(range(delta.first_index, delta.first_index + count))
        step.logprobs.extend(delta.logprobs)
        step.top_token_ids.extend(delta.top_token_ids)
        step.top_logprobs.extend(delta.top_logprobs)

    def _send_steps(self) -> None:
        steps, self._steps = self._steps, {}
        for step in steps.values():
            self._peer.send(RegionServiceRunResponse(step=step))

    def end(self, handle: int, frame: RegionServiceRunResponse) -> None:
        """Send the end of a guest after its tokens. No effect on one that was given back."""
        kind = frame.WhichOneof("frame")
        if self.guests.pop(handle, None) is None and kind != "rejected":
            return
        if kind == "rejected":
            _offers.labels(frame.rejected.failure.reason).inc()
        self._send_steps()
        self._peer.send(frame)

    def release(self) -> None:
        """Give all guests back. The end of the stream follows them."""
        self._is_released = True
        guests = dict(self.guests)
        for handle, context in guests.items():
            self.end(handle, failed_frame(handle, _drains()))
            self._runner.cancel(context)
        self._peer.send_end("this edge drains")

    async def flush(self) -> None:
        await self._peer.flush()

    def close(self) -> None:
        """Cancel the guests that are left, as their home edge continues them."""
        guests, self.guests = self.guests, {}
        for context in guests.values():
            self._runner.cancel(context)


def _drains() -> Unavailable:
    return Unavailable("this edge drains", reason="DRAINING", retry_after=0.0)
