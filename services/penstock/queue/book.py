"""The ticket book: who waits, who is offered to whom, who must go. Plain calls in, effects out; `now` is unix time.

An edge's ticket is waiting, or offered to one scheduler; with a lease, a refusal or a withdrawal the book forgets it,
but for the few seconds in which a withdrawal still has to find the scheduler that placed it.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from penstock.chassis.errors import DeadlineExceeded, NotFound, Overloaded, PenstockError, Unavailable
from penstock.mesh.v1.ticket_pb2 import CatalogEntry, Lease
from penstock.queue.effects import (
    Effect,
    Head,
    Leased,
    Models,
    Offer,
    Queued,
    Recalled,
    Returned,
    Shed,
    Withdrawn,
)
from penstock.queue.policies.class_fifo import ClassFifo
from penstock.queue.policies.order import Order
from penstock.queue.seats import Credit, Seat, Seats
from penstock.queue.waiting import Place, WaitingTicket

UNKNOWN_RATE_RETRY = 1.0  # s; what a refused client is told before anything was measured
RETRY_BOUNDS = (0.05, 60.0)  # s


@dataclass(slots=True)
class Shelf:
    """The tickets of one model."""

    order: Order
    waiting: int = 0
    tokens: int = 0  # of what waits
    sent: Head | None = None  # as last told, without its scheduler


@dataclass(kw_only=True)
class TicketBook:
    """All tickets of one shard."""

    max_depth: int  # tickets waiting
    max_tokens: int  # prompt + output tokens waiting
    worker_patience: float  # s a ticket waits while no scheduler can place its model
    placed_memory: float  # s in which a lease may still be recalled
    new_order: Callable[[], Order] = ClassFifo
    tickets: dict[str, WaitingTicket] = field(default_factory=dict)
    edges: dict[str, set[str]] = field(default_factory=dict)
    seats: Seats = field(default_factory=Seats)
    shelves: dict[str, Shelf] = field(default_factory=dict)
    sheds: dict[str, int] = field(default_factory=dict)  # by reason
    waiting: int = 0
    waiting_tokens: int = 0
    _placed: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict)  # scheduler, until
    _deadlines: list[tuple[float, str]] = field(default_factory=list)
    _orphaned: dict[str, float] = field(default_factory=dict)  # model without a scheduler: since when
    _changed: set[str] = field(default_factory=set)  # models whose head may have to be told

    def __repr__(self) -> str:
        offered = len(self.tickets) - self.waiting
        return f"<TicketBook {self.waiting}/{self.max_depth} waiting, {offered} offered, {len(self._placed)} placed>"

    # ---------------------------------------------------------------------------------------------------------- edges

    def edge_joined(self, edge: str) -> list[Effect]:
        self.edges[edge] = set()
        return [Models(self.seats.models())]

    def edge_lost(self, edge: str) -> list[Effect]:
        """Forget what the edge waited for: it owns its tickets and enqueues them again."""
        return self._recall(self.edges.pop(edge, set()))

    def enqueue(self, ticket: WaitingTicket, now: float) -> list[Effect]:
        """Take a ticket in, or refuse it.

        The same attempt again on the same stream changes nothing; on a new stream, which may come before the old
        one's loss is noticed, it moves over, and a newer attempt replaces an older.
        """
        known = self.tickets.get(ticket.ticket_id)
        if known and known.edge == ticket.edge and known.attempt >= ticket.attempt:
            return [self._queued(known)]
        effects = self._recall([ticket.ticket_id]) if known else []
        if refusal := self._refusal(ticket, now):
            return [*effects, self._shed(ticket, refusal)]
        if full := self._full(ticket):
            victim = self._shelf(ticket.model).order.newest_below(ticket.priority)
            if victim is None:
                return [*effects, self._shed(ticket, full)]
            text = "a request of a higher class needed the place; retry later"
            self._remove(victim)
            effects.append(self._shed(victim, Overloaded(text, reason="EVICTED", retry_after=full.retry_after)))
        self._insert(ticket)
        return [*effects, self._queued(ticket), *self._match(ticket.model)]

    def withdraw(self, edge: str, ticket_ids: Iterable[str]) -> list[Effect]:
        gone = tuple(ticket_ids)
        return [*self._recall(gone), Withdrawn(edge, gone)]

    # ----------------------------------------------------------------------------------------------------- schedulers

    def scheduler_joined(self, scheduler: str) -> list[Effect]:
        self.seats[scheduler] = Seat()
        return []

    def scheduler_lost(self, scheduler: str, now: float) -> list[Effect]:
        """What it was offered is back in its place; leases it gave stand or lapse without it."""
        seat = self.seats.pop(scheduler, Seat())
        for ticket_id in seat.offered:
            self._give_back(self.tickets[ticket_id])
        models = {self.tickets[ticket_id].model for ticket_id in seat.offered}
        return [*self._catalog_changed(now), *(effect for model in models for effect in self._match(model))]

    def catalog(self, scheduler: str, entries: Iterable[CatalogEntry], now: float) -> list[Effect]:
        self.seats[scheduler].catalog = {entry.model: entry for entry in entries}
        self._changed.update(self.seats[scheduler].catalog)
        for shelf in self.shelves.values():
            shelf.sent = None  # whoever serves it now has not heard of it
        return self._catalog_changed(now)

    def credit(self, scheduler: str, model: str, given: Credit, *, once: bool) -> list[Effect]:
        credit = self.seats[scheduler].credits.setdefault(model, Credit())
        credit.tickets += given.tickets
        credit.max_tokens, credit.tokens_per_second = given.max_tokens, given.tokens_per_second
        effects = self._match(model)
        if once and credit.tickets:
            effects.append(Returned(scheduler, model, credit.tickets))
            credit.tickets = 0
        return effects

    def place(self, scheduler: str, lease: Lease, now: float) -> list[Effect]:
        ticket = self._offered_to(scheduler, lease.ticket_id)
        if ticket is None or ticket.attempt != lease.attempt:
            return [Recalled(scheduler, (lease.ticket_id,))]
        self._forget(ticket)
        self._placed[ticket.ticket_id] = (scheduler, now + self.placed_memory)
        return [Leased(ticket, lease, max(0.0, now - ticket.enqueued))]

    def decline(self, scheduler: str, ticket_id: str, reason: str) -> list[Effect]:
        ticket = self._offered_to(scheduler, ticket_id)
        if ticket is None:
            return []
        if reason == "NO_WORKER" and not any(key != scheduler for key, _ in self.seats.serving(ticket.model)):
            text = f"no worker can ever run {ticket.tokens} tokens of {ticket.model}; ask for fewer"
            self._forget(ticket)
            return [self._shed(ticket, Unavailable(text, reason="NO_WORKER"))]
        self._give_back(ticket)
        return self._match(ticket.model)

    # ---------------------------------------------------------------------------------------------------------- time

    def tick(self, now: float) -> list[Effect]:
        """Drop what ran out of time; to be called several times a second."""
        effects: list[Effect] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            ticket = self.tickets.get(heappop(self._deadlines)[1])
            if ticket and 0 < ticket.deadline <= now:
                effects += self._drop(ticket, DeadlineExceeded("the request waited in the queue until its deadline"))
        for model, since in list(self._orphaned.items()):
            if now - since >= self.worker_patience:
                effects += self._abandon(model, now)
        while self._placed and next(iter(self._placed.values()))[1] <= now:
            self._placed.popitem(last=False)
        return effects

    def heads(self) -> Iterator[Head]:
        """What schedulers have not heard yet of the models' heads."""
        for model in self._changed:
            shelf = self._shelf(model)
            found = shelf.order.head()
            head = Head("", model, shelf.waiting, shelf.tokens, found[1] if found else None)
            if head != shelf.sent:
                shelf.sent = head
                for scheduler, _ in self.seats.serving(model):
                    yield Head(scheduler, model, head.waiting, head.waiting_tokens, head.key)
        self._changed.clear()

    def retry_after(self, model: str) -> float:
        """Time until as much is served as waits now."""
        rate = self.seats.rate(model)
        if not rate:
            return UNKNOWN_RATE_RETRY
        return min(max(self._shelf(model).tokens / rate, RETRY_BOUNDS[0]), RETRY_BOUNDS[1])

    # ---------------------------------------------------------------------------------------------------------- inside

    def _refusal(self, ticket: WaitingTicket, now: float) -> PenstockError | None:
        if 0 < ticket.deadline <= now:
            return DeadlineExceeded("the deadline had passed before the request reached the queue")
        if any(self.seats.serving(ticket.model)):
            return None
        if self.seats.models() and ticket.model not in self._orphaned:
            return NotFound(f"no worker serves {ticket.model}; see ListModels", reason="MODEL_UNKNOWN")
        self._orphaned.setdefault(ticket.model, now)
        return None

    def _full(self, ticket: WaitingTicket) -> Overloaded | None:
        """The refusal of a ticket that would pass a bound; resumed work is let in above it: its place was its own."""
        if ticket.resumes:
            return None
        wait = self.retry_after(ticket.model)
        if self.waiting >= self.max_depth:
            text = f"{self.waiting} requests are waiting, the most this queue takes; retry in {wait:.1f} s"
            return Overloaded(text, reason="QUEUE_FULL", retry_after=wait)
        if self.waiting_tokens + ticket.tokens > self.max_tokens:
            text = f"{self.waiting_tokens} tokens are waiting of at most {self.max_tokens}; retry in {wait:.1f} s"
            return Overloaded(text, reason="QUEUE_TOKENS_FULL", retry_after=wait)
        return None

    def _queued(self, ticket: WaitingTicket) -> Queued:
        shelf, rate = self._shelf(ticket.model), self.seats.rate(ticket.model)
        ahead = shelf.waiting - (ticket.place is Place.WAITING)
        return Queued(ticket.edge, ticket.ticket_id, max(0, ahead), shelf.tokens / rate if rate else None)

    def _match(self, model: str) -> list[Effect]:
        """Offer tickets for as long as there are both tickets and credit."""
        effects: list[Effect] = []
        shelf = self._shelf(model)
        while shelf.waiting and (found := self.seats.with_credit(model)):
            scheduler, credit = found
            ticket = shelf.order.take(credit.max_tokens)
            if ticket is None:
                break
            credit.tickets -= 1
            self._count(ticket, -1)
            ticket.place, ticket.scheduler = Place.OFFERED, scheduler
            self.seats[scheduler].offered.add(ticket.ticket_id)
            effects.append(Offer(scheduler, ticket))
        return effects

    def _insert(self, ticket: WaitingTicket) -> None:
        self.tickets[ticket.ticket_id] = ticket
        self.edges[ticket.edge].add(ticket.ticket_id)
        if ticket.deadline:
            heappush(self._deadlines, (ticket.deadline, ticket.ticket_id))
        self._shelf(ticket.model).order.push(ticket)
        self._count(ticket, 1)

    def _give_back(self, ticket: WaitingTicket) -> None:
        if seat := self.seats.get(ticket.scheduler):
            seat.offered.discard(ticket.ticket_id)
        ticket.place, ticket.scheduler = Place.WAITING, ""
        self._shelf(ticket.model).order.push(ticket)
        self._count(ticket, 1)

    def _remove(self, ticket: WaitingTicket) -> None:
        """Take a ticket out, wherever it is."""
        if ticket.place is Place.WAITING:
            self._shelf(ticket.model).order.remove(ticket)
            self._count(ticket, -1)
        self._forget(ticket)

    def _forget(self, ticket: WaitingTicket) -> None:
        if seat := self.seats.get(ticket.scheduler):
            seat.offered.discard(ticket.ticket_id)
        self.edges.get(ticket.edge, set()).discard(ticket.ticket_id)
        del self.tickets[ticket.ticket_id]

    def _recall(self, ticket_ids: Iterable[str]) -> list[Effect]:
        """Take tickets out and tell the schedulers that know of them."""
        told: dict[str, list[str]] = {}
        for ticket_id in list(ticket_ids):
            if ticket := self.tickets.get(ticket_id):
                if ticket.scheduler:
                    told.setdefault(ticket.scheduler, []).append(ticket_id)
                self._remove(ticket)
            elif placed := self._placed.pop(ticket_id, None):
                told.setdefault(placed[0], []).append(ticket_id)
        return [Recalled(key, tuple(ids)) for key, ids in told.items() if key in self.seats]

    def _drop(self, ticket: WaitingTicket, error: PenstockError) -> list[Effect]:
        return [*self._recall([ticket.ticket_id]), self._shed(ticket, error)]

    def _abandon(self, model: str, now: float) -> list[Effect]:
        """No scheduler came back for a model in time: tell all who wait for it."""
        effects: list[Effect] = []
        shelf = self._shelf(model)
        while ticket := shelf.order.take(0):
            self._count(ticket, -1)
            self._forget(ticket)
            text = f"no worker serves {model} at present; retry in {self.worker_patience:.0f} s"
            effects.append(self._shed(ticket, Unavailable(text, reason="NO_WORKER", retry_after=self.worker_patience)))
        self._orphaned[model] = now
        if not any(ticket.model == model for ticket in self.tickets.values()):
            del self._orphaned[model]
        return effects

    def _catalog_changed(self, now: float) -> list[Effect]:
        for model, shelf in self.shelves.items():
            if any(self.seats.serving(model)):
                self._orphaned.pop(model, None)
            elif shelf.waiting:
                self._orphaned.setdefault(model, now)
        return [Models(self.seats.models())]

    def _offered_to(self, scheduler: str, ticket_id: str) -> WaitingTicket | None:
        ticket = self.tickets.get(ticket_id)
        return ticket if ticket and ticket.scheduler == scheduler else None

    def _shed(self, ticket: WaitingTicket, error: PenstockError) -> Shed:
        self.sheds[error.reason] = self.sheds.get(error.reason, 0) + 1
        return Shed(ticket.edge, ticket.ticket_id, error)

    def _shelf(self, model: str) -> Shelf:
        if model not in self.shelves:
            self.shelves[model] = Shelf(self.new_order())
        return self.shelves[model]

    def _count(self, ticket: WaitingTicket, sign: int) -> None:
        shelf = self._shelf(ticket.model)
        shelf.waiting += sign
        shelf.tokens += sign * ticket.tokens
        self.waiting += sign
        self.waiting_tokens += sign * ticket.tokens
        self._changed.add(ticket.model)
