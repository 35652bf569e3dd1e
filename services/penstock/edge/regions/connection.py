"""Stream of this edge to another region: the requests that run there, by handle."""

import grpc

from penstock.chassis.errors import error_from_failure
from penstock.chassis.observability.metrics import counter
from penstock.chassis.security.channels import PLAINTEXT, Dialer
from penstock.chassis.streams.link import Link
from penstock.edge import series
from penstock.edge.lifecycle.context import EffectRunner, RequestContext
from penstock.edge.lifecycle.record import RequestState
from penstock.edge.regions import frames
from penstock.edge.regions.spill import Offer, OfferClass, SpillPolicy
from penstock.edge.upstreams.runs import RunStream, StreamRunHandle
from penstock.mesh.regions import REGION_DRAINED
from penstock.mesh.v1.region_pb2 import (
    GuestRejected,
    GuestStarted,
    RegionServiceRunRequest,
    RegionServiceRunResponse,
)
from penstock.mesh.v1.region_pb2_grpc import RegionServiceStub
from penstock.v1.stream_pb2 import Hello

STARTED, UNANSWERED, LOST = "started", "UNANSWERED", "LOST"  # outcomes of offers beside the reasons of rejections
# Codes of rejections that similar requests would receive. Others are about the request: its deadline, its contents.
REMEMBERED_CODES = frozenset(
    {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND}
)

_offers = counter(series.SPILL_OFFERS)

RegionStream = Link[RegionServiceRunRequest, RegionServiceRunResponse]


class RegionConnection(RunStream):
    """Offers requests to one region. A run there that is lost continues at home."""

    def __init__(
        self,
        region: str,
        address: str,
        hello: Hello,
        runner: EffectRunner,
        policy: SpillPolicy,
        *,
        dialer: Dialer = PLAINTEXT,
    ) -> None:
        """`address`: of the region door of the region's proxies."""
        super().__init__(runner)
        self.region = region
        self._address = address
        self._hello = hello
        self._policy = policy
        self._dialer = dialer
        self._offered_at: dict[int, float] = {}  # s, of offers that are not answered
        self._link: RegionStream | None = None

    @property
    def is_up(self) -> bool:
        return self._link is not None and self._link.is_up

    async def run(self) -> None:
        async with self._dialer.channel(self._address, "envoy") as to_region:
            self._link = RegionStream(
                f"region {self.region}",
                lambda: RegionServiceStub(to_region).Run(),
                RegionServiceRunRequest,
                self._hello,
                on_frame=self._on_frame,
                on_up=lambda _: self._policy.on_up(self.region),
                on_down=lambda _: self._on_down(),
                check_hello=self._dialer.hello_check("edge"),  # the edge behind the proxy whose certificate is verified
            )
            await self._link.run()

    def offer(self, context: RequestContext) -> bool:
        """Send an offer. Returns false if the stream is down."""
        now, handle = self._runner.now(), self._add(context)
        if not (self._link and self._link.send(frames.offer(context, handle, self._policy.trip(self.region), now))):
            self._remove(handle)
            return False
        context.run = StreamRunHandle(self, handle)
        self._offered_at[handle] = now
        context.request.on_offered(self.region, now)
        return True

    def on_unanswered(self, context: RequestContext) -> None:
        """The region has not answered the offer of a request in time, which may go on elsewhere."""
        _offers.labels(self.region, UNANSWERED).inc()
        now = self._runner.now()
        self._policy.on_unanswered(self.region, offer_of(context, now).kind, now)

    def cancel(self, handle: int) -> None:
        if self._link:
            self._link.send(frames.cancel(handle))

    def discard(self, handle: int) -> None:
        """Cancel a request that has not ended in the region, and ignore further frames about it."""
        if handle in self._contexts:
            self.cancel(handle)
            self._remove(handle)

    def _remove(self, handle: int) -> None:
        super()._remove(handle)
        self._offered_at.pop(handle, None)

    def _on_down(self) -> None:
        """Report started runs as lost, and offer the others elsewhere."""
        now = self._runner.now()
        self._policy.on_down(self.region)
        for handle, context in list(self._contexts.items()):
            self._remove(handle)
            context.run = None
            _offers.labels(self.region, LOST).inc()
            request = context.request
            is_offered = request.state is RequestState.OFFERED
            effects = request.on_offer_rejected() if is_offered else request.on_worker_lost(now, died=False)
            self._runner.apply(context, effects)

    def _on_frame(self, frame: RegionServiceRunResponse) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "rejected":
            self._on_rejected(frame.rejected)
        elif kind == "started":
            self._on_started(frame.started)
        elif kind == "end":
            self._policy.on_down(self.region)
        else:
            self._on_run_frame(kind, frame)

    def _on_started(self, started: GuestStarted) -> None:
        context, now = self._contexts.get(started.handle), self._runner.now()
        if context is not None and started.handle in self._offered_at:
            self._policy.on_answer(self.region, now - self._offered_at.pop(started.handle))
            _offers.labels(self.region, STARTED).inc()
            context.telemetry.set_rejected_by("")
            self._runner.apply(context, context.request.on_region_started(now))

    def _on_rejected(self, rejected: GuestRejected) -> None:
        context, now = self._contexts.get(rejected.handle), self._runner.now()
        if context is None or rejected.handle not in self._offered_at:
            return
        error = error_from_failure(rejected.failure)
        offered_at = self._offered_at[rejected.handle]
        self._policy.on_answer(self.region, now - offered_at)
        if error.reason == REGION_DRAINED:
            self._policy.on_drained(self.region, error.retry_after, now)
        elif error.code in REMEMBERED_CODES:
            offer = offer_of(context, offered_at)
            if error.code != grpc.StatusCode.RESOURCE_EXHAUSTED:  # of whatever size
                offer = Offer(offer.kind, 0)
            self._policy.on_rejected(self.region, offer, error.retry_after, now)
        _offers.labels(self.region, error.reason).inc()
        self._remove(rejected.handle)
        context.run = None
        self._runner.apply(context, context.request.on_offer_rejected())


def offer_of(context: RequestContext, now: float) -> Offer:
    request = context.request
    kind = OfferClass(request.model_key, request.identity.priority)
    return Offer(kind, len(request.plan.prompt_ids), now - request.arrived_at)
