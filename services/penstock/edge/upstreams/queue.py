"""Client of the queue: one stream to every shard."""

from collections.abc import Mapping, Sequence

from penstock.chassis.channels import PeerSet
from penstock.chassis.errors import error_from_failure
from penstock.chassis.security.channels import PLAINTEXT, Dialer
from penstock.chassis.streams.link import Link
from penstock.edge.admission.filter import AdmissionFilter
from penstock.edge.lifecycle.context import EffectRunner, RequestContext
from penstock.edge.lifecycle.record import RequestState
from penstock.edge.lifecycle.table import ActiveRequests
from penstock.edge.models.catalog import ModelCatalog
from penstock.edge.models.router import ModelRouter
from penstock.edge.upstreams import frames
from penstock.edge.upstreams.hashing import shard_for
from penstock.mesh.v1.queue_pb2 import Shed, SubmitRequest, SubmitResponse
from penstock.mesh.v1.queue_pb2_grpc import QueueServiceStub
from penstock.v1.stream_pb2 import Hello

ShardStream = Link[SubmitRequest, SubmitResponse]
DRAINING = "DRAINING"
SUSPECT = "SUSPECT"
MODEL_UNKNOWN = "MODEL_UNKNOWN"
LACKS_MODEL = (MODEL_UNKNOWN, "NO_WORKER")  # reasons with which a ticket for a replaced version is rejected


class QueueClient:
    """Sends each ticket to its tenant's shard, or to the next shard of the hash order while that one is unreachable."""

    def __init__(
        self,
        addresses: Sequence[str],
        hello: Hello,
        requests: ActiveRequests,
        runner: EffectRunner,
        *,
        catalog: ModelCatalog,
        router: ModelRouter,
        admission: AdmissionFilter,
        dialer: Dialer = PLAINTEXT,
    ) -> None:
        self._dialer = dialer
        self._hello = hello
        self._requests = requests
        self._runner = runner
        self._catalog = catalog
        self._router = router
        self._admission = admission
        self._streams: dict[str, ShardStream] = {}
        self._draining: set[str] = set()
        self._peers = PeerSet(addresses, self._open)

    @property
    def links_up(self) -> int:
        return sum(link.is_up for link in self._streams.values())

    @property
    def _available_shards(self) -> set[str]:
        return {address for address, link in self._streams.items() if link.is_up} - self._draining

    async def run(self) -> None:
        await self._peers.run()

    def enqueue(self, context: RequestContext) -> bool:
        """Send the ticket to a shard. Returns false if none is connected."""
        context.shard = ""
        candidates = self._available_shards
        while shard := shard_for(candidates, context.request.plan.model, context.request.identity.tenant_id):
            if self._streams[shard].send(frames.enqueue(context, self._runner.now())):
                context.shard = shard
                return True
            candidates.discard(shard)
        return False

    def report_held(self, requests_by_model: Mapping[str, int]) -> None:
        """Send the requests that need workers to one shard. The next report goes to another one if it is lost."""
        if shards := self._available_shards:
            self._streams[min(shards)].send(frames.held_requests(requests_by_model))

    def withdraw(self, context: RequestContext) -> None:
        if context.shard:
            self._withdraw(context.shard, context.ticket_id)
            context.shard = ""

    def _withdraw(self, shard: str, ticket_id: str) -> None:
        if link := self._streams.get(shard):
            link.send(frames.withdraw(ticket_id))

    async def _open(self, address: str) -> None:
        async with self._dialer.channel(address, "queue") as to_shard:
            link = self._streams[address] = ShardStream(
                f"queue {address}",
                lambda: QueueServiceStub(to_shard).Submit(),
                SubmitRequest,
                self._hello,
                on_frame=lambda frame: self._on_frame(address, frame),
                on_up=lambda _: self._on_up(address),
                on_down=lambda _: self._on_down(address),
                # A reconnected peer receives frames of all active requests; a stalled one is owed at most two for each.
                capacity=2 * self._requests.max_active_requests,
                check_hello=self._dialer.hello_check("queue"),
            )
            try:
                await link.run()
            finally:
                del self._streams[address]
                self._catalog.on_shard_removed(address)

    def _on_up(self, address: str) -> None:
        self._draining.discard(address)
        self._reenqueue("")
        self._runner.on_upstream_connected()

    def _on_down(self, address: str) -> None:
        self._catalog.on_shard_unreachable(address)
        self._reenqueue(address)

    def _reenqueue(self, shard: str) -> None:
        """Move the queued requests of `shard`, or those without a shard (empty), to a connected shard."""
        for context in self._requests.in_state(RequestState.QUEUED, RequestState.RESERVING):
            if context.shard == shard:
                self._runner.apply(context, context.request.on_queue_lost())

    def _on_frame(self, shard: str, frame: SubmitResponse) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "catalog":
            if self._catalog.on_catalog(shard, frame.catalog):
                self._move_from_replaced_models()
        elif kind == "queued":
            if context := self._context_at(shard, frame.queued.ticket_id):
                context.telemetry.on_queued(frame.queued)
                self._admission.on_queued(context, frame.queued, self._runner.now())
                self._runner.apply(context, context.request.on_queued())
        elif kind == "leased":
            lease = frame.leased.lease
            if context := self._requests.get(lease.ticket_id):
                self._runner.apply(context, context.request.on_leased(lease, self._runner.now()))
            else:
                self._withdraw(shard, lease.ticket_id)
        elif kind == "shed":
            self._on_shed(shard, frame.shed)
        elif kind == "end":
            self._draining.add(shard)

    def _move_from_replaced_models(self) -> None:
        for context in self._requests.in_state(RequestState.QUEUED):
            if self._router.is_replaced(context):
                self._runner.apply(context, context.request.on_model_replaced())

    def _context_at(self, shard: str, ticket_id: str) -> RequestContext | None:
        """Return the request of a ticket. None if it is done or its ticket has moved to another shard."""
        context = self._requests.get(ticket_id)
        return context if context and context.shard == shard else None

    def _on_shed(self, shard: str, shed: Shed) -> None:
        context = self._context_at(shard, shed.ticket_id)
        if context is None:
            return
        if shed.failure.reason == DRAINING:
            self._draining.add(shard)
            self._runner.apply(context, context.request.on_queue_lost())
        else:
            error = error_from_failure(shed.failure)
            self._admission.on_queue_rejected(context, shed, error, self._runner.now())
            # A shard that has just started may not have received every model's catalog entry.
            request, now = context.request, self._runner.now()
            is_replaced = error.reason in LACKS_MODEL and (
                self._router.is_replaced(context) or self._router.missing_model(context) is not None
            )
            is_shard_behind = error.reason == MODEL_UNKNOWN and self._catalog.contains(request.model_key)
            is_transient = error.reason == SUSPECT or (is_shard_behind and not is_replaced)
            effects = request.on_queue_rejected(error, now, is_transient=is_transient, is_replaced=is_replaced)
            self._runner.apply(context, effects)
