"""QueueService: turns frames into calls of the ticket book, and its effects into frames. It contains no policy."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

from penstock.chassis.observability.metrics import Observation
from penstock.chassis.pacing import TickTimer
from penstock.chassis.streams.link import Peer, accept_stream
from penstock.mesh.model_key import model_key
from penstock.mesh.v1 import queue_pb2 as pb
from penstock.mesh.v1.queue_pb2_grpc import QueueServiceServicer
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.queue import effects as out
from penstock.queue.autoscaling.shard_demand import ShardDemand
from penstock.queue.frames import (
    credit_of,
    output_progress_of,
    pool_stats_of,
    remote_prompts_of,
    served_tickets_of,
    to_edge,
    to_scheduler,
    worker_steps_of,
)
from penstock.queue.observability import events, metrics, telemetry
from penstock.queue.observability.shed_summary import ShedSummary
from penstock.queue.observability.snapshot import prediction_figures
from penstock.queue.ticket import from_frame
from penstock.queue.tickets.book import TicketBook
from penstock.queue.validation import TicketInvalid, check_ticket
from penstock.v1.stream_pb2 import End, Hello

QUEUED_DELAY_S = 0.02  # s; the lease of a ticket that need not wait follows within this time, in the same message
DEMAND_INTERVAL_S = 1.0  # s
MAX_BUFFERED_FRAMES = 65_536  # frames buffered for one peer; a peer that reads too slowly loses its stream

EdgePeer = Peer[pb.SubmitResponse, pb.SubmitRequest]
SchedulerPeer = Peer[pb.DispatchResponse, pb.DispatchRequest]


class QueueService(QueueServiceServicer):
    """The streams of one shard, to edges and to schedulers. `now` returns Unix time in s that never steps.

    Edges receive the hello once a scheduler has sent a model, or after `scheduler_wait` s: a shard that has just
    started must not receive tickets that another shard could place at once.
    """

    def __init__(
        self,
        book: TicketBook,
        demand: ShardDemand,
        hello: Hello,
        *,
        now: Callable[[], float],
        scheduler_wait: float = 0.0,
    ) -> None:
        self._book = book
        self._demand = demand
        self._hello = hello
        self._scheduler_wait = scheduler_wait
        self._now = now
        self._has_models = asyncio.Event()
        self._edges: dict[str, EdgePeer] = {}
        self._schedulers: dict[str, SchedulerPeer] = {}
        self._stream_ids = count(1)
        self._is_head_update_scheduled = False
        self._timer = TickTimer()
        self._shed_summary = ShedSummary()
        self._served: frozenset[str] = frozenset()  # models that edges were last told of

    # Streams.

    async def Submit(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # yields nothing
        await self.wait_for_scheduler(self._scheduler_wait)
        self._has_models.set()  # later edges do not wait again
        async with accept_stream(
            context, pb.SubmitResponse, self._hello, capacity=MAX_BUFFERED_FRAMES, tiers=("edge",)
        ) as peer:
            edge = f"{peer.hello.instance_id}/{next(self._stream_ids)}"
            self._edges[edge] = peer
            events.log_connected(peer, len(self._edges))
            try:
                self._perform(self._book.on_edge_connected(edge))
                async for frame in peer:
                    if effects := self._on_edge_frame(edge, frame):
                        self._perform(effects)
            finally:
                del self._edges[edge]
                events.log_disconnected(peer, len(self._edges))
                self._demand.on_edge_disconnected(edge)
                self._perform(self._book.on_edge_disconnected(edge))

    async def Dispatch(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # yields nothing
        async with accept_stream(context, pb.DispatchResponse, self._hello, tiers=("scheduler",)) as peer:
            scheduler = f"{peer.hello.instance_id}/{next(self._stream_ids)}"
            self._schedulers[scheduler] = peer
            events.log_connected(peer, len(self._schedulers))
            try:
                self._perform(self._book.on_scheduler_connected(scheduler, self._now()))
                self._send_demand(scheduler)
                async for frame in peer:
                    self._perform(self._on_scheduler_frame(scheduler, frame))
            finally:
                del self._schedulers[scheduler]
                offered = len(self._book.schedulers[scheduler].offered)
                events.log_disconnected(peer, len(self._schedulers), offered=offered)
                self._perform(self._book.on_scheduler_disconnected(scheduler, self._now()))

    async def wait_for_scheduler(self, timeout_s: float) -> None:
        """Wait until a scheduler has sent a model, for at most `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._has_models.wait()

    async def tick(self) -> None:
        """Advance the time of the book until cancelled."""
        while True:
            now = self._now()
            self._perform(self._book.tick(now))
            if summary := self._shed_summary.pop_due(now):
                events.log_sheds(summary)
            await self._timer.wait()

    async def report_demand(self) -> None:
        """Report the demand to all schedulers until cancelled."""
        while True:
            self._send_demand(*self._schedulers)
            await asyncio.sleep(DEMAND_INTERVAL_S)

    def _send_demand(self, *schedulers: str) -> None:
        if schedulers and (demand := self._demand.report(self._now())):
            for scheduler in schedulers:
                self._schedulers[scheduler].send(pb.DispatchResponse(demand=demand))

    def drain(self) -> None:
        """Send `end` to all peers: edges enqueue waiting tickets elsewhere, and schedulers drop their credit."""
        events.log_handing_over(self._book)
        for edge in self._edges.values():
            edge.send(pb.SubmitResponse(end=End(reason="drained")))
        for scheduler in self._schedulers.values():
            scheduler.send(pb.DispatchResponse(end=End(reason="drained")))

    def figures(self) -> dict[str, float]:
        book = self._book
        return {
            "waiting": book.model_queues.waiting.tickets,
            "waiting_tokens": book.model_queues.waiting.tokens,
            "offered": book.offered,
            "leased": book.counters.leased,
            "credits": book.schedulers.total_credit,
            "edges": len(self._edges),
            "schedulers": len(self._schedulers),
            "running": len(book.accounting),
            **prediction_figures(book.model_queues),
            **{f"shed_{reason.lower()}": tickets for reason, tickets in book.counters.shed.items()},
        }

    def observations(self) -> Iterator[Observation]:
        return metrics.observations(self._book, len(self._edges), len(self._schedulers))

    # Frames.

    def _on_edge_frame(self, edge: str, frame: pb.SubmitRequest) -> list[out.Effect]:
        match frame.WhichOneof("frame"):
            case "enqueue":
                return [each for ticket in frame.enqueue.tickets for each in self._enqueue(edge, ticket)]
            case "withdraw":
                return self._book.withdraw(edge, frame.withdraw.ticket_ids)
            case "held_requests":
                if self._demand.on_held_requests(edge, frame.held_requests.models, self._now()):
                    self._send_demand(*self._schedulers)
        return []

    def _enqueue(self, edge: str, ticket: Ticket) -> list[out.Effect]:
        try:
            check_ticket(ticket)
        except TicketInvalid as fault:
            return [out.Shed(edge, ticket.ticket_id, fault)]
        now = self._now()
        return self._book.enqueue(from_frame(ticket, edge, now), now)

    def _on_scheduler_frame(self, scheduler: str, frame: pb.DispatchRequest) -> list[out.Effect]:
        now, kind = self._now(), frame.WhichOneof("frame")
        match kind:
            case "credit":
                given = frame.credit
                return self._book.on_credit(
                    scheduler, given.model, credit_of(given), now, return_unused=given.return_unused
                )
            case "pool_stats":
                return self._book.on_pool_stats(scheduler, frame.pool_stats.model, pool_stats_of(frame.pool_stats, now))
            case "virtual_times":
                return self._book.on_virtual_times(scheduler, frame.virtual_times.times)
            case "placed_prompts":
                prompts = remote_prompts_of(frame.placed_prompts, self._hello.instance_id)
                return self._book.on_placed_prompts(scheduler, frame.placed_prompts.model, prompts, now)
            case "service_report":
                report = frame.service_report
                return self._book.on_service_report(
                    served_tickets_of(report.tickets),
                    worker_steps_of(report.workers),
                    output_progress_of(report.progress),
                    scheduler,
                )
            case "place":
                return self._book.on_place(scheduler, frame.place.lease, now)
            case "decline":
                return self._book.on_decline(scheduler, frame.decline.ticket_id, frame.decline.reason, now)
            case "catalog":
                if frame.catalog.entries:
                    self._has_models.set()
                return self._book.on_catalog(scheduler, frame.catalog.entries, now, frame.catalog.poison_reports)
        return []

    # Effects.

    def _perform(self, effects: Iterable[out.Effect]) -> None:
        """Send the frames and record the telemetry of effects."""
        for effect in effects:
            match effect:
                case out.TicketRemoved():
                    telemetry.record_removed(effect, self._now())
                    if not effect.reason:
                        metrics.record_leased(effect.ticket)
                case out.CatalogUpdate():
                    self._send_catalog(effect)
                case out.Queued() | out.Leased() | out.Shed() | out.Withdrawn():
                    self._send_to_edge(effect)
                case _:
                    self._send_to_scheduler(effect)
        if not self._is_head_update_scheduled:  # at most once per turn of the event loop
            self._is_head_update_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_head_updates)

    def _send_head_updates(self) -> None:
        self._is_head_update_scheduled = False
        for head in self._book.model_queues.head_updates():
            self._send_to_scheduler(head)
        now = self._now()
        if self._book.has_due_work(now):
            asyncio.get_running_loop().call_soon(self._run_slice)
        else:
            self._timer.expedite(self._book.next_tick_at(now) - now)

    def _run_slice(self) -> None:
        self._perform(self._book.run_slice(self._now()))

    def _send_catalog(self, update: out.CatalogUpdate) -> None:
        frame = to_edge(update)
        served = frozenset(model_key(each.model, each.card_digest) for each in update.entries)
        if served != self._served:
            events.log_models(self._served, served, self._book.model_queues.waiting.tickets)
            self._served = served
        for edge, peer in self._edges.items():
            if update.edge in ("", edge):
                peer.send(frame)

    def _send_to_edge(self, effect: out.ToEdge) -> None:
        if isinstance(effect, out.Shed):
            metrics.record_shed(effect, self._book.model_queues)
            self._shed_summary.record(effect)
        if peer := self._edges.get(effect.edge):
            peer.send(to_edge(effect), max_delay_s=QUEUED_DELAY_S if isinstance(effect, out.Queued) else 0.0)

    def _send_to_scheduler(self, effect: out.ToScheduler) -> None:
        if peer := self._schedulers.get(effect.scheduler):
            frame = to_scheduler(effect, self._now())
            if isinstance(effect, out.Offer) and (edge := self._edges.get(effect.ticket.edge)):
                frame.offer.ticket.zone = edge.hello.zone
            peer.send(frame)
