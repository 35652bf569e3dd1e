"""The ticket book: all waiting and offered tickets of a shard. It takes plain calls and returns effects.

A ticket waits or is offered to one scheduler. When it is leased, shed or withdrawn, it leaves the book, except that
recent leases are kept for some seconds, so that a withdrawal reaches the scheduler that placed the ticket. Waiting
tickets are listed in the order of their model's policy, except during a short pause after every scheduler has declined.
`now` is in s of a clock that never steps.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from penstock.chassis.errors import PenstockError
from penstock.mesh.model_key import model_key, model_name
from penstock.mesh.v1.queue_pb2 import VirtualTime
from penstock.mesh.v1.ticket_pb2 import CatalogEntry, Lease, PoisonReport
from penstock.queue.accounting import OutputProgress, ServedTicket, ServiceAccounting
from penstock.queue.admission.admission import Admission, QueueLimits, TtftTargets
from penstock.queue.census import QueueCensus
from penstock.queue.effects import (
    CatalogUpdate,
    CreditReturned,
    Effect,
    Leased,
    OfferWithdrawn,
    Queued,
    Shed,
    Withdrawn,
)
from penstock.queue.errors import Evicted, RejectionWindowsFn
from penstock.queue.frames import remote_backlog_of
from penstock.queue.models.availability import ModelAvailability
from penstock.queue.models.model_queue import ModelQueues
from penstock.queue.policies.factory import PolicyConfig
from penstock.queue.policies.policy import SchedulingPolicy
from penstock.queue.prediction.estimators import OutputLengthPredictor
from penstock.queue.prediction.forecast import Prediction
from penstock.queue.prediction.pool_stats import PoolStats
from penstock.queue.prediction.prefill_backlog import RemotePrompt
from penstock.queue.schedulers import Credit, SchedulerSessions
from penstock.queue.ticket import QueuedTicket
from penstock.queue.tickets.recent_leases import RecentLeases
from penstock.queue.tickets.transitions import TicketTransitions
from penstock.v1.inference_pb2 import PRIORITY_BATCH

# s between two ticks: at the least, so that lease deadlines are detected together; while a timeout of a model or of a
# poison report runs, whose clock counts longer gaps as stalls; and at most.
MIN_TICK_INTERVAL_S = 0.05
TIMEOUT_TICK_INTERVAL_S = 0.25
MAX_TICK_INTERVAL_S = 1.0
DEFAULT_POLICY = PolicyConfig()
NO_WORKER_STEPS: Mapping[str, int] = MappingProxyType({})


class TicketBook:
    """All tickets of one shard."""

    def __init__(
        self,
        *,
        limits: QueueLimits,
        availability: ModelAvailability,
        recent_leases: RecentLeases,
        ttft_targets: TtftTargets = TtftTargets(),  # noqa: B008  # immutable
        new_policy: Callable[[], SchedulingPolicy] = DEFAULT_POLICY,
    ) -> None:
        self.schedulers = SchedulerSessions(availability.clock)
        self.model_queues = ModelQueues(self.schedulers, new_policy)
        self.recent_leases = recent_leases
        self.output_lengths = OutputLengthPredictor()
        self.accounting = ServiceAccounting()
        self._availability = availability
        self._admission = Admission(limits, availability, ttft_targets, self.model_queues)
        self._transitions = TicketTransitions(
            self.schedulers, self.model_queues, recent_leases, availability, self._admission
        )
        self.tickets, self.counters = self._transitions.tickets, self._transitions.counters
        self._census = QueueCensus(self.model_queues, self.accounting.running_by_class)
        self._models: tuple[CatalogEntry, ...] = ()
        self._is_catalog_due = False  # the number of workers of a model has changed since the catalog was sent
        self._arrivals = 0
        self._ticked_at = -math.inf  # s

    def __repr__(self) -> str:
        waiting = self.model_queues.waiting.tickets
        return f"<TicketBook {waiting} waiting, {self.offered} offered, {len(self.recent_leases)} placed>"

    @property
    def offered(self) -> int:
        return len(self.tickets) - self.model_queues.waiting.tickets

    # Events of edges.

    def on_edge_connected(self, edge: str) -> list[Effect]:
        return [CatalogUpdate(edge, self._models)]

    def on_edge_disconnected(self, edge: str) -> list[Effect]:
        """Remove the tickets of an edge and withdraw its recent leases. The edge enqueues its tickets again."""
        return self._transitions.on_edge_lost(edge)

    def enqueue(self, ticket: QueuedTicket, now: float) -> list[Effect]:
        """Admit or shed a ticket.

        The same attempt on the same stream changes nothing. On a new stream of the edge, which may connect before the
        loss of the old stream is detected, the ticket moves to it. A newer attempt replaces an older one.
        """
        known = self.tickets.get(ticket.ticket_id)
        if known and known.edge == ticket.edge and known.attempt >= ticket.attempt:
            return [_queued_effect(known, self.model_queues.predict(known, now))]
        is_known = known or self.recent_leases.contains(ticket.ticket_id)
        effects = self._transitions.withdraw([ticket.ticket_id], "REPLACED") if is_known else []
        rejection = (
            self.schedulers.poison.rejection(ticket.fingerprint, now)
            or self.schedulers.poison.probation.rejection(ticket, now, self._is_active)
            or self._admission.rejection(ticket, now)
        )
        if rejection is None and ticket.is_readmitted and not ticket.is_resumed:
            return [*effects, *self._readmit(ticket, now)]
        if rejection is None:
            prediction = self._predict(ticket, now)
            rejection = self._admission.check_slo(ticket, prediction, now)
        if rejection is None:
            if self._admission.has_room(ticket) or self._admission.can_make_room(ticket):
                effects += self._evict_for(ticket, now)
                return [*effects, *self._admit(ticket, prediction, now)]
            rejection = self._admission.queue_full(ticket, now)
        return [*effects, self._shed(ticket, rejection)]

    def withdraw(self, edge: str, ticket_ids: Iterable[str]) -> list[Effect]:
        withdrawn = tuple(ticket_ids)
        for ticket_id in withdrawn:
            if self.recent_leases.contains(ticket_id) and (run := self.accounting.revoke(ticket_id)):
                self.model_queues.charge(run.ticket, 0.0)  # a started lease is stopped by its edge at the worker
        return [*self._transitions.withdraw(withdrawn, "WITHDRAWN"), Withdrawn(edge, withdrawn)]

    # Events of schedulers.

    def on_scheduler_connected(self, scheduler: str, now: float) -> list[Effect]:
        self.schedulers.on_connected(scheduler, now)
        return []

    def on_scheduler_disconnected(self, scheduler: str, now: float) -> list[Effect]:
        """Return the offers of a scheduler to their places. Its leases stay valid until they expire."""
        self.accounting.on_scheduler_disconnected(scheduler)
        session = self.schedulers.on_disconnected(scheduler, now)
        offered = [self.tickets[ticket_id] for ticket_id in session.offered]
        for ticket in offered:
            self._transitions.return_offer(ticket, now)
        effects = self._on_catalog_changed(now)
        for model in sorted({ticket.model for ticket in offered}):
            effects += self._transitions.dispatch(model, now)
        return effects

    def on_catalog(
        self, scheduler: str, entries: Iterable[CatalogEntry], now: float, poison_reports: Iterable[PoisonReport] = ()
    ) -> list[Effect]:
        session = self.schedulers[scheduler]
        changes = self.schedulers.poison.apply(scheduler, poison_reports)
        effects = self._transitions.quarantine(changes, self.accounting.recent() if changes else (), now)
        session.set_catalog({model_key(entry.model, entry.card_digest): entry for entry in entries})
        for model in session.catalog:
            self.model_queues.mark_head_dirty(model)
        return [*effects, *self._transitions.retry_refused(scheduler, now), *self._on_catalog_changed(now)]

    def on_credit(self, scheduler: str, model: str, given: Credit, now: float, *, return_unused: bool) -> list[Effect]:
        if not self._keeps_model(scheduler, model):
            return [CreditReturned(scheduler, model, given.tickets)] if return_unused else []
        credit = self.schedulers[scheduler].credits.setdefault(model, Credit())
        credit.add(given)
        effects = self._transitions.dispatch(model, now)
        if return_unused:
            effects.append(CreditReturned(scheduler, model, credit.return_unused()))
        return effects

    def on_pool_stats(self, scheduler: str, model: str, stats: PoolStats) -> list[Effect]:
        if self._keeps_model(scheduler, model):
            self.model_queues.record_pool_stats(scheduler, model, stats)
        return []

    def on_placed_prompts(
        self, scheduler: str, model: str, prompts: Iterable[RemotePrompt], now: float
    ) -> list[Effect]:
        """Apply the prompts of other shards that a scheduler has placed."""
        if self._keeps_model(scheduler, model):
            self.model_queues[model].forecast.record_remote_prompts(scheduler, prompts, now)
        return []

    def on_virtual_times(self, scheduler: str, times: Iterable[VirtualTime]) -> list[Effect]:
        backlogs = self.schedulers[scheduler].remote_backlogs
        for each in times:
            if not self._keeps_model(scheduler, each.model):
                continue
            self.model_queues.advance_virtual_time(each.model, each.priority, each.virtual_tokens)
            backlogs.setdefault(each.model, {})[each.priority] = remote_backlog_of(each)
        return []

    def _keeps_model(self, scheduler: str, model: str) -> bool:
        """Whether to keep what a scheduler reports about a model. It may name models before its catalog is received."""
        session = self.schedulers[scheduler]
        if model not in session.catalog and not self.model_queues.has_room_for(model):
            return False
        session.keep_model(model)
        return True

    def on_service_report(
        self,
        served_tickets: Iterable[ServedTicket],
        steps: Mapping[str, int] = NO_WORKER_STEPS,
        progress: Iterable[OutputProgress] = (),
        scheduler: str = "",
    ) -> list[Effect]:
        """Correct the charges of tickets, and record answer lengths.

        `steps`: engine steps done, by worker id. `progress`: output of tickets that `scheduler` has numbered before.
        """
        for output in progress:
            for grown in self.accounting.apply_output(scheduler, output):
                self.model_queues.charge(grown.ticket, grown.cost)
        for served in served_tickets:
            if run := self.accounting.apply_report(served, scheduler):
                self.model_queues.charge(run.ticket, run.cost)
                if served.first_token_after and not run.is_ttft_known:
                    run.is_ttft_known = True
                    self.model_queues.record_first_token(run.ticket, served.first_token_after)
                if run.is_complete_answer:
                    ticket = run.ticket
                    self.output_lengths.record(
                        model_name(ticket.model), ticket.tenant_id, ticket.max_output_tokens, run.output_tokens
                    )
        for worker_id, done in steps.items():
            for grown in self.accounting.apply_worker_steps(worker_id, done):
                self.model_queues.charge(grown.ticket, grown.cost)
        return []

    def on_place(self, scheduler: str, lease: Lease, now: float) -> list[Effect]:
        if not self.schedulers[scheduler].on_answer(lease.ticket_id):
            return []
        ticket = self.tickets[lease.ticket_id]
        if self.schedulers.poison.is_blocked(ticket, now):  # reported since the offer
            self._transitions.return_offer(ticket, now)
            return [OfferWithdrawn(scheduler, (ticket.ticket_id,)), *self._transitions.dispatch(ticket.model, now)]
        waited = max(0.0, now - ticket.arrived)
        self.model_queues.record_lease(ticket, scheduler, lease.worker_id, now)
        self.accounting.start(ticket, now, lease.worker_id)
        self.counters.record_lease(ticket.model)
        self.recent_leases.record(ticket, scheduler, now)
        return [Leased(ticket.edge, lease, waited), self._transitions.discard(ticket, "")]

    def on_decline(self, scheduler: str, ticket_id: str, reason: str, now: float) -> list[Effect]:
        """Return an offer to its place. NO_CAPACITY also voids the scheduler's other credit for the model."""
        session = self.schedulers[scheduler]
        if not session.on_answer(ticket_id):
            return []
        ticket = self.tickets[ticket_id]
        if reason == "NO_WORKER":
            ticket.refused_by = (*ticket.refused_by, scheduler)
            self._transitions.refused_tickets[ticket_id] = ticket
        else:
            ticket.decline_count += 1
            if credit := session.credits.get(ticket.model):
                credit.void()
        self._transitions.return_offer(ticket, now)
        return self._transitions.drop_refused([ticket]) or self._transitions.dispatch(ticket.model, now)

    # Time.

    def has_due_work(self, now: float) -> bool:
        """Whether `run_slice` has to be called before the next tick."""
        return self._transitions.next_due_at() <= now

    def next_tick_at(self, now: float) -> float:
        """Return the s at which the next tick is due. Any event may make it earlier."""
        due_at = min(
            self._ticked_at + self._max_tick_interval(now),
            self._transitions.next_due_at(),
            self.accounting.next_timeout_at,
        )
        return max(due_at, self._ticked_at + MIN_TICK_INTERVAL_S)

    def _max_tick_interval(self, now: float) -> float:
        if self._is_catalog_due:
            return MIN_TICK_INTERVAL_S
        if self._availability.is_timing(now) or self.schedulers.poison.is_timing(now):
            return TIMEOUT_TICK_INTERVAL_S
        return MAX_TICK_INTERVAL_S

    def run_slice(self, now: float) -> list[Effect]:
        """Do a bounded part of the work that is due. A slice takes some milliseconds."""
        return self._transitions.run_slice(now)

    def tick(self, now: float) -> list[Effect]:
        """Shed expired tickets, and end pauses. Due at `next_tick_at`; earlier ticks are harmless."""
        self._ticked_at = now
        effects = self._transitions.tick(now)
        if self._is_catalog_due:
            self._is_catalog_due = False
            effects.append(CatalogUpdate("", self._models))
        for run in self.accounting.expire(now):
            self.model_queues.charge(run.ticket, run.cost)
        return effects

    # Admission.

    def _readmit(self, ticket: QueuedTicket, now: float) -> list[Effect]:
        """Admit a ticket that a shard has admitted before. Only its deadline can end its wait.

        It is neither predicted nor compared with the limits of the queue: after the loss of a shard, very many tickets
        arrive at once, and a rejection would break the promise of the earlier admission.
        """
        self._classify(ticket)
        ticket.lease_deadline = ticket.deadline
        return self._add(ticket, now, _queued_effect(ticket, Prediction(self.model_queues.waiting.tickets)))

    def _classify(self, ticket: QueuedTicket) -> None:
        # By name, because a new version of a model begins with the lengths of its predecessor.
        ticket.predicted_output = self.output_lengths.predict(
            model_name(ticket.model), ticket.tenant_id, ticket.max_output_tokens
        )
        ticket.is_express = self.model_queues[ticket.model].policy.is_express(ticket)

    def _predict(self, ticket: QueuedTicket, now: float) -> Prediction:
        self._classify(ticket)
        prediction = self.model_queues.predict(ticket, now)
        ticket.predicted_wait = prediction.wait or 0.0
        ticket.raw_wait, ticket.raw_ttft = prediction.raw_wait, prediction.raw_ttft
        return prediction

    def _queued(self, ticket: QueuedTicket, prediction: Prediction, windows: RejectionWindowsFn, now: float) -> Queued:
        queued = _queued_effect(ticket, prediction, windows)
        if prediction.tickets_ahead or prediction.wait:
            queued.census = self._census.of(ticket, now)
        return queued

    def _shed(self, ticket: QueuedTicket, rejection: PenstockError) -> Shed:
        self.counters.record_shed(ticket.priority, rejection)
        return Shed(ticket.edge, ticket.ticket_id, rejection, ticket)

    def _is_active(self, ticket_id: str) -> bool:
        return ticket_id in self.tickets or self.accounting.is_running(ticket_id)

    def _evict_for(self, ticket: QueuedTicket, now: float) -> list[Effect]:
        """Evict tickets of lower classes until a ticket fits, or takes no more than they did.

        Readmitted tickets may exceed the limits. One ticket must not evict all that do.
        """
        effects: list[Effect] = []
        freed_tickets = freed_tokens = 0
        while not self._admission.has_room(ticket) and not (freed_tickets and freed_tokens >= ticket.tokens):
            victim = self.model_queues.next_victim(ticket.priority)
            freed_tickets, freed_tokens = freed_tickets + 1, freed_tokens + victim.tokens
            effects += self._transitions.drop(victim, Evicted(self.model_queues.retry_after(victim, now)))
        return effects

    def _admit(self, ticket: QueuedTicket, prediction: Prediction, now: float) -> list[Effect]:
        self._admission.on_admitted(ticket, prediction, now)
        windows = partial(self._admission.rejection_windows, ticket, now)
        return self._add(ticket, now, self._queued(ticket, prediction, windows, now))

    def _add(self, ticket: QueuedTicket, now: float, queued: Queued) -> list[Effect]:
        self._arrivals += 1
        ticket.arrived, ticket.arrival_number = now, self._arrivals
        self._transitions.add(ticket)
        self.schedulers.poison.probation.on_admitted(ticket)
        self.model_queues.adjust_totals(ticket, 1)
        if not ticket.is_readmitted and ticket.priority != PRIORITY_BATCH:
            self.model_queues[ticket.model].demand.arrivals.record(ticket.prompt_tokens, ticket.enqueued)
        self._transitions.enlist(ticket, now)
        return [queued, *self._transitions.dispatch(ticket.model, now)]

    def _on_catalog_changed(self, now: float) -> list[Effect]:
        models = self.schedulers.catalog()
        served = {model_key(entry.model, entry.card_digest) for entry in models}
        self._availability.update(served, now)
        for model in self.model_queues.forget_unserved(served):
            self.counters.leased_by_model.pop(model, None)
        effects = self._transitions.drop_refused(self._transitions.refused_tickets.values())
        is_due_now = _cards_of(models) != _cards_of(self._models)
        self._is_catalog_due = not is_due_now and (self._is_catalog_due or models != self._models)
        self._models = models
        return [*effects, CatalogUpdate("", models)] if is_due_now else effects


def _cards_of(entries: Iterable[CatalogEntry]) -> list[tuple[str, str]]:
    """Return the models and their cards. Edges receive changes of these at once, and changes of hints at a tick."""
    return [(each.model, each.card_digest) for each in entries]


def _queued_effect(
    ticket: QueuedTicket, prediction: Prediction, rejection_windows: RejectionWindowsFn = tuple
) -> Queued:
    return Queued(
        ticket.edge, ticket.ticket_id, prediction.tickets_ahead, prediction.wait, prediction.ttft, rejection_windows
    )
