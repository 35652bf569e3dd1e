"""SchedulerService: client of every queue shard and server of workers. It contains no policy."""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from penstock.chassis.channels import PeerSet
from penstock.chassis.durations import set_seconds
from penstock.chassis.errors import InvalidArgument, Unavailable
from penstock.chassis.observability import semconv
from penstock.chassis.observability.metrics import Observation
from penstock.chassis.observability.spans import is_recorded, record_span
from penstock.chassis.pacing import TickTimer
from penstock.chassis.security.channels import PLAINTEXT, Dialer
from penstock.chassis.streams.link import Link, Peer, accept_stream
from penstock.mesh.v1 import queue_pb2, scheduler_pb2
from penstock.mesh.v1.queue_pb2_grpc import QueueServiceStub
from penstock.mesh.v1.scheduler_pb2_grpc import SchedulerServiceServicer
from penstock.scheduler import effects as out
from penstock.scheduler import events, metrics
from penstock.scheduler.autoscaling.fleet_demand import FleetDemand
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.frames import to_queue, to_worker
from penstock.scheduler.snapshot import figures
from penstock.v1.stream_pb2 import End, Hello

REPORT_DELAY_S = 0.02  # s; a report without a placement or credit waits this long for one
NANOS_PER_SECOND = 10**9
REQUIRED_PROFILE_FIELDS = ("model", "card_digest", "slots", "kv_blocks", "block_size", "context_length")
MAX_MODEL_NAME_BYTES = 256
DIGEST_FORMAT = re.compile(r"[0-9A-Za-z]{1,128}")

QueueLink = Link[queue_pb2.DispatchRequest, queue_pb2.DispatchResponse]
WorkerPeer = Peer[scheduler_pb2.AttachResponse, scheduler_pb2.AttachRequest]


