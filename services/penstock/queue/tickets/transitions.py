"""All transitions of the tickets of a shard between listed, paused, offered, leased and removed."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

from penstock.chassis.errors import PenstockError
from penstock.queue.admission.admission import Admission
from penstock.queue.effects import Effect, OfferWithdrawn, Shed, TicketRemoved
from penstock.queue.errors import NoWorker, PoisonConfirmed, PoisonSuspected
from penstock.queue.models.availability import ModelAvailability
from penstock.queue.models.model_queue import ModelQueues
from penstock.queue.schedulers import SchedulerSessions
from penstock.queue.ticket import QueuedTicket
from penstock.queue.tickets.counters import ShardCounters
from penstock.queue.tickets.edge_tickets import EdgeTickets
from penstock.queue.tickets.expirations import TicketExpirations
from penstock.queue.tickets.poison_scans import MAX_DROPPED_PER_SLICE, TicketScan, TicketScans
from penstock.queue.tickets.recent_leases import RecentLeases

MAX_REMOVED_PER_SLICE = 512  # tickets that one slice of work removes without a frame per ticket


@dataclass(slots=True)
class DispatchHolds:
    """The tickets that a dispatch holds back instead of offering them, up to a limit."""

    hold: Callable[[QueuedTicket], bool]
    held: int = 0

    def __call__(self, ticket: QueuedTicket) -> bool:
        is_held = self.hold(ticket)
        self.held += is_held
        return is_held

    @property
    def is_exhausted(self) -> bool:
        return self.held >= MAX_DROPPED_PER_SLICE


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
        self._edges = EdgeTickets(recent_leases)
        self._poison_scans = TicketScans()
        self._timed_out_models: list[str] = []
        self._undispatched_models: set[str] = set()  # dispatch is due in the next slice

    def dispatch(self, model: str, now: float) -> list[Effect]:
        """Offer waiting tickets of a model. Tickets that must not be offered are removed or paused when met."""
        dropped: list[Effect] = []
        holds = DispatchHolds(partial(self._hold, now=now, dropped=dropped))
        offers = self._model_queues.dispatch(model, now, holds)
        if holds.is_exhausted:
            self._undispatched_models.add(model)
        return [*dropped, *offers]

    def drop_overdue(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for ticket in islice(self.expirations.overdue(now), MAX_DROPPED_PER_SLICE):
            effects += self.drop(ticket, self._admission.expiration_error(ticket, now))
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Find the models that have timed out, and run a slice of the work that is due."""
        self._timed_out_models += self._availability.pop_timed_out(now)
        self._recent_leases.expire(now)
        return self.run_slice(now)

    def next_due_at(self) -> float:
        """Return the s at which the next slice is due: at once, or at the next deadline or end of a pause."""
        if self._edges.has_orphans or self._poison_scans or self._timed_out_models or self._undispatched_models:
            return -math.inf
        return self.expirations.next_due_at()

    def run_slice(self, now: float) -> list[Effect]:
        """Do a bounded part of the work that is due: removals, ends of pauses, and delayed dispatches."""
        effects = [*self.drop_overdue(now), *self.remove_orphans(), *self._poison_scans.run_slice(now)]
        for ticket in islice(self.expirations.pop_unpaused(now), MAX_REMOVED_PER_SLICE):
            self.enlist(ticket, now)
            self._undispatched_models.add(ticket.model)
        models, self._undispatched_models = sorted(self._undispatched_models), set()
        for model in models:
            effects += self.dispatch(model, now)
        for ticket in islice(self._tickets_of_timed_out_models(), MAX_DROPPED_PER_SLICE):
            effects += self.drop(ticket, NoWorker.at_present(ticket.model, self._availability.timeout))
        return effects

    def on_edge_lost(self, edge: str) -> list[Effect]:
        """Remove the tickets of an edge, over as many slices as it takes. None of them is offered meanwhile."""
        self._edges.on_edge_lost(edge)
        return self.remove_orphans()

    def remove_orphans(self) -> list[Effect]:
        """Remove tickets of lost edges.

        No telemetry is recorded per ticket: an edge may have very many, and the traces of its requests ended with it.
        """
        effects = self.withdraw(self._edges.next_orphans(MAX_REMOVED_PER_SLICE), "EDGE_LOST")
        return [each for each in effects if not isinstance(each, TicketRemoved)]

    def add(self, ticket: QueuedTicket) -> None:
        self.tickets[ticket.ticket_id] = ticket
        self._edges.add(ticket)
        self.expirations.schedule_expiration(ticket)

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

    def _hold(self, ticket: QueuedTicket, now: float, dropped: list[Effect]) -> bool:
        """Remove a taken ticket that is overdue or whose edge is lost; pause one that may crash an engine.

        Return whether it must not be offered. A paused ticket is checked again after the pause.
        """
        if self._edges.is_orphan(ticket):
            self._model_queues.charge(ticket, 0.0)
            self._remove(ticket, "EDGE_LOST")
        elif 0 < ticket.lease_deadline <= now:
            self._model_queues.charge(ticket, 0.0)
            dropped += self.drop(ticket, self._admission.expiration_error(ticket, now))
        elif self._schedulers.poison.is_blocked(ticket, now) or self._is_suspended(ticket):
            self._pause(ticket, now)
        else:
            return False
        return True

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
        return [*effects, Shed(ticket.edge, ticket.ticket_id, error, ticket)]

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
        self.expirations.on_removed(ticket)
        self._edges.discard(ticket)
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

    def quarantine(
        self, is_confirmed_by_fingerprint: Mapping[int, bool], running: Iterable[QueuedTicket], now: float
    ) -> list[Effect]:
        """Drop tickets of confirmed poison requests, and revoke recent leases of all reported ones.

        A lease is revoked by the scheduler that granted it. If this scheduler is disconnected, the edge receives a
        `shed`. `is_confirmed_by_fingerprint`: the requests whose report has changed. `running`: tickets that run or
        have ended recently, for their tenants.
        """
        if not is_confirmed_by_fingerprint:
            return []
        # A request is confirmed long after its tickets have left the shard, but it is reported as a suspect at once.
        known = chain(running, list(self.tickets.values()))
        self._poison_scans.add(TicketScan(known, partial(self._compare, is_confirmed_by_fingerprint)))
        self._suspend(self._schedulers.poison.probation.on_reports(is_confirmed_by_fingerprint, now))
        dropped = self._poison_scans.run_slice(now)
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

    def _compare(
        self, is_confirmed_by_fingerprint: Mapping[int, bool], ticket: QueuedTicket, now: float
    ) -> list[Effect]:
        """Record the tenant of a reported request, and drop its ticket if it waits and the report is confirmed."""
        is_confirmed = is_confirmed_by_fingerprint.get(ticket.fingerprint)
        if is_confirmed is None:
            return []
        probation = self._schedulers.poison.probation
        self._suspend(probation.on_tenant_found(ticket.fingerprint, ticket.tenant_id, now, is_confirmed=is_confirmed))
        return self.drop(ticket, PoisonConfirmed()) if is_confirmed and self._contains(ticket) else []

    def _suspend(self, tenants: frozenset[str]) -> None:
        """Drop the waiting tickets of these tenants in the next slices, and offer none of them until then."""
        if new := tenants - self._poison_scans.suspended_tenants:
            waiting = iter(list(self.tickets.values()))
            self._poison_scans.add(TicketScan(waiting, partial(self._drop_suspended, new), new))

    def _drop_suspended(self, tenants: frozenset[str], ticket: QueuedTicket, now: float) -> list[Effect]:
        if ticket.tenant_id not in tenants or not self._contains(ticket):
            return []
        error = self._schedulers.poison.probation.suspension(ticket.tenant_id, now)
        return self.drop(ticket, error) if error else []

    def _is_suspended(self, ticket: QueuedTicket) -> bool:
        return ticket.tenant_id in self._poison_scans.suspended_tenants

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
