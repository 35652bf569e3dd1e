"""The ticket book: who waits, who is offered to whom, who must go. Plain calls in, effects out; `now` is unix time.

A ticket is waiting, or offered to one scheduler; with a lease, a refusal or a withdrawal the book forgets it, but for
the few seconds in which a withdrawal still has to find the scheduler that placed it. What waits is listed in the
order of its model, except for a short pause once every scheduler has declined it.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from penstock.chassis.errors import PenstockError
from penstock.mesh.v1.queue_pb2 import VirtualTime
from penstock.mesh.v1.ticket_pb2 import Blame, CatalogEntry, Lease
from penstock.queue.admission import Admission
from penstock.queue.bounds import Bounds
from penstock.queue.charges import Charges, Service
from penstock.queue.effects import Effect, Leased, Left, Models, Queued, Recalled, Returned, Shed, Welcome, Withdrawn
from penstock.queue.errors import AskClosed, Evicted
from penstock.queue.forecast import Prediction
from penstock.queue.lengths import Lengths
from penstock.queue.moves import Moves
from penstock.queue.placed import Placed
from penstock.queue.policies.choice import Choice
from penstock.queue.policies.order import Order
from penstock.queue.presence import Presence
from penstock.queue.promises import Promises
from penstock.queue.seats import Credit, Seats
from penstock.queue.shelves import Shelves
from penstock.queue.speed import Speed
from penstock.queue.waiting import WaitingTicket

DEFAULT_ORDER = Choice()
UNTOLD: Mapping[str, int] = MappingProxyType({})


class TicketBook:
    """All tickets of one shard."""

    def __init__(
        self,
        *,
        bounds: Bounds,
        presence: Presence,
        placed: Placed,
        promises: Promises = Promises(),  # noqa: B008  # a value
        new_order: Callable[[], Order] = DEFAULT_ORDER,
    ) -> None:
        self.seats = Seats(presence.own_time)
        self.shelves = Shelves(self.seats, new_order)
        self.placed = placed
        self.lengths = Lengths()
        self.charges = Charges()
        self._presence = presence
        self._admission = Admission(bounds, presence, promises, self.shelves)
        self._moves = Moves(self.seats, self.shelves, placed, presence, self._admission)
        self.tickets, self.tally = self._moves.tickets, self._moves.tally
        self._models: tuple[CatalogEntry, ...] = ()
        self._arrivals = 0

    def __repr__(self) -> str:
        return f"<TicketBook {self.shelves.waiting.tickets} waiting, {self.offered} offered, {len(self.placed)} placed>"

    @property
    def offered(self) -> int:
        return len(self.tickets) - self.shelves.waiting.tickets

    # What edges do.

    def edge_joined(self, edge: str) -> list[Effect]:
        return [Models(edge, self._models)]

    def edge_lost(self, edge: str) -> list[Effect]:
        """Forget what the edge waited for: it owns its tickets and enqueues them again, with what it may not have
        heard a lease was granted for.

        Nothing is recorded of each: there may be very many, and whoever follows them died with the edge.
        """
        owned = [ticket.ticket_id for ticket in self.tickets.values() if ticket.edge == edge]
        effects = self._moves.recall([*owned, *self.placed.of_edge(edge)], "EDGE_LOST")
        return [each for each in effects if not isinstance(each, Left)]

    def enqueue(self, ticket: WaitingTicket, now: float) -> list[Effect]:
        """Take a ticket in, or refuse it.

        The same attempt again on the same stream changes nothing; on a new stream, which may come before the old
        one's loss is noticed, it moves over, and a newer attempt replaces an older.
        """
        known = self.tickets.get(ticket.ticket_id)
        if known and known.edge == ticket.edge and known.attempt >= ticket.attempt:
            return [_queued(known, self.shelves.predict(known, now))]
        effects = self._moves.recall([ticket.ticket_id], "REPLACED")
        refusal = self.seats.blames.refusal(ticket.fingerprint, now) or self._admission.refusal(ticket, now)
        if refusal is None:
            prediction = self._predict(ticket, now)
            refusal = self._admission.lateness(ticket, prediction, now)
        if refusal is None:
            effects += self._make_room(ticket, now)
            if self._admission.has_room(ticket):
                return [*effects, *self._admit(ticket, prediction, now)]
            refusal = self._admission.full(ticket, now)
        return [*effects, self._shed(ticket, refusal)]

    def knock(self, ticket: WaitingTicket, now: float) -> list[Shed | Welcome]:
        """Say whether a ticket that is new would be taken in; nothing changes but the count of what was refused."""
        refusal = self._admission.refusal(ticket, now)
        if refusal is None:
            refusal = self._admission.lateness(ticket, self._predict(ticket, now), now)
        if refusal is None and not (self._admission.has_room(ticket) or self._admission.can_have_room(ticket)):
            refusal = self._admission.full(ticket, now)
        return [self._shed(ticket, refusal) if refusal else Welcome(ticket.edge, ticket.ticket_id)]

    def withdraw(self, edge: str, ticket_ids: Iterable[str]) -> list[Effect]:
        gone = tuple(ticket_ids)
        for ticket_id in gone:
            if self.placed.knows(ticket_id) and (run := self.charges.revoke(ticket_id)):
                self.shelves.charge(run.ticket, 0.0)  # its edge stops what was started at the worker, and not here
        return [*self._moves.recall(gone, "WITHDRAWN"), Withdrawn(edge, gone)]

    # What schedulers do.

    def scheduler_joined(self, scheduler: str, now: float) -> list[Effect]:
        self.seats.join(scheduler, now)
        return []

    def scheduler_lost(self, scheduler: str, now: float) -> list[Effect]:
        """Put back into its place what it was offered; leases it gave stand or lapse without it."""
        seat = self.seats.lose(scheduler, now)
        offered = [self.tickets[ticket_id] for ticket_id in seat.offered]
        for ticket in offered:
            self._moves.give_back(ticket, now)
        effects = self._catalog_changed(now)
        for model in sorted({ticket.model for ticket in offered}):
            effects += self._moves.match(model, now)
        return effects

    def catalog(
        self, scheduler: str, entries: Iterable[CatalogEntry], now: float, blames: Iterable[Blame] = ()
    ) -> list[Effect]:
        seat = self.seats[scheduler]
        effects = self._moves.part_from(self.seats.blames.hear(scheduler, blames))
        seat.catalog = {entry.model: entry for entry in entries}
        for model in seat.catalog:
            self.shelves.tell_again(model)
        return [*effects, *self._moves.ask_again(scheduler, now), *self._catalog_changed(now)]

    def credit(self, scheduler: str, model: str, given: Credit, now: float, *, once: bool) -> list[Effect]:
        credit = self.seats[scheduler].credits.setdefault(model, Credit())
        credit.add(given)
        effects = self._moves.match(model, now)
        if once:
            effects.append(Returned(scheduler, model, credit.hand_back()))
        return effects

    def pace(self, scheduler: str, model: str, speed: Speed) -> list[Effect]:
        self.shelves.note_speed(scheduler, model, speed)
        return []

    def virtual_times(self, times: Iterable[VirtualTime]) -> list[Effect]:
        for each in times:
            self.shelves.keep_up(each.model, each.priority, each.virtual_tokens)
        return []

    def served(self, services: Iterable[Service], steps: Mapping[str, int] = UNTOLD) -> list[Effect]:
        """Put right what tickets were charged, and learn how long answers are; `steps`: done by now, by worker."""
        for service in services:
            if run := self.charges.served(service):
                self.shelves.charge(run.ticket, run.cost)
                if service.first_token_after and not run.is_timed:
                    run.is_timed = True
                    self.shelves.note_first_token(run.ticket, service.first_token_after)
                if run.is_answer:
                    ticket = run.ticket
                    self.lengths.note(ticket.model, ticket.tenant_id, ticket.max_output_tokens, run.output_tokens)
        for worker_id, done in steps.items():
            for run in self.charges.stepped(worker_id, done):
                self.shelves.charge(run.ticket, run.cost)
        return []

    def place(self, scheduler: str, lease: Lease, now: float) -> list[Effect]:
        if not self.seats[scheduler].answered(lease.ticket_id):
            return []
        ticket = self.tickets[lease.ticket_id]
        if self.seats.blames.bar(ticket, now):  # since it was offered
            self._moves.give_back(ticket, now)
            return [Recalled(scheduler, (ticket.ticket_id,)), *self._moves.match(ticket.model, now)]
        waited = max(0.0, now - ticket.arrived)
        self.shelves.note_placed(ticket, now)
        self.charges.begin(ticket, now, lease.worker_id)
        self.tally.note_leased(ticket.model)
        self.placed.note(ticket, scheduler, now)
        return [Leased(ticket.edge, lease, waited), self._moves.forget(ticket, "")]

    def decline(self, scheduler: str, ticket_id: str, reason: str, now: float) -> list[Effect]:
        """Give an offer back. Without capacity the scheduler's other credit for the model is void as well."""
        seat = self.seats[scheduler]
        if not seat.answered(ticket_id):
            return []
        ticket = self.tickets[ticket_id]
        if reason == "NO_WORKER":
            ticket.refused_by = (*ticket.refused_by, scheduler)
            self._moves.refused[ticket_id] = ticket
        else:
            ticket.declines += 1
            seat.credits[ticket.model].void()
        self._moves.give_back(ticket, now)
        return self._moves.drop_refused([ticket]) or self._moves.match(ticket.model, now)

    # What time does.

    def tick(self, now: float) -> list[Effect]:
        """Drop what ran out of time, end pauses; to be called several times a second."""
        effects = self._moves.tick(now)
        for run in self.charges.expire(now):
            self.shelves.charge(run.ticket, run.cost)
        return effects

    # Who is let in.

    def _predict(self, ticket: WaitingTicket, now: float) -> Prediction:
        ticket.predicted_output = self.lengths.predict(ticket.model, ticket.tenant_id, ticket.max_output_tokens)
        ticket.is_urgent = self.shelves[ticket.model].order.is_urgent(ticket)
        prediction = self.shelves.predict(ticket, now)
        ticket.predicted_wait = prediction.wait or 0.0
        ticket.raw_wait, ticket.raw_first = prediction.raw_wait, prediction.raw_first
        return prediction

    def _shed(self, ticket: WaitingTicket, refusal: PenstockError) -> Shed:
        self.tally.note_shed(ticket.priority, refusal)
        return Shed(ticket.edge, ticket.ticket_id, refusal)

    def _make_room(self, ticket: WaitingTicket, now: float) -> list[Effect]:
        """Evict from lower classes what a ticket needs, and nothing where that would not be enough."""
        effects: list[Effect] = []
        if not self._admission.has_room(ticket) and self._admission.can_have_room(ticket):
            while not self._admission.has_room(ticket):
                victim = self.shelves.next_evicted(ticket.priority)
                effects += self._moves.drop(victim, Evicted(self.shelves.retry_after(victim, now)))
        return effects

    def _admit(self, ticket: WaitingTicket, prediction: Prediction, now: float) -> list[Effect]:
        self._arrivals += 1
        ticket.arrived, ticket.arrival = now, self._arrivals
        self.tickets[ticket.ticket_id] = ticket
        self._moves.timers.admit(ticket)
        self._admission.let_in(ticket, prediction, now)
        self.shelves.count(ticket, 1)
        self._moves.show(ticket, now)
        queued = _queued(ticket, prediction, partial(self._admission.closed_behind, ticket, now))
        return [queued, *self._moves.match(ticket.model, now)]

    def _catalog_changed(self, now: float) -> list[Effect]:
        models = self.seats.models()
        self._presence.update({entry.model for entry in models}, now)
        effects = self._moves.drop_refused(self._moves.refused.values())
        if models != self._models:
            self._models = models
            effects.append(Models("", models))
        return effects


def _queued(ticket: WaitingTicket, prediction: Prediction, closed: AskClosed = tuple) -> Queued:
    return Queued(ticket.edge, ticket.ticket_id, prediction.ahead, prediction.wait, prediction.first_token, closed)
