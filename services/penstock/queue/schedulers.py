"""Scheduler sessions of a shard: the catalog, credit, statistics and open offers of each scheduler."""

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from penstock.chassis.clocks import StallFreeClock
from penstock.mesh.limits.bounds import COUNT, MODELS, at_most
from penstock.mesh.v1.ticket_pb2 import CatalogEntry
from penstock.queue.effects import Offer
from penstock.queue.poison import PoisonRequests
from penstock.queue.policies.policy import Fit, FitFn
from penstock.queue.prediction.pool_stats import PoolStats
from penstock.queue.prediction.ttft_model import RemoteBacklog
from penstock.queue.ticket import QueuedTicket

# Models outside the catalog of a scheduler whose credit and statistics are kept; the oldest are forgotten first.
MAX_UNLISTED_MODELS = 64
NO_REMOTE_BACKLOGS: Mapping[int, RemoteBacklog] = MappingProxyType({})


@dataclass(slots=True)
class Credit:
    """Credit of one scheduler for one model: the offers that it still takes."""

    tickets: int = 0
    max_ticket_tokens: int = 0  # tokens of the largest ticket that can be placed now; 0: no limit known
    tokens_per_second: float = 0.0  # measured by its workers; 0: unknown
    total_tokens: int | None = None  # tokens over all tickets that use this credit; None: no limit known
    express_tickets: int = 0  # expedited tickets, in addition to `tickets`

    def add(self, given: "Credit") -> None:
        """Add a credit frame. Tickets and tokens add up; the newest size limit and rate hold."""
        self.tickets += given.tickets
        self.express_tickets += given.express_tickets
        self.max_ticket_tokens, self.tokens_per_second = given.max_ticket_tokens, given.tokens_per_second
        if given.total_tokens:
            self.total_tokens = (self.total_tokens or 0) + given.total_tokens

    def consume(self, ticket: QueuedTicket) -> None:
        self.tickets -= 1
        if self.total_tokens is not None:
            self.total_tokens = max(0, self.total_tokens - ticket.tokens)

    def return_unused(self) -> int:
        """Give back the credit for tickets in general, and return its number of tickets. Express credit stays."""
        tickets, self.tickets = self.tickets, 0
        self.total_tokens = None if self.total_tokens is None else 0
        return tickets

    def void(self) -> None:
        self.return_unused()
        self.express_tickets = 0

    @property
    def largest_fitting_tokens(self) -> int | None:
        """Tokens of the largest ticket that this credit covers; None if there is no limit."""
        if self.total_tokens is None:
            return self.max_ticket_tokens or None
        return min(self.max_ticket_tokens, self.total_tokens) if self.max_ticket_tokens else self.total_tokens


@dataclass(slots=True)
class SchedulerSession:
    """The session of one scheduler."""

    catalog: dict[str, CatalogEntry] = field(default_factory=dict)  # by key of the model, as the next three
    credits: dict[str, Credit] = field(default_factory=dict)
    pool_stats: dict[str, PoolStats] = field(default_factory=dict)
    # Waiting tickets of other shards by class.
    remote_backlogs: dict[str, dict[int, RemoteBacklog]] = field(default_factory=dict)
    offered: set[str] = field(default_factory=set)  # ticket ids
    void_offers: Counter[str] = field(default_factory=Counter)  # voided offers without an answer yet, by ticket
    _unlisted: dict[str, None] = field(default_factory=dict)  # models outside the catalog, oldest first

    def set_catalog(self, catalog: dict[str, CatalogEntry]) -> None:
        former, self.catalog = self.catalog, catalog
        for model in former:
            self.keep_model(model)

    def keep_model(self, model: str) -> None:
        """Keep credit and statistics of a model, whose catalog may follow, and forget those of too many others."""
        if model in self.catalog or model in self._unlisted:
            return
        self._unlisted[model] = None
        if len(self._unlisted) > MAX_UNLISTED_MODELS:
            forgotten = next(iter(self._unlisted))
            del self._unlisted[forgotten]
            if forgotten not in self.catalog:
                for by_model in (self.credits, self.pool_stats, self.remote_backlogs):
                    by_model.pop(forgotten, None)

    def on_answer(self, ticket_id: str) -> bool:
        """Record the answer to an offer. Return whether the offer is still open.

        A scheduler answers each offer once and in order, so the first answers belong to the oldest offers.
        """
        if not self.void_offers[ticket_id]:
            del self.void_offers[ticket_id]
            return ticket_id in self.offered
        self.void_offers[ticket_id] -= 1
        return False

    def worker_count(self, model: str) -> int:
        """Workers of a model; at least 1."""
        return max(1, self.catalog[model].workers_hint) if model in self.catalog else 1

    def void_offer(self, ticket_id: str) -> None:
        self.offered.discard(ticket_id)
        self.void_offers[ticket_id] += 1


