"""The schedulers of a shard: what each can place, and how many tickets each may be offered."""

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from penstock.chassis.own_time import OwnTime
from penstock.mesh.v1.ticket_pb2 import CatalogEntry
from penstock.queue.blames import Blames
from penstock.queue.effects import Offer
from penstock.queue.policies.order import Fit, FitOf
from penstock.queue.speed import Speed
from penstock.queue.waiting import WaitingTicket


@dataclass(slots=True)
class Credit:
    """Offers a scheduler may still be made for one model."""

    tickets: int = 0
    max_tokens: int = 0  # largest ticket it can place now; 0: no bound known
    tokens_per_second: float = 0.0  # measured by its workers; 0: unknown
    room: int | None = None  # tokens over all tickets that it is used for; None: no bound known
    urgent: int = 0  # tickets beyond those, which go first in their class

    def add(self, given: "Credit") -> None:
        """Tickets and room add up; the largest ticket is what it is by now."""
        self.tickets += given.tickets
        self.urgent += given.urgent
        self.max_tokens, self.tokens_per_second = given.max_tokens, given.tokens_per_second
        if given.room:
            self.room = (self.room or 0) + given.room

    def use(self, ticket: WaitingTicket) -> None:
        self.tickets -= 1
        if self.room is not None:
            self.room = max(0, self.room - ticket.tokens)

    def hand_back(self) -> int:
        """Keep what is for urgent tickets alone; return how many others it was good for."""
        tickets, self.tickets = self.tickets, 0
        self.room = None if self.room is None else 0
        return tickets

    def void(self) -> None:
        self.hand_back()
        self.urgent = 0

    @property
    def largest(self) -> int | None:
        """Tokens of the largest ticket that it can be used for; None: any."""
        if self.room is None:
            return self.max_tokens or None
        return min(self.max_tokens, self.room) if self.max_tokens else self.room


@dataclass(slots=True)
class Seat:
    """One scheduler."""

    catalog: dict[str, CatalogEntry] = field(default_factory=dict)
    credits: dict[str, Credit] = field(default_factory=dict)
    speeds: dict[str, Speed] = field(default_factory=dict)  # by model
    offered: set[str] = field(default_factory=set)  # ticket ids
    void: Counter[str] = field(default_factory=Counter)  # offers taken back that it has not answered yet

    def answered(self, ticket_id: str) -> bool:
        """Note the answer to an offer; False when the offer had been taken back by then.

        A scheduler answers each offer once and in order, so the first answers are to the oldest offers.
        """
        if not self.void[ticket_id]:
            del self.void[ticket_id]
            return ticket_id in self.offered
        self.void[ticket_id] -= 1
        return False

    def workers(self, model: str) -> int:
        """One at least, whatever was heard."""
        return max(1, self.catalog[model].workers_hint) if model in self.catalog else 1

    def take_back(self, ticket_id: str) -> None:
        self.offered.discard(ticket_id)
        self.void[ticket_id] += 1


