"""What waits in one shard, by model, and how it meets the credit of schedulers."""

from collections.abc import Callable, Iterator

from penstock.queue.effects import Effect, Head, Offer
from penstock.queue.forecast import Prediction
from penstock.queue.policies.order import NOTHING, Load, Order
from penstock.queue.seats import Seats, fit_of, urgent_fit_of
from penstock.queue.shelf import Shelf
from penstock.queue.speed import Speed
from penstock.queue.waiting import WaitingTicket

UNKNOWN_RATE_RETRY = 1.0  # s; what a refused client is told before anything was measured
RETRY_BOUNDS = (0.05, 60.0)  # s
STALE = 5.0  # s; a scheduler sends ten reports a second while anything changes, and what is older says nothing


class Shelves:
    """Counts what waits, and lists it for offers; a ticket that pauses counts and is not listed."""

    def __init__(self, seats: Seats, new_order: Callable[[], Order]) -> None:
        self.by_class: dict[int, int] = {}  # tickets waiting, by priority
        self.by_tenant: dict[tuple[str, int, str], Load] = {}  # by model, priority and tenant, where any wait
        self._seats = seats
        self._new_order = new_order
        self._shelves: dict[str, Shelf] = {}
        self._changed: set[str] = set()  # models whose head may have to be told
        self._tickets = self._tokens = 0  # waiting

    def __getitem__(self, model: str) -> Shelf:
        if model not in self._shelves:
            self._shelves[model] = Shelf(model, self._new_order())
        return self._shelves[model]

    def __iter__(self) -> Iterator[Shelf]:
        return iter(self._shelves.values())

    @property
    def waiting(self) -> Load:
        return Load(self._tickets, self._tokens)

    def count(self, ticket: WaitingTicket, sign: int) -> None:
        change = sign * ticket.tokens
        self._tickets += sign
        self._tokens += change
        self[ticket.model].count(ticket, sign)
        self.by_class[ticket.priority] = self.by_class.get(ticket.priority, 0) + sign
        whose = ticket.model, ticket.priority, ticket.tenant_id
        tickets, tokens = self.by_tenant.get(whose, NOTHING)
        if tickets + sign:
            self.by_tenant[whose] = Load(tickets + sign, tokens + change)
        else:
            self.by_tenant.pop(whose, None)

    def show(self, ticket: WaitingTicket) -> None:
        self[ticket.model].order.push(ticket)
        self._changed.add(ticket.model)

    def remove(self, ticket: WaitingTicket) -> None:
        """Take out what waits, listed or not."""
        self[ticket.model].order.remove(ticket)
        self._changed.add(ticket.model)
        self.count(ticket, -1)

    def charge(self, ticket: WaitingTicket, cost: float) -> None:
        """Put right what a ticket that left its order has cost."""
        self[ticket.model].order.charge(ticket, cost)
        self._changed.add(ticket.model)

    def match(self, model: str, now: float, is_held: Callable[[WaitingTicket], bool]) -> list[Effect]:
        """Offer tickets for as long as credit is found that fits one; what `is_held` then is its caller's to list."""
        shelf = self[model]
        regular = self._offers(shelf, is_held, urgent=False)
        effects: list[Effect] = [*regular, *self._offers(shelf, is_held, urgent=True)]
        shelf.forecast.note_waiting(shelf.order.load.tickets, now)
        return effects

    def _offers(self, shelf: Shelf, is_held: Callable[[WaitingTicket], bool], *, urgent: bool) -> Iterator[Offer]:
        """Use up credit; `urgent`: what is for tickets that go first alone. They wait for a class above their own."""
        seats, unfit = self._seats, set[str]()
        find, offer = (seats.with_urgent_credit, seats.offer_urgent) if urgent else (seats.with_credit, seats.offer)
        while (found := find(shelf.model, unfit)) and shelf.order.load.tickets and (not urgent or shelf.is_urgent):
            scheduler, credit = found
            fit = urgent_fit_of(scheduler, credit.max_tokens) if urgent else fit_of(scheduler, credit.largest)
            ticket = shelf.order.take(fit)
            if ticket is None:
                unfit.add(scheduler)
                continue
            if is_held(ticket):
                continue
            yield self._left(ticket, offer(ticket, scheduler))
            unfit.clear()  # it may be this very ticket, too large for the others, that was not to be passed by

    def _left(self, ticket: WaitingTicket, offer: Offer) -> Offer:
        self.count(ticket, -1)
        self.tell_again(ticket.model)  # the scheduler counts on it to know what is next
        return offer

    # Heads.

    def tell_again(self, model: str) -> None:
        """Have the schedulers of a model told what waits, even where nothing has changed."""
        self[model].tell_again()
        self._changed.add(model)

    def heads(self) -> Iterator[Head]:
        """Yield what schedulers have not heard yet of the models' heads."""
        changed, self._changed = self._changed, set()
        for model in sorted(changed):
            if head := self[model].news():
                for scheduler in self._seats.serving(model):
                    yield head.to(scheduler)

    def keep_up(self, model: str, priority: int, virtual_tokens: float) -> None:
        """Hear how far other shards have come with one class of a model."""
        self[model].order.keep_up(priority, virtual_tokens)
        self._changed.add(model)

    # Predictions.

    def predict(self, ticket: WaitingTicket, now: float) -> Prediction:
        """Say what a ticket that comes now may expect; where no scheduler has measured, from what leaves here."""
        shelf = self[ticket.model]
        ahead, speeds = shelf.order.ahead(ticket), self._seats.speeds(ticket.model, now - STALE)
        credit = self._seats.credit_for(ticket.model)
        found = shelf.forecast.predict(ticket, shelf.line(ahead), speeds, credit, now)
        if found.wait is None and (rate := self._rate(shelf, now)):
            return found._replace(wait=ahead.work / rate)
        return found

    def note_speed(self, scheduler: str, model: str, speed: Speed) -> None:
        self._seats[scheduler].speeds[model] = speed
        self[model].forecast.note_speed(self._seats.speeds(model, speed.at - STALE), speed.at)

    def note_placed(self, ticket: WaitingTicket, now: float) -> None:
        shelf = self[ticket.model]
        shelf.pace.note(ticket.work, now)
        shelf.forecast.note_placed(ticket, now)
        ticket.waited = max(0.0, now - ticket.arrived)
        if ticket.raw_wait or ticket.raw_first:
            shelf.forecast.note_wait(ticket.predicted_wait, ticket.raw_wait, ticket.waited)

    def note_first_token(self, ticket: WaitingTicket, after_lease: float) -> None:
        self[ticket.model].forecast.note_first_token(ticket, ticket.waited + after_lease)

    def retry_after(self, ticket: WaitingTicket, now: float) -> float:
        """Return the time in which all that goes before such a ticket is served."""
        wait = self.predict(ticket, now).wait
        return UNKNOWN_RATE_RETRY if wait is None else retry_within_bounds(wait)

    def _rate(self, shelf: Shelf, now: float) -> float:
        """Tokens per second; 0: unknown."""
        return self._seats.tokens_per_second(shelf.model) or shelf.pace.tokens_per_second(now)

    # Eviction.

    def evictable(self, priority: int) -> Load:
        """Return what could make way for a ticket of this class."""
        loads = [shelf.order.evictable(priority) for shelf in self._shelves.values()]
        return Load(sum(load.tickets for load in loads), sum(load.tokens for load in loads))

    def next_evicted(self, priority: int) -> WaitingTicket:
        """Return, of all models' lowest class, the newest; there must be one."""
        found = [found for shelf in self._shelves.values() if (found := shelf.order.next_evicted(priority))]
        return max(found, key=lambda pair: pair[1])[0]


def retry_within_bounds(seconds: float) -> float:
    return min(max(seconds, RETRY_BOUNDS[0]), RETRY_BOUNDS[1])
