"""Where the tickets of a shard stand, and every step from one place to another. Decides nothing of who is let in."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice

from penstock.chassis.errors import PenstockError
from penstock.queue.admission.admission import Admission
from penstock.queue.effects import Effect, OfferWithdrawn, Shed, TicketRemoved
from penstock.queue.errors import NoWorker, PoisonConfirmed, PoisonSuspected
from penstock.queue.models.availability import ModelAvailability
from penstock.queue.models.model_queue import ModelQueues
from penstock.queue.schedulers import SchedulerSessions
from penstock.queue.ticket import QueuedTicket
from penstock.queue.tickets.counters import ShardCounters
from penstock.queue.tickets.expirations import TicketExpirations
from penstock.queue.tickets.recent_leases import RecentLeases

MAX_DROPS_PER_TICK = 1_000  # tickets per tick and reason; a whole edge's sheds at once would overflow its stream


class TicketTransitions:
    """All tickets of one shard: listed, in a pause, offered, or placed a moment ago."""

    def __init__(
        self,
        schedulers: SchedulerSessions,
        model_queues: ModelQueues,
        recent_leases: RecentLeases,
        availability: ModelAvailability,
        admission: Admission,
    ) -> None:
        self.tickets: dict[str, QueuedTicket] = {}  # but for those placed
        self.expirations = TicketExpirations(self._contains)
        self.counters = ShardCounters()
        self.refused_tickets: dict[str, QueuedTicket] = {}  # tickets that some scheduler can never run
        self._schedulers = schedulers
        self._model_queues = model_queues
        self._recent_leases = recent_leases
        self._availability = availability
        self._admission = admission
        self._timed_out_models: list[str] = []  # models
        self._undispatched_models: set[str] = (
            set()
        )  # models whose tickets were not offered: too many are to be dropped first

    def dispatch(self, model: str, now: float) -> list[Effect]:
        """Offer what waits, but nothing that is past its due time."""
        effects = self.drop_overdue(now)
        if self.expirations.has_overdue(now):
            self._undispatched_models.add(model)
            return effects
        return [*effects, *self._model_queues.dispatch(model, now, partial(self._pause_if_blocked, now=now))]

    def drop_overdue(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for ticket in islice(self.expirations.overdue(now), MAX_DROPS_PER_TICK):
            effects += self.drop(ticket, self._admission.expiration_error(ticket, now))
        return effects

    def tick(self, now: float) -> list[Effect]:
        """End pauses, offer what was not offered yet, and drop what nobody will place any more."""
        effects = self.drop_overdue(now)
        for ticket in self.expirations.pop_unpaused(now):
            self.enlist(ticket, now)
            self._undispatched_models.add(ticket.model)
        unmatched, self._undispatched_models = sorted(self._undispatched_models), set()
        for model in unmatched:
            effects += self.dispatch(model, now)
        self._timed_out_models += self._availability.pop_timed_out(now)
        for ticket in islice(self._tickets_of_timed_out_models(), MAX_DROPS_PER_TICK):
            effects += self.drop(ticket, NoWorker.at_present(ticket.model, self._availability.timeout))
        self._recent_leases.expire(now)
        return effects

    def enlist(self, ticket: QueuedTicket, now: float) -> None:
        self._availability.await_model(ticket.model, now)
        self._model_queues.enlist(ticket)

    def return_offer(self, ticket: QueuedTicket, now: float) -> None:
        """Put an offered ticket back into its place, or aside for a moment when it comes back again and again."""
        if seat := self._schedulers.get(ticket.offered_to):
            seat.offered.discard(ticket.ticket_id)
        ticket.offered_to = ""
        self._model_queues[ticket.model].forecast.discard_prompt(ticket, now)
        self._model_queues.adjust_totals(ticket, 1)
        if ticket.decline_count > len(self._schedulers):
            self._pause(ticket, now)
        else:
            self.enlist(ticket, now)

    def _pause_if_blocked(self, ticket: QueuedTicket, now: float) -> bool:
        """Set aside for a moment, again and again, what may crash the engine of whoever gets it."""
        is_barred = self._schedulers.poison.is_blocked(ticket, now)
        if is_barred:
            self._pause(ticket, now)
        return is_barred

    def _pause(self, ticket: QueuedTicket, now: float) -> None:
        self._model_queues.charge(ticket, 0.0)
        self.expirations.pause(ticket, now)

    def withdraw(self, ticket_ids: Iterable[str], reason: str) -> list[Effect]:
        """Take tickets out and tell the schedulers that know of them."""
        effects: list[Effect] = []
        told: dict[str, list[str]] = {}
        for ticket_id in ticket_ids:
            if ticket := self.tickets.get(ticket_id):
                scheduler = ticket.offered_to
                effects.append(self._remove(ticket, reason))
            else:
                scheduler = self._recent_leases.pop(ticket_id)
            if scheduler in self._schedulers:
                told.setdefault(scheduler, []).append(ticket_id)
        return [*effects, *(OfferWithdrawn(scheduler, tuple(ids)) for scheduler, ids in told.items())]

    def drop(self, ticket: QueuedTicket, error: PenstockError) -> list[Effect]:
        self.counters.record_shed(ticket.priority, error)
        gone = self.withdraw([ticket.ticket_id], error.reason)
        return [*gone, Shed(ticket.edge, ticket.ticket_id, error)]

    def _remove(self, ticket: QueuedTicket, reason: str) -> TicketRemoved:
        """Remove a ticket from wherever it is."""
        if ticket.offered_to:
            self._schedulers[ticket.offered_to].void_offer(ticket.ticket_id)
            self._model_queues.charge(ticket, 0.0)
        else:
            self._model_queues.remove(ticket)
        return self.discard(ticket, reason)

    def discard(self, ticket: QueuedTicket, reason: str) -> TicketRemoved:
        if seat := self._schedulers.get(ticket.offered_to):
            seat.offered.discard(ticket.ticket_id)
        self.refused_tickets.pop(ticket.ticket_id, None)
        del self.tickets[ticket.ticket_id]
        return TicketRemoved(ticket, reason)

    def retry_refused(self, scheduler: str, now: float) -> list[Effect]:
        """Forget what a scheduler could never run: it may have other workers now."""
        refused = [ticket for ticket in self.refused_tickets.values() if scheduler in ticket.refused_by]
        for ticket in refused:
            ticket.refused_by = tuple(each for each in ticket.refused_by if each != scheduler)
        models = sorted({ticket.model for ticket in refused})
        return [effect for model in models for effect in self.dispatch(model, now)]

    def drop_refused(self, candidates: Iterable[QueuedTicket]) -> list[Effect]:
        """Drop those that no scheduler can ever run."""
        found = [ticket for ticket in candidates if self._schedulers.is_refused_by_all(ticket)]
        return [effect for ticket in found for effect in self.drop(ticket, self._unplaceable_error(ticket))]

    def quarantine(self, is_confirmed_by_fingerprint: Mapping[int, bool]) -> list[Effect]:
        """Drop what would crash every engine, be it on its way to a scheduler, and have no lease of it started: by the
        scheduler that gave it, which tells the worker, or where that is gone by the edge that has it.

        `blamed`: those of whom there is news, and whether they are guilty.
        """
        if not is_confirmed_by_fingerprint:
            return []
        guilty = [each for each in self.tickets.values() if is_confirmed_by_fingerprint.get(each.fingerprint)]
        dropped = [effect for ticket in guilty for effect in self.drop(ticket, PoisonConfirmed())]
        placed = self._recent_leases.with_fingerprints(is_confirmed_by_fingerprint)
        known = [key for key, each in placed.items() if each.scheduler in self._schedulers]
        others = [
            Shed(
                each.edge,
                key,
                PoisonConfirmed() if is_confirmed_by_fingerprint[each.fingerprint] else PoisonSuspected(),
            )
            for key, each in placed.items()
            if each.scheduler not in self._schedulers
        ]
        return [*dropped, *self.withdraw(known, "SUSPECT"), *others]

    def _tickets_of_timed_out_models(self) -> Iterator[QueuedTicket]:
        """Yield those whose model nobody came back for in time; the caller drops each before it asks for the next."""
        while self._timed_out_models:
            model = self._timed_out_models[0]
            while model not in self._availability.served_models and (found := self._model_queues[model].policy.head()):
                yield found[0]
            self._timed_out_models.pop(0)

    def _unplaceable_error(self, ticket: QueuedTicket) -> PenstockError:
        if ticket.avoid_workers:
            return NoWorker.none_left(ticket.model, len(ticket.avoid_workers), self._availability.timeout)
        return NoWorker.none_large_enough(ticket.model, ticket.tokens)

    def _contains(self, ticket: QueuedTicket) -> bool:
        return self.tickets.get(ticket.ticket_id) is ticket