class SchedulerSessions(dict[str, SchedulerSession]):
    """All scheduler sessions by stream."""

    def schedulers_serving(self, model: str) -> Iterator[str]:
        return (key for key, session in self.items() if model in session.catalog)

    def __init__(self, clock: StallFreeClock) -> None:
        super().__init__()
        self.poison = PoisonRequests(clock)

    def on_connected(self, scheduler: str, now: float) -> None:
        self[scheduler] = SchedulerSession()
        self.poison.on_scheduler_connected(scheduler, now)

    def on_disconnected(self, scheduler: str, now: float) -> SchedulerSession:
        self.poison.on_scheduler_disconnected(scheduler, now)
        return self.pop(scheduler)

    @property
    def total_credit(self) -> int:
        return sum(credit.tickets for session in self.values() for credit in session.credits.values())

    def pool_stats(self, model: str, since: float) -> list[PoolStats]:
        """Return the statistics of a model that are not older than `since`, one per scheduler."""
        found = [session.pool_stats.get(model) for session in self.values()]
        return [stats for stats in found if stats and stats.received_at >= since]

    def remote_backlogs(self, model: str) -> Mapping[int, RemoteBacklog]:
        """Return the tickets of a model that wait at other shards, by class. Every scheduler knows all of them."""
        for session in self.values():
            if found := session.remote_backlogs.get(model):
                return found
        return NO_REMOTE_BACKLOGS

    def credit_for(self, model: str) -> int:
        found = [session.credits.get(model) for session in self.values()]
        return sum([credit.tickets for credit in found if credit])

    def scheduler_with_credit(self, model: str, excluding: Container[str]) -> tuple[str, Credit] | None:
        """Return the scheduler with the most credit for `model`; None if none has credit."""
        best: tuple[str, Credit] | None = None
        for key, session in self.items():
            credit = session.credits.get(model)
            if credit and credit.tickets > (best[1].tickets if best else 0) and key not in excluding:
                best = key, credit
        return best

    def scheduler_with_express_credit(self, model: str, excluding: Container[str]) -> tuple[str, Credit] | None:
        """Return a scheduler with express credit for `model`; None if none has any."""
        for key, session in self.items():
            credit = session.credits.get(model)
            if credit and credit.express_tickets and key not in excluding:
                return key, credit
        return None

    def offer(self, ticket: QueuedTicket, scheduler: str) -> Offer:
        """Record an offer to `scheduler`, or to a scheduler that was not tried yet if it has declined the ticket."""
        if scheduler in ticket.tried_schedulers:
            untried = [key for key in self._schedulers_that_fit(ticket) if key not in ticket.tried_schedulers]
            scheduler, ticket.tried_schedulers = (untried[0], ticket.tried_schedulers) if untried else (scheduler, ())
        self[scheduler].credits[ticket.model].consume(ticket)
        self._record_offer(ticket, scheduler)
        return Offer(scheduler, ticket)

    def offer_on_express_credit(self, ticket: QueuedTicket, scheduler: str) -> Offer:
        self[scheduler].credits[ticket.model].express_tickets -= 1
        self._record_offer(ticket, scheduler)
        return Offer(scheduler, ticket, uses_express_credit=True)

    def _record_offer(self, ticket: QueuedTicket, scheduler: str) -> None:
        ticket.tried_schedulers = (*ticket.tried_schedulers, scheduler)
        ticket.offered_to = scheduler
        session = self[scheduler]
        session.offered.add(ticket.ticket_id)
        if stats := session.pool_stats.get(ticket.model):
            tokens = ticket.prompt_tokens / session.worker_count(ticket.model)
            session.pool_stats[ticket.model] = (
                stats.with_batch_ticket_placed() if ticket.is_batch else stats.with_ticket_placed(tokens)
            )

    def _schedulers_that_fit(self, ticket: QueuedTicket) -> Iterator[str]:
        for key, session in self.items():
            credit = session.credits.get(ticket.model)
            if credit and credit.tickets and credit_fit(key, credit.largest_fitting_tokens)(ticket) is Fit.NOW:
                yield key

    def is_refused_by_all(self, ticket: QueuedTicket) -> bool:
        """Whether every scheduler that serves the ticket's model has refused it."""
        serving = set(self.schedulers_serving(ticket.model))
        return bool(serving) and serving <= set(ticket.refused_by)

    def tokens_per_second(self, model: str) -> float:
        """Return the rate of all schedulers together; 0.0 if unknown."""
        return sum(session.credits[model].tokens_per_second for session in self.values() if model in session.credits)

    def catalog(self) -> tuple[CatalogEntry, ...]:
        """Return one entry per model, with the workers of all schedulers and the address of one of the largest pool."""
        entries: dict[str, list[CatalogEntry]] = {}
        for session in self.values():
            for model, entry in session.catalog.items():
                entries.setdefault(model, []).append(entry)
        return tuple(_merged(entries[model]) for model in sorted(entries)[:MODELS])


def credit_fit(scheduler: str, max_tokens: int | None) -> FitFn:
    """Return how credit of `scheduler` with this size limit fits a ticket."""

    def fit(ticket: QueuedTicket) -> Fit:
        if scheduler in ticket.refused_by:
            return Fit.NEVER
        return Fit.NOW if max_tokens is None or ticket.tokens <= max_tokens else Fit.LATER

    return fit


def express_credit_fit(scheduler: str, max_tokens: int) -> FitFn:
    """Return how express credit fits a ticket: never, unless the ticket is expedited."""
    fit = credit_fit(scheduler, max_tokens or None)
    return lambda ticket: fit(ticket) if ticket.is_expedited else Fit.NEVER


def _merged(entries: list[CatalogEntry]) -> CatalogEntry:
    merged = CatalogEntry()
    merged.CopyFrom(max(entries, key=lambda entry: entry.workers_hint))
    merged.workers_hint = at_most(sum(entry.workers_hint for entry in entries), COUNT)
    merged.slots_hint = at_most(sum(entry.slots_hint for entry in entries), COUNT)
    merged.context_length = max(entry.context_length for entry in entries)
    return merged
