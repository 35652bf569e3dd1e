"""All that a shard keeps about one model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from penstock.queue.effects import Effect, Head, Offer
from penstock.queue.policies.policy import NO_TICKETS, QueuePosition, SchedulingPolicy, TicketTotals
from penstock.queue.prediction.forecast import Forecast, Prediction
from penstock.queue.prediction.pool_stats import PoolStats
from penstock.queue.prediction.throughput import Throughput
from penstock.queue.prediction.ttft_model import WorkAhead
from penstock.queue.schedulers import SchedulerSessions, credit_fit, express_credit_fit
from penstock.queue.ticket import QueuedTicket


@dataclass(slots=True)
class ModelQueue:
    model: str
    policy: SchedulingPolicy
    throughput: Throughput = field(default_factory=Throughput)
    forecast: Forecast = field(default_factory=Forecast)
    _prompt_tokens: int = 0  # tokens of what waits, like the next
    _work: int = 0
    _tokens: int = 0
    _last_sent_head: Head | None = (
        None  # as schedulers know it, addressed to none of them; None: they know of no ticket
    )
    _is_head_dirty: bool = False  # whether they are to be told even where nothing has changed

    def adjust_totals(self, ticket: QueuedTicket, sign: int) -> None:
        self._prompt_tokens += sign * ticket.prompt_tokens
        self._work += sign * ticket.work
        self._tokens += sign * ticket.tokens

    @property
    def has_expedited_head(self) -> bool:
        head = self.policy.head()
        return head is not None and head[0].is_expedited

    def work_ahead(self, position: QueuePosition) -> WorkAhead:
        """Say what of the work ahead is prompts, and what it is promised, as it is over all that waits."""
        share = position.work / self._work if self._work else 0.0
        return WorkAhead(position.tickets, position.work, share * self._prompt_tokens, share * self._tokens)

    def mark_head_dirty(self) -> None:
        self._is_head_dirty = self._last_sent_head is not None and self._last_sent_head.waiting > 0

    def head_update(self) -> Head | None:
        """Return the head where schedulers are to hear of it; they are then taken to know it."""
        found, load = self.policy.head(), self.policy.totals
        if found:
            ticket, key = found
            of_it = ticket.tokens, ticket.is_resumed, ticket.is_express
            head = Head("", self.model, load.tickets, load.tokens, key, *of_it)
        else:
            head = Head("", self.model, load.tickets, load.tokens, None)
        if not self._is_head_dirty and (head == self._last_sent_head or (self._last_sent_head is None and not found)):
            return None
        self._last_sent_head, self._is_head_dirty = head, False
        return head


DEFAULT_RETRY_AFTER_S = 1.0  # s; what a refused client is told before anything was measured
RETRY_AFTER_BOUNDS_S = (0.05, 60.0)  # s
MAX_POOL_STATS_AGE_S = (
    5.0  # s; a scheduler sends ten reports a second while anything changes, and what is older says nothing
)


class ModelQueues:
    """Counts what waits, and lists it for offers; a ticket that pauses counts and is not listed."""

    def __init__(self, schedulers: SchedulerSessions, new_policy: Callable[[], SchedulingPolicy]) -> None:
        self.tickets_by_class: dict[int, int] = {}  # tickets waiting, by priority
        self.totals_by_tenant: dict[
            tuple[str, int, str], TicketTotals
        ] = {}  # by model, priority and tenant, where any wait
        self._schedulers = schedulers
        self._new_policy = new_policy
        self._queues: dict[str, ModelQueue] = {}
        self._changed_models: set[str] = set()  # models whose head may have to be told
        self._tickets = self._tokens = 0  # waiting

    def __getitem__(self, model: str) -> ModelQueue:
        if model not in self._queues:
            self._queues[model] = ModelQueue(model, self._new_policy())
        return self._queues[model]

    def __iter__(self) -> Iterator[ModelQueue]:
        return iter(self._queues.values())

    @property
    def waiting(self) -> TicketTotals:
        return TicketTotals(self._tickets, self._tokens)

    def adjust_totals(self, ticket: QueuedTicket, sign: int) -> None:
        change = sign * ticket.tokens
        self._tickets += sign
        self._tokens += change
        self[ticket.model].adjust_totals(ticket, sign)
        self.tickets_by_class[ticket.priority] = self.tickets_by_class.get(ticket.priority, 0) + sign
        whose = ticket.model, ticket.priority, ticket.tenant_id
        tickets, tokens = self.totals_by_tenant.get(whose, NO_TICKETS)
        if tickets + sign:
            self.totals_by_tenant[whose] = TicketTotals(tickets + sign, tokens + change)
        else:
            self.totals_by_tenant.pop(whose, None)

    def enlist(self, ticket: QueuedTicket) -> None:
        self[ticket.model].policy.push(ticket)
        self._changed_models.add(ticket.model)

    def remove(self, ticket: QueuedTicket) -> None:
        """Take out what waits, listed or not."""
        self[ticket.model].policy.remove(ticket)
        self._changed_models.add(ticket.model)
        self.adjust_totals(ticket, -1)

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        """Put right what a ticket that left its order has cost."""
        self[ticket.model].policy.charge(ticket, cost)
        self._changed_models.add(ticket.model)

    def dispatch(self, model: str, now: float, hold_if_blocked: Callable[[QueuedTicket], bool]) -> list[Effect]:
        """Offer tickets for as long as credit is found that fits one; what `is_held` then is its caller's to list."""
        shelf = self[model]
        regular = self._offers(shelf, hold_if_blocked, now, express=False)
        effects: list[Effect] = [*regular, *self._offers(shelf, hold_if_blocked, now, express=True)]
        shelf.forecast.record_unserved(shelf.policy.totals.tickets, now)
        return effects

    def _offers(
        self, queue: ModelQueue, hold_if_blocked: Callable[[QueuedTicket], bool], now: float, *, express: bool
    ) -> Iterator[Offer]:
        """Use up credit; `urgent`: what is for tickets that go first alone. They wait for a class above their own."""
        seats, unfit = self._schedulers, set[str]()
        find, offer = (
            (seats.scheduler_with_express_credit, seats.offer_on_express_credit)
            if express
            else (seats.scheduler_with_credit, seats.offer)
        )
        while (
            (found := find(queue.model, unfit))
            and queue.policy.totals.tickets
            and (not express or queue.has_expedited_head)
        ):
            scheduler, credit = found
            fit = (
                express_credit_fit(scheduler, credit.max_ticket_tokens)
                if express
                else credit_fit(scheduler, credit.largest_fitting_tokens)
            )
            ticket = queue.policy.pop_fitting(fit)
            if ticket is None:
                unfit.add(scheduler)
                continue
            if hold_if_blocked(ticket):
                continue
            queue.forecast.record_offer(ticket, seats.pool_stats(ticket.model, now - MAX_POOL_STATS_AGE_S), now)
            yield self._record_offered(ticket, offer(ticket, scheduler))
            unfit.clear()  # it may be this very ticket, too large for the others, that was not to be passed by

    def _record_offered(self, ticket: QueuedTicket, offer: Offer) -> Offer:
        self.adjust_totals(ticket, -1)
        self.mark_head_dirty(ticket.model)  # the scheduler counts on it to know what is next
        return offer

    # Heads.

    def mark_head_dirty(self, model: str) -> None:
        """Have the schedulers of a model told what waits, even where nothing has changed."""
        self[model].mark_head_dirty()
        self._changed_models.add(model)

    def head_updates(self) -> Iterator[Head]:
        """Yield what schedulers have not heard yet of the models' heads."""
        changed, self._changed_models = self._changed_models, set()
        for model in sorted(changed):
            if head := self[model].head_update():
                for scheduler in self._schedulers.schedulers_serving(model):
                    yield head.addressed_to(scheduler)

    def advance_virtual_time(self, model: str, priority: int, virtual_tokens: float) -> None:
        """Hear how far other shards have come with one class of a model."""
        self[model].policy.advance_virtual_time(priority, virtual_tokens)
        self._changed_models.add(model)

    # Predictions.

    def predict(self, ticket: QueuedTicket, now: float) -> Prediction:
        """Say what a ticket that comes now may expect; where no scheduler has measured, from what leaves here."""
        shelf = self[ticket.model]
        ahead, speeds = (
            shelf.policy.position_of(ticket),
            self._schedulers.pool_stats(ticket.model, now - MAX_POOL_STATS_AGE_S),
        )
        credit = self._schedulers.credit_for(ticket.model)
        found = shelf.forecast.predict(ticket, shelf.work_ahead(ahead), speeds, credit, now)
        if found.wait is None and (rate := self._service_rate(shelf, now)):
            return found._replace(wait=ahead.work / rate)
        return found

    def record_pool_stats(self, scheduler: str, model: str, stats: PoolStats) -> None:
        self._schedulers[scheduler].pool_stats[model] = stats
        self[model].forecast.record_pool_stats(
            scheduler, stats, self._schedulers.pool_stats(model, stats.received_at - MAX_POOL_STATS_AGE_S)
        )

    def record_lease(self, ticket: QueuedTicket, scheduler: str, worker: str, now: float) -> None:
        shelf = self[ticket.model]
        shelf.throughput.record(ticket.work, now)
        shelf.forecast.record_lease(ticket, scheduler, worker, now)
        ticket.waited = max(0.0, now - ticket.arrived)
        if ticket.raw_wait or ticket.raw_ttft:
            shelf.forecast.record_wait(ticket.predicted_wait, ticket.raw_wait, ticket.waited)

    def record_first_token(self, ticket: QueuedTicket, after_lease: float) -> None:
        self[ticket.model].forecast.record_first_token(ticket, ticket.waited + after_lease)

    def retry_after(self, ticket: QueuedTicket, now: float) -> float:
        """Return the time in which all that goes before such a ticket is served."""
        wait = self.predict(ticket, now).wait
        return DEFAULT_RETRY_AFTER_S if wait is None else clamp_retry_after(wait)

    def _service_rate(self, queue: ModelQueue, now: float) -> float:
        """Tokens per second; 0: unknown."""
        return self._schedulers.tokens_per_second(queue.model) or queue.throughput.tokens_per_second(now)

    # Eviction.

    def evictable(self, priority: int) -> TicketTotals:
        """Return what could make way for a ticket of this class."""
        loads = [shelf.policy.evictable(priority) for shelf in self._queues.values()]
        return TicketTotals(sum(load.tickets for load in loads), sum(load.tokens for load in loads))

    def next_victim(self, priority: int) -> QueuedTicket:
        """Return, of all models' lowest class, the newest; there must be one."""
        found = [found for shelf in self._queues.values() if (found := shelf.policy.next_victim(priority))]
        return max(found, key=lambda pair: pair[1])[0]


def clamp_retry_after(seconds: float) -> float:
    return min(max(seconds, RETRY_AFTER_BOUNDS_S[0]), RETRY_AFTER_BOUNDS_S[1])
