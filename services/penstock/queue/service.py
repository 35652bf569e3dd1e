"""Frames to calls of the book, and its effects back to frames. No policy."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar

from penstock.chassis.streams import Peer, accepted
from penstock.mesh.v1 import queue_pb2 as pb
from penstock.mesh.v1.queue_pb2_grpc import QueueServiceServicer
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.queue import effects as out
from penstock.queue import record
from penstock.queue.book import TicketBook
from penstock.queue.frames import credit_of, services_of, speed_of, steps_of, to_edge, to_scheduler
from penstock.queue.snapshot import prediction_figures
from penstock.queue.validation import TicketInvalid, check
from penstock.queue.waiting import NANOS, WaitingTicket, from_frame
from penstock.v1.stream_pb2 import End, Hello

TICK = 0.05  # s; how late a deadline may be noticed
STREAM_FRAMES = 65_536  # frames waiting for one peer; beyond them its stream is closed, as it does not read

EdgePeer = Peer[pb.SubmitResponse, pb.SubmitRequest]
SchedulerPeer = Peer[pb.DispatchResponse, pb.DispatchRequest]
Said = TypeVar("Said", bound=out.Effect)


class QueueService(QueueServiceServicer):
    """Both sides of one shard. `now` tells unix time.

    Edges are greeted once a scheduler has named a model here, or after `staffing` s: a shard that has just started
    must not take tickets from one that could place them at once.
    """

    def __init__(
        self, book: TicketBook, hello: Hello, *, staffing: float = 0.0, now: Callable[[], float] = time.time
    ) -> None:
        self._book = book
        self._hello = hello
        self._staffing = staffing
        self._now = now
        self._is_staffed = asyncio.Event()
        self._edges: dict[str, EdgePeer] = {}
        self._schedulers: dict[str, SchedulerPeer] = {}
        self._streams = count(1)
        self._is_telling_heads = False

    # Streams.

    async def Submit(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # yields nothing
        await self.staffed(self._staffing)
        self._is_staffed.set()  # waited for once is enough
        async with accepted(context, pb.SubmitResponse, self._hello, capacity=STREAM_FRAMES) as peer:
            edge = f"{peer.hello.instance_id}/{next(self._streams)}"
            self._edges[edge] = peer
            try:
                self._perform(self._book.edge_joined(edge))
                async for frame in peer:
                    if effects := self._from_edge(edge, frame):
                        self._perform(effects)
            finally:
                del self._edges[edge]
                self._perform(self._book.edge_lost(edge))

    async def Dispatch(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # yields nothing
        async with accepted(context, pb.DispatchResponse, self._hello) as peer:
            scheduler = f"{peer.hello.instance_id}/{next(self._streams)}"
            self._schedulers[scheduler] = peer
            try:
                self._perform(self._book.scheduler_joined(scheduler, self._now()))
                async for frame in peer:
                    self._perform(self._from_scheduler(scheduler, frame))
            finally:
                del self._schedulers[scheduler]
                self._perform(self._book.scheduler_lost(scheduler, self._now()))

    async def staffed(self, patience: float) -> None:
        """Wait until a scheduler has named a model here, for `patience` s at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._is_staffed.wait()

    async def tick(self) -> None:
        """Let time pass in the book until cancelled."""
        while True:
            await asyncio.sleep(TICK)
            self._perform(self._book.tick(self._now()))
            record.note_depths(self._book.shelves)

    def drain(self) -> None:
        """Tell all that this shard ends: edges enqueue elsewhere what waits, schedulers forget their credit."""
        for edge in self._edges.values():
            edge.send(pb.SubmitResponse(end=End(reason="drained")))
        for scheduler in self._schedulers.values():
            scheduler.send(pb.DispatchResponse(end=End(reason="drained")))

    def figures(self) -> dict[str, float]:
        book = self._book
        return {
            "waiting": book.shelves.waiting.tickets,
            "waiting_tokens": book.shelves.waiting.tokens,
            "offered": book.offered,
            "leased": book.tally.leased,
            "credits": book.seats.credit,
            "edges": len(self._edges),
            "schedulers": len(self._schedulers),
            "running": len(book.charges),
            **prediction_figures(book.shelves),
            **{f"shed_{reason.lower()}": tickets for reason, tickets in book.tally.shed.items()},
        }

    # Frames.

    def _from_edge(self, edge: str, frame: pb.SubmitRequest) -> list[out.Effect]:
        match frame.WhichOneof("frame"):
            case "enqueue":
                return [
                    each for ticket in frame.enqueue.tickets for each in self._let_in(edge, ticket, self._book.enqueue)
                ]
            case "knock":  # moves nothing that anybody else is to hear of
                for answer in self._let_in(edge, frame.knock.ticket, self._book.knock):
                    self._tell_edge(answer)
            case "withdraw":
                gone = self._book.withdraw(edge, frame.withdraw.ticket_ids)
                self._perform(gone, sent=frame.withdraw.withdraw_unix_nano / NANOS)
        return []

    def _let_in(
        self, edge: str, ticket: Ticket, let_in: Callable[[WaitingTicket, float], Sequence[Said]]
    ) -> Sequence[Said | out.Shed]:
        try:
            check(ticket)
        except TicketInvalid as fault:
            return [out.Shed(edge, ticket.ticket_id, fault)]
        return let_in(from_frame(ticket, edge), self._now())

    def _from_scheduler(self, scheduler: str, frame: pb.DispatchRequest) -> list[out.Effect]:
        now = self._now()
        match frame.WhichOneof("frame"):
            case "credit":
                given = frame.credit
                return self._book.credit(scheduler, given.model, credit_of(given), now, once=given.once)
            case "pace":
                return self._book.pace(scheduler, frame.pace.model, speed_of(frame.pace, now))
            case "virtual_times":
                return self._book.virtual_times(frame.virtual_times.times)
            case "served":
                return self._book.served(services_of(frame.served.tickets), steps_of(frame.served.workers))
            case "place":
                return self._book.place(scheduler, frame.place.lease, now)
            case "decline":
                return self._book.decline(scheduler, frame.decline.ticket_id, frame.decline.reason, now)
            case "catalog":
                if frame.catalog.entries:
                    self._is_staffed.set()
                return self._book.catalog(scheduler, frame.catalog.entries, now, frame.catalog.blames)
        return []

    # Effects.

    def _perform(self, effects: Iterable[out.Effect], *, sent: float = 0.0) -> None:
        """`sent`: Unix time in s at which the peer caused the effects; 0: unknown."""
        for effect in effects:
            match effect:
                case out.Left():
                    now = self._now()
                    record.note_left(effect, min(sent or now, now))
                case out.Models():
                    self._tell_models(effect)
                case out.Queued() | out.Leased() | out.Shed() | out.Withdrawn() | out.Welcome():
                    self._tell_edge(effect)
                case _:
                    self._tell_scheduler(effect)
        if not self._is_telling_heads:  # once per turn of the loop, however much changed in it
            self._is_telling_heads = True
            asyncio.get_running_loop().call_soon(self._tell_heads)

    def _tell_heads(self) -> None:
        self._is_telling_heads = False
        for head in self._book.shelves.heads():
            self._tell_scheduler(head)

    def _tell_models(self, models: out.Models) -> None:
        frame = to_edge(models)
        for edge, peer in self._edges.items():
            if models.edge in ("", edge):
                peer.send(frame)

    def _tell_edge(self, effect: out.ToEdge) -> None:
        if isinstance(effect, out.Shed):
            record.note_shed(effect.error.reason)
        if peer := self._edges.get(effect.edge):
            peer.send(to_edge(effect))

    def _tell_scheduler(self, effect: out.ToScheduler) -> None:
        if peer := self._schedulers.get(effect.scheduler):
            frame = to_scheduler(effect)
            if isinstance(effect, out.Offer) and (edge := self._edges.get(effect.ticket.edge)):
                frame.offer.ticket.zone = edge.hello.zone
            peer.send(frame)