class SchedulerService(SchedulerServiceServicer):
    """The streams of one scheduler. `now` returns s of a monotonic clock."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        queues: Sequence[str],
        hello: Hello,
        demand: FleetDemand,
        *,
        now: Callable[[], float] = time.monotonic,
        dialer: Dialer = PLAINTEXT,
    ) -> None:
        self._dialer = dialer
        self._dispatcher = dispatcher
        self._demand = demand
        self._hello = hello
        self._now = now
        self._queues: dict[str, QueueLink] = {}  # connected shards by instance id
        self._queue_ids: dict[QueueLink, str] = {}
        self._addresses: dict[QueueLink, str] = {}
        self._workers: dict[str, WorkerPeer] = {}
        self._stream_ids = count(1)
        self._is_slice_scheduled = False
        self._timer = TickTimer()
        self._queue_peers = PeerSet(queues, self._run_queue_link)

    async def run(self) -> None:
        """Keep a stream to every shard until cancelled."""
        await self._queue_peers.run()

    async def tick(self) -> None:
        """Advance the time of the dispatcher until cancelled."""
        while True:
            self._perform(self._dispatcher.tick_fleet(self._now()))
            await asyncio.sleep(0)  # other work of the loop: for 1,000 workers, each part takes some milliseconds
            self._perform(self._dispatcher.tick_reports(self._now()))
            self._schedule_slice()
            await self._timer.wait()

    def _schedule_slice(self) -> None:
        """Continue work that takes long, after other work of the loop."""
        if self._dispatcher.has_due_work and not self._is_slice_scheduled:
            self._is_slice_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_slice)

    def _run_slice(self) -> None:
        self._is_slice_scheduled = False
        self._perform(self._dispatcher.run_slice())
        self._schedule_slice()

    async def drain(self) -> None:
        """Grant no more credit, and send `end` to all peers: workers attach elsewhere with their running leases."""
        events.log_draining(self._dispatcher)
        self._dispatcher.drain()
        for worker in self._workers.values():
            worker.send(scheduler_pb2.AttachResponse(end=End(reason="drained")))
        links = list(self._queues.values())
        for link in links:
            link.close("drained")
        await asyncio.gather(*(link.flush() for link in links))

    def figures(self) -> dict[str, float]:
        return figures(self._dispatcher)

    def observations(self) -> Iterator[Observation]:
        return metrics.observations(self._dispatcher)

    # Workers.

    async def Attach(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # yields nothing
        if self._dispatcher.is_draining:  # a new stream would delay the end of the process
            raise Unavailable("this scheduler is draining; attach to another one", reason="DRAINING")
        async with accept_stream(context, scheduler_pb2.AttachResponse, self._hello, tiers=("worker",)) as peer:
            key = f"{peer.hello.instance_id}/{next(self._stream_ids)}"
            self._workers[key] = peer
            try:
                async for frame in peer:
                    self._perform(self._on_worker_frame(key, peer.hello, frame))
            finally:
                del self._workers[key]
                self._on_worker_left(key, peer)

    def _on_worker_left(self, key: str, peer: WorkerPeer) -> None:
        worker = self._dispatcher.fleet.get(key)  # None if it never attached, or has attached anew
        self._perform(self._dispatcher.on_worker_lost(key))
        if worker:
            events.log_worker_left(worker, self._dispatcher, peer)

    def _on_worker_frame(self, key: str, hello: Hello, frame: scheduler_pb2.AttachRequest) -> list[out.Effect]:
        kind, is_known = frame.WhichOneof("frame"), key in self._dispatcher.fleet
        if kind == "poison_update":
            return self._dispatcher.on_poison_reports(hello.address, frame.poison_update.reports, self._now())
        if kind == "profile" and not is_known:
            reports = frame.profile.poison_reports
            if frame.profile == scheduler_pb2.Profile(poison_reports=reports):
                events.log_worker_quarantined(hello.instance_id, len(reports))
                return self._dispatcher.on_worker_quarantined(hello.instance_id, hello.address, reports, self._now())
            if message := _profile_error(frame.profile):
                raise InvalidArgument(message, field="profile", reason="PROFILE_INVALID")
            effects = self._dispatcher.on_poison_reports(hello.address, reports, self._now())
            effects += self._dispatcher.on_worker_attached(
                key, hello.instance_id, hello.address, frame.profile, zone=hello.zone
            )
            events.log_worker_attached(self._dispatcher.fleet[key], self._dispatcher.fleet)
            return effects
        if kind == "profile" or not is_known:
            text = "the frame after hello must be `profile`, sent once, on the newest stream of the worker"
            raise InvalidArgument(text, field="profile", reason="PROFILE_INVALID")
        match kind:
            case "load_report":
                self._dispatcher.on_load_report(key, frame.load_report)
            case "started":
                self._dispatcher.on_lease_started(key, frame.started.lease_id)
            case "released":
                released = frame.released
                return self._dispatcher.on_leases_released(key, released.lease_ids, released.served, released.steps)
            case "prefix_cache_update":
                self._dispatcher.on_prefix_cache_update(key, frame.prefix_cache_update)
            case "progress":
                self._dispatcher.on_progress(key, frame.progress)
        return []

    # Queues.

    async def _run_queue_link(self, address: str) -> None:
        async with self._dialer.channel(address, "queue") as to_queue_shard:
            link = QueueLink(
                f"queue {address}",
                lambda: QueueServiceStub(to_queue_shard).Dispatch(),
                queue_pb2.DispatchRequest,
                self._hello,
                on_frame=lambda frame: self._on_link_frame(link, frame),
                on_up=lambda hello: self._on_queue_connected(link, hello.instance_id),
                on_down=lambda _: self._on_queue_disconnected(link),
                check_hello=self._dialer.hello_check("queue"),
            )
            self._addresses[link] = address
            self._demand.on_shard_added(address)
            try:
                await link.run()
            finally:
                self._on_queue_disconnected(link)
                del self._addresses[link]
                self._demand.on_shard_removed(address)

    def _on_queue_connected(self, link: QueueLink, queue: str) -> None:
        """Register a shard by its instance id, which is the same for every address of the shard."""
        if former := self._queues.get(queue):
            self._on_queue_disconnected(former)
            if former is not link:
                self._demand.on_shard_removed(self._addresses[former])
        self._demand.on_shard_added(self._addresses[link])
        self._queues[queue], self._queue_ids[link] = link, queue
        self._perform(self._dispatcher.on_queue_connected(queue))

    def _on_queue_disconnected(self, link: QueueLink) -> None:
        if queue := self._queue_ids.pop(link, ""):
            del self._queues[queue]
            self._demand.on_shard_lost(self._addresses[link])
            self._perform(self._dispatcher.on_queue_disconnected(queue))

    def _on_link_frame(self, link: QueueLink, frame: queue_pb2.DispatchResponse) -> None:
        if queue := self._queue_ids.get(link):  # a shard with a newer stream has no id on this one
            if frame.WhichOneof("frame") == "demand":
                self._demand.on_demand(self._addresses[link], frame.demand, self._now())
                return
            self._perform(self._on_queue_frame(queue, frame))

    def _on_queue_frame(self, queue: str, frame: queue_pb2.DispatchResponse) -> list[out.Effect]:
        match frame.WhichOneof("frame"):
            case "offer":
                return self._on_offer(queue, frame.offer)
            case "offer_withdrawn":
                return self._dispatcher.on_offer_withdrawn(queue, frame.offer_withdrawn.ticket_ids)
            case "head":
                return self._dispatcher.on_head(queue, frame.head, self._now())
            case "credit_returned":
                return self._dispatcher.on_credit_returned(
                    queue, frame.credit_returned.model, frame.credit_returned.tickets
                )
        return []

    def _on_offer(self, queue: str, offer: queue_pb2.Offer) -> list[out.Effect]:
        ticket, begun, begun_at = offer.ticket, time.perf_counter(), time.time()
        effects = self._dispatcher.on_offer(queue, ticket, self._now(), uses_express_credit=offer.uses_express_credit)
        took = time.perf_counter() - begun
        for effect in effects:
            if isinstance(effect, out.Decline):
                metrics.record_declined(effect.reason)
            elif isinstance(effect, out.Place):
                entry = self._dispatcher.leases.leases[effect.lease.lease_id]
                metrics.record_placed(ticket.model, ticket.prompt_tokens, entry.prompt_tokens, took)
                set_seconds(effect.lease.placement_time, took)
                if not is_recorded(ticket.traceparent):
                    continue
                attributes = {
                    semconv.PENSTOCK_TICKET_ID: ticket.ticket_id,
                    semconv.PENSTOCK_LEASE_ID: effect.lease.lease_id,
                    semconv.PENSTOCK_WORKER_ID: effect.lease.worker_id,
                }
                start = round(begun_at * NANOS_PER_SECOND)
                ended = start + round(took * NANOS_PER_SECOND)
                record_span(semconv.SPAN_PLACEMENT, ticket.traceparent, start, ended, attributes)
        return effects

    # Effects.

    def _perform(self, effects: Iterable[out.Effect]) -> None:
        for effect in effects:
            match effect:
                case out.CatalogUpdate():
                    frame = to_queue(effect)
                    for each in self._queues.values():
                        each.send(frame)
                case out.Expect() | out.Revoke():
                    if peer := self._workers.get(effect.worker):
                        peer.send(to_worker(effect))
                case _:
                    if link := self._queues.get(effect.queue):
                        delay = REPORT_DELAY_S if isinstance(effect, out.Report) else 0.0
                        link.send(to_queue(effect), max_delay_s=delay)
        self._timer.expedite(self._dispatcher.next_tick_at - self._now())


def _profile_error(profile: scheduler_pb2.Profile) -> str:
    """Return the error of an incomplete or invalid profile; empty if it is valid."""
    for name in REQUIRED_PROFILE_FIELDS:
        if not getattr(profile, name):
            return f"a profile needs {', '.join(REQUIRED_PROFILE_FIELDS)}; {name} is missing"
    if len(profile.model.encode()) > MAX_MODEL_NAME_BYTES:
        return f"the name of a model may have at most {MAX_MODEL_NAME_BYTES} bytes"
    if not DIGEST_FORMAT.fullmatch(profile.card_digest):
        return f"card_digest must match {DIGEST_FORMAT.pattern}"
    return ""
