"""Where the tickets of a shard stand, and every step from one place to another. Decides nothing of who is let in."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice

from penstock.chassis.errors import PenstockError
from penstock.queue.admission import Admission
from penstock.queue.effects import Effect, Left, Recalled, Shed
from penstock.queue.errors import Guilty, NoWorker, Suspect
from penstock.queue.placed import Placed
from penstock.queue.presence import Presence
from penstock.queue.seats import Seats
from penstock.queue.shelves import Shelves
from penstock.queue.tally import Tally
from penstock.queue.timers import Timers
from penstock.queue.waiting import WaitingTicket

DROPS = 1_000  # tickets per tick and reason; a whole edge's sheds at once would overflow its stream


class Moves:
    """All tickets of one shard: listed, in a pause, offered, or placed a moment ago."""

    def __init__(
        self, seats: Seats, shelves: Shelves, placed: Placed, presence: Presence, admission: Admission
    ) -> None:
        self.tickets: dict[str, WaitingTicket] = {}  # but for those placed
        self.timers = Timers(self._is_here)
        self.tally = Tally()
        self.refused: dict[str, WaitingTicket] = {}  # tickets that some scheduler can never run
        self._seats = seats
        self._shelves = shelves
        self._placed = placed
        self._presence = presence
        self._admission = admission
        self._given_up: list[str] = []  # models
        self._unmatched: set[str] = set()  # models whose tickets were not offered: too many are to be dropped first

    def match(self, model: str, now: float) -> list[Effect]:
        """Offer what waits, but nothing that is past its due time."""
        effects = self.drop_overdue(now)
        if self.timers.has_overdue(now):
            self._unmatched.add(model)
            return effects
        return [*effects, *self._shelves.match(model, now, partial(self._hold, now=now))]

    def drop_overdue(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for ticket in islice(self.timers.overdue(now), DROPS):
            effects += self.drop(ticket, self._admission.expiry(ticket, now))
        return effects

    def tick(self, now: float) -> list[Effect]:
        """End pauses, offer what was not offered yet, and drop what nobody will place any more."""
        effects = self.drop_overdue(now)
        for ticket in self.timers.paused(now):
            self.show(ticket, now)
            self._unmatched.add(ticket.model)
        unmatched, self._unmatched = sorted(self._unmatched), set()
        for model in unmatched:
            effects += self.match(model, now)
        self._given_up += self._presence.given_up(now)
        for ticket in islice(self._abandoned(), DROPS):
            effects += self.drop(ticket, NoWorker.at_present(ticket.model, self._presence.patience))
        self._placed.expire(now)
        return effects

    def show(self, ticket: WaitingTicket, now: float) -> None:
        self._presence.await_again(ticket.model, now)
        self._shelves.show(ticket)

    def give_back(self, ticket: WaitingTicket, now: float) -> None:
        """Put an offered ticket back into its place, or aside for a moment when it comes back again and again."""
        if seat := self._seats.get(ticket.scheduler):
            seat.offered.discard(ticket.ticket_id)
        ticket.scheduler = ""
        self._shelves.count(ticket, 1)
        if ticket.declines > len(self._seats):
            self._set_aside(ticket, now)
        else:
            self.show(ticket, now)

    def _hold(self, ticket: WaitingTicket, now: float) -> bool:
        """Set aside for a moment, again and again, what may crash the engine of whoever gets it."""
        is_barred = self._seats.blames.bar(ticket, now)
        if is_barred:
            self._set_aside(ticket, now)
        return is_barred

    def _set_aside(self, ticket: WaitingTicket, now: float) -> None:
        self._shelves.charge(ticket, 0.0)
        self.timers.pause(ticket, now)

    def recall(self, ticket_ids: Iterable[str], reason: str) -> list[Effect]:
        """Take tickets out and tell the schedulers that know of them."""
        effects: list[Effect] = []
        told: dict[str, list[str]] = {}
        for ticket_id in ticket_ids:
            if ticket := self.tickets.get(ticket_id):
                scheduler = ticket.scheduler
                effects.append(self._take_out(ticket, reason))
            else:
                scheduler = self._placed.pop(ticket_id)
            if scheduler in self._seats:
                told.setdefault(scheduler, []).append(ticket_id)
        return [*effects, *(Recalled(scheduler, tuple(ids)) for scheduler, ids in told.items())]

    def drop(self, ticket: WaitingTicket, error: PenstockError) -> list[Effect]:
        self.tally.note_shed(ticket.priority, error)
        gone = self.recall([ticket.ticket_id], error.reason)
        return [*gone, Shed(ticket.edge, ticket.ticket_id, error)]

    def _take_out(self, ticket: WaitingTicket, reason: str) -> Left:
        """Remove a ticket from wherever it is."""
        if ticket.scheduler:
            self._seats[ticket.scheduler].take_back(ticket.ticket_id)
            self._shelves.charge(ticket, 0.0)
        else:
            self._shelves.remove(ticket)
        return self.forget(ticket, reason)

    def forget(self, ticket: WaitingTicket, reason: str) -> Left:
        if seat := self._seats.get(ticket.scheduler):
            seat.offered.discard(ticket.ticket_id)
        self.refused.pop(ticket.ticket_id, None)
        del self.tickets[ticket.ticket_id]
        return Left(ticket, reason)

    def ask_again(self, scheduler: str, now: float) -> list[Effect]:
        """Forget what a scheduler could never run: it may have other workers now."""
        refused = [ticket for ticket in self.refused.values() if scheduler in ticket.refused_by]
        for ticket in refused:
            ticket.refused_by = tuple(each for each in ticket.refused_by if each != scheduler)
        models = sorted({ticket.model for ticket in refused})
        return [effect for model in models for effect in self.match(model, now)]

    def drop_refused(self, among: Iterable[WaitingTicket]) -> list[Effect]:
        """Drop those that no scheduler can ever run."""
        found = [ticket for ticket in among if self._seats.refuse(ticket)]
        return [effect for ticket in found for effect in self.drop(ticket, self._never(ticket))]

    def part_from(self, blamed: Mapping[int, bool]) -> list[Effect]:
        """Drop what would crash every engine, be it on its way to a scheduler, and have no lease of it started: by the
        scheduler that gave it, which tells the worker, or where that is gone by the edge that has it.

        `blamed`: those of whom there is news, and whether they are guilty.
        """
        if not blamed:
            return []
        guilty = [each for each in self.tickets.values() if blamed.get(each.fingerprint)]
        dropped = [effect for ticket in guilty for effect in self.drop(ticket, Guilty())]
        placed = self._placed.like(blamed)
        known = [key for key, each in placed.items() if each.scheduler in self._seats]
        others = [
            Shed(each.edge, key, Guilty() if blamed[each.fingerprint] else Suspect())
            for key, each in placed.items()
            if each.scheduler not in self._seats
        ]
        return [*dropped, *self.recall(known, "SUSPECT"), *others]

    def _abandoned(self) -> Iterator[WaitingTicket]:
        """Yield those whose model nobody came back for in time; the caller drops each before it asks for the next."""
        while self._given_up:
            model = self._given_up[0]
            while model not in self._presence.served and (found := self._shelves[model].order.head()):
                yield found[0]
            self._given_up.pop(0)

    def _never(self, ticket: WaitingTicket) -> PenstockError:
        if ticket.avoid_workers:
            return NoWorker.left(ticket.model, len(ticket.avoid_workers), self._presence.patience)
        return NoWorker.large_enough(ticket.model, ticket.tokens)

    def _is_here(self, ticket: WaitingTicket) -> bool:
        return self.tickets.get(ticket.ticket_id) is ticket