class Seats(dict[str, Seat]):
    """All schedulers by stream."""

    def serving(self, model: str) -> Iterator[str]:
        return (key for key, seat in self.items() if model in seat.catalog)

    def __init__(self, own_time: OwnTime) -> None:
        super().__init__()
        self.blames = Blames(own_time)

    def join(self, scheduler: str, now: float) -> None:
        self[scheduler] = Seat()
        self.blames.joined(scheduler, now)

    def lose(self, scheduler: str, now: float) -> Seat:
        self.blames.lost(scheduler, now)
        return self.pop(scheduler)

    @property
    def credit(self) -> int:
        return sum(credit.tickets for seat in self.values() for credit in seat.credits.values())

    def speeds(self, model: str, since: float) -> list[Speed]:
        """Return what schedulers have said of a model's workers, but for what is older than `since`."""
        found = [seat.speeds.get(model) for seat in self.values()]
        return [speed for speed in found if speed and speed.at >= since]

    def credit_for(self, model: str) -> int:
        found = [seat.credits.get(model) for seat in self.values()]
        return sum([credit.tickets for credit in found if credit])

    def with_credit(self, model: str, others_than: Container[str]) -> tuple[str, Credit] | None:
        """Return the scheduler with most credit for `model`."""
        best: tuple[str, Credit] | None = None
        for key, seat in self.items():
            credit = seat.credits.get(model)
            if credit and credit.tickets > (best[1].tickets if best else 0) and key not in others_than:
                best = key, credit
        return best

    def with_urgent_credit(self, model: str, others_than: Container[str]) -> tuple[str, Credit] | None:
        """Return a scheduler with credit for what goes first alone."""
        for key, seat in self.items():
            credit = seat.credits.get(model)
            if credit and credit.urgent and key not in others_than:
                return key, credit
        return None

    def offer(self, ticket: WaitingTicket, scheduler: str) -> Offer:
        """Note that `ticket` goes to `scheduler`; one that came back goes to the others with credit for it first."""
        if scheduler in ticket.tried:
            fresh = [key for key in self._able(ticket) if key not in ticket.tried]
            scheduler, ticket.tried = (fresh[0], ticket.tried) if fresh else (scheduler, ())
        self[scheduler].credits[ticket.model].use(ticket)
        self._note_offered(ticket, scheduler)
        return Offer(scheduler, ticket)

    def offer_urgent(self, ticket: WaitingTicket, scheduler: str) -> Offer:
        self[scheduler].credits[ticket.model].urgent -= 1
        self._note_offered(ticket, scheduler)
        return Offer(scheduler, ticket, uses_urgent_credit=True)

    def _note_offered(self, ticket: WaitingTicket, scheduler: str) -> None:
        ticket.tried = (*ticket.tried, scheduler)
        ticket.scheduler = scheduler
        seat = self[scheduler]
        seat.offered.add(ticket.ticket_id)
        if speed := seat.speeds.get(ticket.model):
            seat.speeds[ticket.model] = speed.after(ticket.prompt_tokens / seat.workers(ticket.model))

    def _able(self, ticket: WaitingTicket) -> Iterator[str]:
        for key, seat in self.items():
            credit = seat.credits.get(ticket.model)
            if credit and credit.tickets and fit_of(key, credit.largest)(ticket) is Fit.NOW:
                yield key

    def refuse(self, ticket: WaitingTicket) -> bool:
        """Whether all that could place the ticket's model have said that they can never run it."""
        serving = set(self.serving(ticket.model))
        return bool(serving) and serving <= set(ticket.refused_by)

    def tokens_per_second(self, model: str) -> float:
        """Return what all together get done; 0: unknown."""
        return sum(seat.credits[model].tokens_per_second for seat in self.values() if model in seat.credits)

    def models(self) -> tuple[CatalogEntry, ...]:
        """Return one entry per model: the card that most workers of one scheduler serve; workers add up."""
        best: dict[str, CatalogEntry] = {}
        workers: Counter[str] = Counter()
        for seat in self.values():
            for entry in seat.catalog.values():
                workers[entry.model] += entry.workers_hint
                if entry.model not in best or entry.workers_hint > best[entry.model].workers_hint:
                    best[entry.model] = entry
        return tuple(_counted(best[model], workers[model]) for model in sorted(best))


def fit_of(scheduler: str, largest: int | None) -> FitOf:
    """Say what a credit of `scheduler` can do for a ticket."""

    def fit(ticket: WaitingTicket) -> Fit:
        if scheduler in ticket.refused_by:
            return Fit.NEVER
        return Fit.NOW if largest is None or ticket.tokens <= largest else Fit.LATER

    return fit


def urgent_fit_of(scheduler: str, largest: int) -> FitOf:
    """Say what credit for urgent tickets can do for one: nothing for the others, which are not to wait for it."""
    fit = fit_of(scheduler, largest or None)
    return lambda ticket: fit(ticket) if ticket.goes_first else Fit.NEVER


def _counted(entry: CatalogEntry, workers: int) -> CatalogEntry:
    counted = CatalogEntry()
    counted.CopyFrom(entry)
    counted.workers_hint = workers
    return counted
