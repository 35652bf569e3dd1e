"""The schedulers of a shard: what each can place, and how many tickets each may be offered."""

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from penstock.chassis.clocks import StallFreeClock
from penstock.mesh.v1.ticket_pb2 import CatalogEntry
from penstock.queue.effects import Offer
from penstock.queue.poison import PoisonRequests
from penstock.queue.policies.policy import Fit, FitFn
from penstock.queue.prediction.pool_stats import PoolStats
from penstock.queue.ticket import QueuedTicket


@dataclass(slots=True)
class Credit:
    """Offers a scheduler may still be made for one model."""

    tickets: int = 0
    max_ticket_tokens: int = 0  # largest ticket it can place now; 0: no bound known
    tokens_per_second: float = 0.0  # measured by its workers; 0: unknown
    total_tokens: int | None = None  # tokens over all tickets that it is used for; None: no bound known
    express_tickets: int = 0  # tickets beyond those, which go first in their class

    def add(self, given: "Credit") -> None:
        """Tickets and room add up; the largest ticket is what it is by now."""
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
        """Keep what is for urgent tickets alone; return how many others it was good for."""
        tickets, self.tickets = self.tickets, 0
        self.total_tokens = None if self.total_tokens is None else 0
        return tickets

    def void(self) -> None:
        self.return_unused()
        self.express_tickets = 0

    @property
    def largest_fitting_tokens(self) -> int | None:
        """Tokens of the largest ticket that it can be used for; None: any."""
        if self.total_tokens is None:
            return self.max_ticket_tokens or None
        return min(self.max_ticket_tokens, self.total_tokens) if self.max_ticket_tokens else self.total_tokens


@dataclass(slots=True)
class SchedulerSession:
    """One scheduler."""

    catalog: dict[str, CatalogEntry] = field(default_factory=dict)
    credits: dict[str, Credit] = field(default_factory=dict)
    pool_stats: dict[str, PoolStats] = field(default_factory=dict)  # by model
    offered: set[str] = field(default_factory=set)  # ticket ids
    void_offers: Counter[str] = field(default_factory=Counter)  # offers taken back that it has not answered yet

    def on_answer(self, ticket_id: str) -> bool:
        """Note the answer to an offer; False when the offer had been taken back by then.

        A scheduler answers each offer once and in order, so the first answers are to the oldest offers.
        """
        if not self.void_offers[ticket_id]:
            del self.void_offers[ticket_id]
            return ticket_id in self.offered
        self.void_offers[ticket_id] -= 1
        return False

    def worker_count(self, model: str) -> int:
        """One at least, whatever was heard."""
        return max(1, self.catalog[model].workers_hint) if model in self.catalog else 1

    def void_offer(self, ticket_id: str) -> None:
        self.offered.discard(ticket_id)
        self.void_offers[ticket_id] += 1


class SchedulerSessions(dict[str, SchedulerSession]):
    """All schedulers by stream."""

    def schedulers_serving(self, model: str) -> Iterator[str]:
        return (key for key, seat in self.items() if model in seat.catalog)

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
        return sum(credit.tickets for seat in self.values() for credit in seat.credits.values())

    def pool_stats(self, model: str, since: float) -> list[PoolStats]:
        """Return what schedulers have said of a model's workers, but for what is older than `since`."""
        found = [seat.pool_stats.get(model) for seat in self.values()]
        return [speed for speed in found if speed and speed.received_at >= since]

    def credit_for(self, model: str) -> int:
        found = [seat.credits.get(model) for seat in self.values()]
        return sum([credit.tickets for credit in found if credit])

    def scheduler_with_credit(self, model: str, excluding: Container[str]) -> tuple[str, Credit] | None:
        """Return the scheduler with most credit for `model`."""
        best: tuple[str, Credit] | None = None
        for key, seat in self.items():
            credit = seat.credits.get(model)
            if credit and credit.tickets > (best[1].tickets if best else 0) and key not in excluding:
                best = key, credit
        return best

    def scheduler_with_express_credit(self, model: str, excluding: Container[str]) -> tuple[str, Credit] | None:
        """Return a scheduler with credit for what goes first alone."""
        for key, seat in self.items():
            credit = seat.credits.get(model)
            if credit and credit.express_tickets and key not in excluding:
                return key, credit
        return None

    def offer(self, ticket: QueuedTicket, scheduler: str) -> Offer:
        """Note that `ticket` goes to `scheduler`; one that came back goes to the others with credit for it first."""
        if scheduler in ticket.tried_schedulers:
            fresh = [key for key in self._schedulers_that_fit(ticket) if key not in ticket.tried_schedulers]
            scheduler, ticket.tried_schedulers = (fresh[0], ticket.tried_schedulers) if fresh else (scheduler, ())
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
        seat = self[scheduler]
        seat.offered.add(ticket.ticket_id)
        if speed := seat.pool_stats.get(ticket.model):
            seat.pool_stats[ticket.model] = speed.with_ticket_placed(
                ticket.prompt_tokens / seat.worker_count(ticket.model)
            )

    def _schedulers_that_fit(self, ticket: QueuedTicket) -> Iterator[str]:
        for key, seat in self.items():
            credit = seat.credits.get(ticket.model)
            if credit and credit.tickets and credit_fit(key, credit.largest_fitting_tokens)(ticket) is Fit.NOW:
                yield key

    def is_refused_by_all(self, ticket: QueuedTicket) -> bool:
        """Whether all that could place the ticket's model have said that they can never run it."""
        serving = set(self.schedulers_serving(ticket.model))
        return bool(serving) and serving <= set(ticket.refused_by)

    def tokens_per_second(self, model: str) -> float:
        """Return what all together get done; 0: unknown."""
        return sum(seat.credits[model].tokens_per_second for seat in self.values() if model in seat.credits)

    def catalog(self) -> tuple[CatalogEntry, ...]:
        """Return one entry per model: the card that most workers of one scheduler serve; workers add up."""
        best: dict[str, CatalogEntry] = {}
        workers: Counter[str] = Counter()
        for seat in self.values():
            for entry in seat.catalog.values():
                workers[entry.model] += entry.workers_hint
                if entry.model not in best or entry.workers_hint > best[entry.model].workers_hint:
                    best[entry.model] = entry
        return tuple(_with_worker_count(best[model], workers[model]) for model in sorted(best))


def credit_fit(scheduler: str, max_tokens: int | None) -> FitFn:
    """Say what a credit of `scheduler` can do for a ticket."""

    def fit(ticket: QueuedTicket) -> Fit:
        if scheduler in ticket.refused_by:
            return Fit.NEVER
        return Fit.NOW if max_tokens is None or ticket.tokens <= max_tokens else Fit.LATER

    return fit


def express_credit_fit(scheduler: str, max_tokens: int) -> FitFn:
    """Say what credit for urgent tickets can do for one: nothing for the others, which are not to wait for it."""
    fit = credit_fit(scheduler, max_tokens or None)
    return lambda ticket: fit(ticket) if ticket.is_expedited else Fit.NEVER


def _with_worker_count(entry: CatalogEntry, workers: int) -> CatalogEntry:
    counted = CatalogEntry()
    counted.CopyFrom(entry)
    counted.workers_hint = workers
    return counted
