"""Frames to calls of the book, and its effects back to frames. No policy."""

import asyncio
import time
from collections.abc import Iterable
from itertools import count
from typing import Any

import structlog

from penstock.chassis import semconv
from penstock.chassis.errors import InvalidArgument
from penstock.chassis.streams import Peer, accepted
from penstock.chassis.telemetry import meter, start_span
from penstock.mesh.v1 import queue_pb2 as pb
from penstock.mesh.v1.queue_pb2_grpc import QueueServiceServicer
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.queue import effects as out
from penstock.queue.book import TicketBook
from penstock.queue.frames import to_edge, to_scheduler
from penstock.queue.seats import Credit
from penstock.queue.waiting import WaitingTicket, from_frame
from penstock.v1.stream_pb2 import End, Hello

log = structlog.get_logger()

TICK = 0.05  # s; how late a deadline may be noticed
NANOS = 10**9
MAX_PREFIX_HASHES, MAX_AVOIDED = 64, 16

_wait = meter().create_histogram(semconv.PENSTOCK_QUEUE_WAIT, unit="s")
_shed = meter().create_counter(semconv.PENSTOCK_QUEUE_SHED)


class QueueService(QueueServiceServicer):
    """Both sides of one shard."""

    def __init__(self, book: TicketBook, hello: Hello) -> None:
        self._book = book
        self._hello = hello
        self._edges: dict[str, Peer[pb.SubmitResponse, pb.SubmitRequest]] = {}
        self._schedulers: dict[str, Peer[pb.DispatchResponse, pb.DispatchRequest]] = {}
        self._names = count(1)
        self._telling_heads = False

    # ------------------------------------------------------------------------------------------------------- streams

    async def Submit(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # yields nothing
        async with accepted(context, pb.SubmitResponse, self._hello) as peer:
            edge = f"{peer.hello.instance_id}/{next(self._names)}"
            self._edges[edge] = peer
            try:
                self._perform(self._book.edge_joined(edge))
                async for frame in peer:
                    self._perform(self._from_edge(edge, frame))
            finally:
                del self._edges[edge]
                self._perform(self._book.edge_lost(edge))

    async def Dispatch(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # yields nothing
        async with accepted(context, pb.DispatchResponse, self._hello) as peer:
            scheduler = f"{peer.hello.instance_id}/{next(self._names)}"
            self._schedulers[scheduler] = peer
            try:
                self._perform(self._book.scheduler_joined(scheduler))
                async for frame in peer:
                    self._perform(self._from_scheduler(scheduler, frame))
            finally:
                del self._schedulers[scheduler]
                self._perform(self._book.scheduler_lost(scheduler, time.time()))

    async def tick(self) -> None:
        """Let time pass in the book until cancelled."""
        while True:
            await asyncio.sleep(TICK)
            self._perform(self._book.tick(time.time()))

    def drain(self) -> None:
        """Tell all that this shard ends: edges enqueue elsewhere, schedulers take their credit along."""
        for edge in self._edges.values():
            edge.send(pb.SubmitResponse(end=End(reason="drained")))
        for scheduler in self._schedulers.values():
            scheduler.send(pb.DispatchResponse(end=End(reason="drained")))

    def figures(self) -> dict[str, float]:
        book = self._book
        return {
            "waiting": book.waiting,
            "waiting_tokens": book.waiting_tokens,
            "offered": len(book.tickets) - book.waiting,
            "edges": len(self._edges),
            "schedulers": len(self._schedulers),
            "credits": sum(credit.tickets for seat in book.seats.values() for credit in seat.credits.values()),
            **{f"shed_{reason.lower()}": count for reason, count in book.sheds.items()},
        }

    # ---------------------------------------------------------------------------------------------------------- frames

    def _from_edge(self, edge: str, frame: pb.SubmitRequest) -> list[out.Effect]:
        now = time.time()
        match frame.WhichOneof("frame"):
            case "enqueue":
                return [each for ticket in frame.enqueue.tickets for each in self._enqueue(edge, ticket, now)]
            case "withdraw":
                return self._book.withdraw(edge, frame.withdraw.ticket_ids)
        return []

    def _enqueue(self, edge: str, ticket: Ticket, now: float) -> list[out.Effect]:
        if fault := _fault(ticket):
            return [out.Shed(edge, ticket.ticket_id, InvalidArgument(fault, reason="TICKET_INVALID"))]
        return self._book.enqueue(from_frame(ticket, edge), now)

    def _from_scheduler(self, scheduler: str, frame: pb.DispatchRequest) -> list[out.Effect]:
        now = time.time()
        match frame.WhichOneof("frame"):
            case "credit":
                given = frame.credit
                credit = Credit(given.tickets, given.max_tokens, given.tokens_per_second)
                return self._book.credit(scheduler, given.model, credit, once=given.once)
            case "place":
                return self._book.place(scheduler, frame.place.lease, now)
            case "decline":
                return self._book.decline(scheduler, frame.decline.ticket_id, frame.decline.reason)
            case "catalog":
                return self._book.catalog(scheduler, frame.catalog.entries, now)
        return []

    # --------------------------------------------------------------------------------------------------------- effects

    def _perform(self, effects: Iterable[out.Effect]) -> None:
        for effect in effects:
            match effect:
                case out.Models():
                    self._tell_edges(effect)
                case out.Leased():
                    self._note_wait(effect)
                    self._tell_edge(effect.ticket.edge, effect)
                case out.Shed():
                    _shed.add(1, {semconv.PENSTOCK_REASON: effect.error.reason})
                    self._tell_edge(effect.edge, effect)
                case out.Queued() | out.Withdrawn():
                    self._tell_edge(effect.edge, effect)
                case _:
                    self._tell_scheduler(effect)
        if not self._telling_heads:  # once per turn of the loop, however much changed in it
            self._telling_heads = True
            asyncio.get_running_loop().call_soon(self._tell_heads)

    def _tell_heads(self) -> None:
        self._telling_heads = False
        for head in self._book.heads():
            self._tell_scheduler(head)

    def _tell_edges(self, models: out.Models) -> None:
        frame = to_edge(models)
        for peer in self._edges.values():
            peer.send(frame)

    def _tell_edge(self, edge: str, effect: out.Queued | out.Leased | out.Shed | out.Withdrawn) -> None:
        if peer := self._edges.get(edge):
            peer.send(to_edge(effect))

    def _tell_scheduler(self, effect: out.Offer | out.Recalled | out.Returned | out.Head) -> None:
        if peer := self._schedulers.get(effect.scheduler):
            peer.send(to_scheduler(effect))

    @staticmethod
    def _note_wait(leased: out.Leased) -> None:
        ticket, ended = leased.ticket, time.time()
        _wait.record(leased.waited)
        begun = round((ended - leased.waited) * NANOS)
        span = start_span(semconv.SPAN_QUEUE_WAIT, ticket.traceparent, start_time=begun, attributes=_facts(ticket))
        span.end(round(ended * NANOS))


def _facts(ticket: WaitingTicket) -> dict[str, str | int]:
    return {
        semconv.PENSTOCK_TICKET_ID: ticket.ticket_id,
        semconv.PENSTOCK_TENANT_ID: ticket.tenant_id,
        semconv.PENSTOCK_PRIORITY: ticket.priority,
        semconv.PENSTOCK_ATTEMPT: ticket.attempt,
    }


def _fault(ticket: Ticket) -> str:
    """What is wrong with a ticket, empty when nothing is: a bug of its edge, never of a client."""
    if not (ticket.ticket_id and ticket.tenant_id and ticket.model and ticket.attempt and ticket.enqueue_unix_nano):
        return "a ticket needs ticket_id, tenant_id, model, attempt and enqueue_unix_nano"
    if not ticket.priority or not ticket.prompt_tokens or not ticket.max_output_tokens or ticket.weight <= 0:
        return "a ticket needs priority, weight, prompt_tokens and max_output_tokens above 0"
    if len(ticket.prefix_hashes) > MAX_PREFIX_HASHES or len(ticket.avoid_workers) > MAX_AVOIDED:
        return f"a ticket has at most {MAX_PREFIX_HASHES} prefix_hashes and {MAX_AVOIDED} avoid_workers"
    return ""
