"""All transitions of the tickets of a shard between listed, paused, offered, leased and removed."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
from penstock.queue.tickets.expirations import TicketExpirations
from penstock.queue.tickets.recent_leases import RecentLeases


@dataclass(slots=True)
class ShardCounters:
    """Leased and shed tickets."""

    leased: int = 0
    leased_by_model: dict[str, int] = field(default_factory=dict)
    shed: dict[str, int] = field(default_factory=dict)  # tickets by reason
    shed_by_class: dict[tuple[int, str], int] = field(default_factory=dict)  # by priority and reason

    def record_lease(self, model: str) -> None:
        self.leased += 1
        self.leased_by_model[model] = self.leased_by_model.get(model, 0) + 1

    def record_shed(self, priority: int, error: PenstockError) -> None:
        self.shed[error.reason] = self.shed.get(error.reason, 0) + 1
        key = priority, error.reason
        self.shed_by_class[key] = self.shed_by_class.get(key, 0) + 1


MAX_DROPS_PER_TICK = 1_000  # tickets per tick and reason, so that the stream of an edge does not overflow


class TicketTransitions:
    """The tickets of one shard, and their transitions between states."""

    def __init__(
        self,
        schedulers: SchedulerSessions,
        model_queues: ModelQueues,
        recent_leases: RecentLeases,
        availability: ModelAvailability,
        admission: Admission,
    ) -> None:
        self.tickets: dict[str, QueuedTicket] = {}  # waiting or offered
        self.expirations = TicketExpirations(self._contains)
        self.counters = ShardCounters()
        self.refused_tickets: dict[str, QueuedTicket] = {}  # tickets that at least one scheduler has refused
        self._schedulers = schedulers
        self._model_queues = model_queues
        self._recent_leases = recent_leases
        self._availability = availability
        self._admission = admission
        self._suspended_tenants: set[str] = set()  # whose waiting tickets are to be dropped
        self._timed_out_models: list[str] = []
        self._undispatched_models: set[str] = set()  # dispatch is due at the next tick

    def dispatch(self, model: str, now: float) -> list[Effect]:
        """Offer waiting tickets of a model, after all overdue tickets were dropped."""
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
        """End pauses, offer tickets of undispatched models, and drop tickets of timed-out models."""
        effects = self.drop_overdue(now)
        for ticket in self.expirations.pop_unpaused(now):
            self.enlist(ticket, now)
            self._undispatched_models.add(ticket.model)
        models, self._undispatched_models = sorted(self._undispatched_models), set()
        for model in models:
            effects += self.dispatch(model, now)
        self._timed_out_models += self._availability.pop_timed_out(now)
        for ticket in islice(self._tickets_of_timed_out_models(), MAX_DROPS_PER_TICK):
            effects += self.drop(ticket, NoWorker.at_present(ticket.model, self._availability.timeout))
        effects += self._drop_suspended(now)
        self._recent_leases.expire(now)
        return effects

    def enlist(self, ticket: QueuedTicket, now: float) -> None:
        self._availability.await_model(ticket.model, now)
        self._model_queues.enlist(ticket)

    def return_offer(self, ticket: QueuedTicket, now: float) -> None:
        """Return an offered ticket to its place; pause it if all schedulers have declined it."""
        if session := self._schedulers.get(ticket.offered_to):
            session.offered.discard(ticket.ticket_id)
        ticket.offered_to = ""
        self._model_queues[ticket.model].forecast.discard_prompt(ticket, now)
        self._model_queues.adjust_totals(ticket, 1)
        if ticket.decline_count > len(self._schedulers):
            self._pause(ticket, now)
        else:
            self.enlist(ticket, now)

    def _pause_if_blocked(self, ticket: QueuedTicket, now: float) -> bool:
        """Pause a ticket that may crash an engine. It is checked again after the pause."""
        is_blocked = self._schedulers.poison.is_blocked(ticket, now) or ticket.tenant_id in self._suspended_tenants
        if is_blocked:
            self._pause(ticket, now)
        return is_blocked

    def _pause(self, ticket: QueuedTicket, now: float) -> None:
        self._model_queues.charge(ticket, 0.0)
        self.expirations.pause(ticket, now)

    def withdraw(self, ticket_ids: Iterable[str], reason: str) -> list[Effect]:
        """Remove tickets, and withdraw them from the schedulers that have received them."""
        effects: list[Effect] = []
        ids_by_scheduler: dict[str, list[str]] = {}
        for ticket_id in ticket_ids:
            if ticket := self.tickets.get(ticket_id):
                scheduler = ticket.offered_to
                effects.append(self._remove(ticket, reason))
            else:
                scheduler = self._recent_leases.pop(ticket_id)
            if scheduler in self._schedulers:
                ids_by_scheduler.setdefault(scheduler, []).append(ticket_id)
        return [*effects, *(OfferWithdrawn(scheduler, tuple(ids)) for scheduler, ids in ids_by_scheduler.items())]

    def drop(self, ticket: QueuedTicket, error: PenstockError) -> list[Effect]:
        self.counters.record_shed(ticket.priority, error)
        effects = self.withdraw([ticket.ticket_id], error.reason)
        return [*effects, Shed(ticket.edge, ticket.ticket_id, error)]

    def _remove(self, ticket: QueuedTicket, reason: str) -> TicketRemoved:
        """Remove a waiting or offered ticket, and refund its tenant."""
        if ticket.offered_to:
            self._schedulers[ticket.offered_to].void_offer(ticket.ticket_id)
            self._model_queues.charge(ticket, 0.0)
        else:
            self._model_queues.remove(ticket)
        return self.discard(ticket, reason)

    def discard(self, ticket: QueuedTicket, reason: str) -> TicketRemoved:
        if session := self._schedulers.get(ticket.offered_to):
            session.offered.discard(ticket.ticket_id)
        self.refused_tickets.pop(ticket.ticket_id, None)
        del self.tickets[ticket.ticket_id]
        return TicketRemoved(ticket, reason)

    def retry_refused(self, scheduler: str, now: float) -> list[Effect]:
        """Clear the refusals of a scheduler whose workers may have changed, and offer the tickets again."""
        refused = [ticket for ticket in self.refused_tickets.values() if scheduler in ticket.refused_by]
        for ticket in refused:
            ticket.refused_by = tuple(each for each in ticket.refused_by if each != scheduler)
        models = sorted({ticket.model for ticket in refused})
        return [effect for model in models for effect in self.dispatch(model, now)]

    def drop_refused(self, candidates: Iterable[QueuedTicket]) -> list[Effect]:
        """Drop the tickets that every scheduler of their model has refused."""
        refused = [ticket for ticket in candidates if self._schedulers.is_refused_by_all(ticket)]
        return [effect for ticket in refused for effect in self.drop(ticket, self._unplaceable_error(ticket))]

    def quarantine(self, is_confirmed_by_fingerprint: Mapping[int, bool]) -> list[Effect]:
        """Drop tickets of confirmed poison requests, and revoke recent leases of all reported ones.

        A lease is revoked by the scheduler that granted it. If this scheduler is disconnected, the edge receives a
        `shed`. `is_confirmed_by_fingerprint`: the requests whose report has changed.
        """
        if not is_confirmed_by_fingerprint:
            return []
        confirmed = [each for each in self.tickets.values() if is_confirmed_by_fingerprint.get(each.fingerprint)]
        dropped = [effect for ticket in confirmed for effect in self.drop(ticket, PoisonConfirmed())]
        leases = self._recent_leases.with_fingerprints(is_confirmed_by_fingerprint)
        revocable = [key for key, each in leases.items() if each.scheduler in self._schedulers]
        others = [
            Shed(
                each.edge,
                key,
                PoisonConfirmed() if is_confirmed_by_fingerprint[each.fingerprint] else PoisonSuspected(),
            )
            for key, each in leases.items()
            if each.scheduler not in self._schedulers
        ]
        return [*dropped, *self.withdraw(revocable, "SUSPECT"), *others]

    def suspend(self, tenants: Collection[str]) -> None:
        """Drop the waiting tickets of these tenants at the next ticks, and offer none of them until then."""
        self._suspended_tenants.update(tenants)

    def _drop_suspended(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self._suspended_tenants:
            found = [each for each in self.tickets.values() if each.tenant_id in self._suspended_tenants]
            for ticket in found[:MAX_DROPS_PER_TICK]:
                if error := self._schedulers.poison.probation.suspension(ticket.tenant_id, now):
                    effects += self.drop(ticket, error)
            if len(found) <= MAX_DROPS_PER_TICK:
                self._suspended_tenants.clear()
        return effects

    def _tickets_of_timed_out_models(self) -> Iterator[QueuedTicket]:
        """Yield the waiting tickets of timed-out models. The caller drops each before it takes the next."""
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
