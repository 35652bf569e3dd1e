"""The queue of each model: waiting tickets in the order of their policy, with forecast and totals."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from penstock.queue.autoscaling.demand import ModelDemand, ShardWork, TicketSize, WorkersNeeded
from penstock.queue.effects import Effect, Head, Offer
from penstock.queue.policies.policy import NO_TICKETS, ClassBacklog, QueuePosition, SchedulingPolicy, TicketTotals
from penstock.queue.prediction.contention import Contention
from penstock.queue.prediction.forecast import Forecast, Prediction
from penstock.queue.prediction.pool_stats import PoolStats
from penstock.queue.prediction.throughput import Throughput
from penstock.queue.prediction.ttft_model import RemoteBacklog, WorkAhead
from penstock.queue.schedulers import SchedulerSessions, credit_fit, express_credit_fit
from penstock.queue.ticket import QueuedTicket
from penstock.v1.inference_pb2 import PRIORITY_BATCH


@dataclass(slots=True)
class ModelQueue:
    """Waiting tickets of one model, with their totals, forecast and head."""

    model: str
    policy: SchedulingPolicy
    throughput: Throughput = field(default_factory=Throughput)
    forecast: Forecast = field(default_factory=Forecast)
    _contention: dict[int, Contention] = field(default_factory=dict)  # by class
    demand: ModelDemand = field(default_factory=ModelDemand)
    _tickets: int = 0  # waiting
    _prompt_tokens: int = 0  # of the waiting tickets, as the next two
    _work: int = 0
    _tokens: int = 0
    _batch_tickets: int = 0  # those of class batch among them, as the next two
    _batch_prompt_tokens: int = 0
    _batch_tokens: int = 0
    _last_sent_head: Head | None = None  # without an address; None: none was sent
    _is_head_dirty: bool = False  # send the head again, even if it is unchanged

    def adjust_totals(self, ticket: QueuedTicket, sign: int) -> None:
        self._tickets += sign
        self._prompt_tokens += sign * ticket.prompt_tokens
        self._work += sign * ticket.work
        self._tokens += sign * ticket.tokens
        if ticket.priority == PRIORITY_BATCH:
            self._batch_tickets += sign
            self._batch_prompt_tokens += sign * ticket.prompt_tokens
            self._batch_tokens += sign * ticket.tokens

    @property
    def has_expedited_head(self) -> bool:
        head = self.policy.head()
        return head is not None and head[0].is_expedited

    def workers_needed(self, running: TicketTotals, running_batch: int, held: int, now: float) -> WorkersNeeded:
        """Return the workers for the waiting and running tickets, and for `held` requests, which edges hold.

        `running`: tickets of other classes than batch.
        """
        work = ShardWork(
            *running,
            self._tickets - self._batch_tickets,
            self._tokens - self._batch_tokens,
            self._prompt_tokens - self._batch_prompt_tokens,
            held,
            batch=self._batch_tickets + running_batch,
        )
        ticket = TicketSize(self.forecast.prompt_sizes.mean_tokens, self.forecast.mean_output_tokens)
        return self.demand.workers_needed(work, ticket, now)

    def record_contention(self, priority: int, now: float) -> None:
        contention = self._contention.get(priority)
        if contention is None:
            contention = self._contention[priority] = Contention()
        contention.record(self.policy.class_backlog(priority).tenants, now)

    def _expected_backlog(self, priority: int) -> ClassBacklog:
        """Return the backlog of a class. Its rate includes tenants that do not wait now and are expected to return."""
        backlog, contention = self.policy.class_backlog(priority), self._contention.get(priority)
        if contention is None or not backlog.tenants:
            return backlog
        rate = (1 + contention.absent_share(backlog.tenants)) * backlog.tickets_per_virtual_token
        return backlog._replace(tickets_per_virtual_token=rate)

    def _absent_tickets(self, ticket: QueuedTicket, position: QueuePosition) -> float:
        """Return the tickets that go before a ticket, of tenants that do not wait now and are expected to return."""
        if position.virtual_tokens == inf or ticket.is_expedited:
            return 0.0
        backlog = self.policy.class_backlog(ticket.priority)
        share = self._contention[ticket.priority].absent_share(backlog.tenants)
        return share * backlog.tickets_per_virtual_token * position.virtual_tokens

    def work_ahead(
        self, ticket: QueuedTicket, position: QueuePosition, elsewhere: Mapping[int, RemoteBacklog]
    ) -> WorkAhead:
        """Return the work that is dispatched before a ticket at `position`, with that of other shards, by class.

        The prompt and reserved tokens of this shard are estimated by the share of all waiting work.
        """
        tickets, work = position.tickets + position.later_tickets, position.work + position.later_work
        if absent := self._absent_tickets(ticket, position):
            tickets, work = tickets + absent, work + absent * self._work / self.policy.totals.tickets
        share = work / self._work if self._work else 0.0
        ahead = WorkAhead(tickets, work, share * self._prompt_tokens, share * self._tokens)
        if not elsewhere:
            return ahead
        mean_output_tokens = ahead.mean_output_tokens or self.forecast.mean_output_tokens
        for priority, backlog in elsewhere.items():
            if priority < ticket.priority:
                ahead = ahead.plus(backlog, mean_output_tokens)
            elif priority == ticket.priority and not ticket.is_expedited:
                ahead = ahead.plus(backlog.ahead_of(position.virtual_tokens), mean_output_tokens)
        return ahead

    def mark_head_dirty(self) -> None:
        self._is_head_dirty = self._last_sent_head is not None and self._last_sent_head.waiting > 0

    def head_update(self) -> Head | None:
        """Return the head if it has to be sent, and record it as sent; None if it is unchanged."""
        best, totals = self.policy.head(), self.policy.totals
        head = Head("", self.model, totals.tickets, totals.tokens, None)
        if best:
            ticket, head.key = best
            head.tokens, head.is_resumed, head.is_express = ticket.tokens, ticket.is_resumed, ticket.is_express
            head.arrival_number = ticket.arrival_number
            head.waiting_prompt_tokens = self._prompt_tokens
            head.backlog = self._expected_backlog(ticket.priority)
        if not self._is_head_dirty and (head == self._last_sent_head or (self._last_sent_head is None and not best)):
            return None
        self._last_sent_head, self._is_head_dirty = head, False
        return head


DEFAULT_RETRY_AFTER_S = 1.0  # s; used until a rate is measured
RETRY_AFTER_BOUNDS_S = (0.05, 60.0)  # s
MAX_UNSERVED_QUEUES = 16  # queues of models without workers, whose tenants keep their fairness counters
MAX_QUEUES = 1_024  # queues, beyond which only models of a catalog get one
MAX_POOL_STATS_AGE_S = 5.0  # s; schedulers send statistics at least once a second, so that older ones are stale


class HoldFn(Protocol):
    """Keeps back a ticket that was taken from its policy, and returns whether it did."""

    @property
    def is_exhausted(self) -> bool:
        """Whether so many tickets were kept back that the dispatch has to end."""

    def __call__(self, ticket: QueuedTicket) -> bool: ...


class ModelQueues:
    """All model queues. Paused tickets count as waiting, but are not listed for offers."""

    def __init__(self, schedulers: SchedulerSessions, new_policy: Callable[[], SchedulingPolicy]) -> None:
        self.tickets_by_class: dict[int, int] = {}  # tickets waiting, by priority
        # By model, priority and tenant; only entries with waiting tickets.
        self.totals_by_tenant: dict[tuple[str, int, str], TicketTotals] = {}
        self._schedulers = schedulers
        self._new_policy = new_policy
        self._queues: dict[str, ModelQueue] = {}
        self._changed_models: set[str] = set()  # models whose head may have to be sent
        self._tickets = self._tokens = 0  # waiting

    def __getitem__(self, model: str) -> ModelQueue:
        if model not in self._queues:
            self._queues[model] = ModelQueue(model, self._new_policy())
        return self._queues[model]

    def __contains__(self, model: object) -> bool:
        return model in self._queues

    def __iter__(self) -> Iterator[ModelQueue]:
        return iter(self._queues.values())

    def has_room_for(self, model: str) -> bool:
        """Whether a model that no catalog names has a queue or may get one."""
        return model in self._queues or len(self._queues) < MAX_QUEUES

    @property
    def waiting(self) -> TicketTotals:
        return TicketTotals(self._tickets, self._tokens)

    def forget_unserved(self, served: Collection[str]) -> list[str]:
        """Remove and return the oldest queues without workers and tickets, beyond `MAX_UNSERVED_QUEUES` of them.

        Each rollout of a model leaves the queue of a version behind.
        """
        used = {*served, *(model for model, _, _ in self.totals_by_tenant)}
        unserved = [queue.model for queue in self if queue.model not in used]
        forgotten = unserved[:-MAX_UNSERVED_QUEUES]
        for model in forgotten:
            del self._queues[model]
            self._changed_models.discard(model)
        return forgotten

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
        """Remove a waiting ticket, listed or paused."""
        self[ticket.model].policy.remove(ticket)
        self._changed_models.add(ticket.model)
        self.adjust_totals(ticket, -1)

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        """Set the cost of a ticket that was taken from its policy; 0.0 refunds it."""
        self[ticket.model].policy.charge(ticket, cost)
        self._changed_models.add(ticket.model)

    def dispatch(self, model: str, now: float, hold_if_blocked: HoldFn) -> list[Effect]:
        """Offer tickets while credit fits them. `hold_if_blocked` keeps a ticket back; its caller lists it again."""
        queue = self[model]
        regular = self._offers(queue, hold_if_blocked, now, express=False)
        effects: list[Effect] = [*regular, *self._offers(queue, hold_if_blocked, now, express=True)]
        batch_tickets = queue.policy.class_backlog(PRIORITY_BATCH).tickets
        queue.forecast.record_unserved(queue.policy.totals.tickets, batch_tickets, now)
        return effects

    def _offers(self, queue: ModelQueue, hold_if_blocked: HoldFn, now: float, *, express: bool) -> Iterator[Offer]:
        """Yield offers for the present credit; with `express`, for credit that only expedited tickets may use.

        Expedited tickets wait while a ticket of a higher class is at the head.
        """
        schedulers, unfit = self._schedulers, set[str]()
        find, offer = (
            (schedulers.scheduler_with_express_credit, schedulers.offer_on_express_credit)
            if express
            else (schedulers.scheduler_with_credit, schedulers.offer)
        )
        while (
            (found := find(queue.model, unfit))
            and queue.policy.totals.tickets
            and (not express or queue.has_expedited_head)
            and not hold_if_blocked.is_exhausted
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
            pool_stats = schedulers.pool_stats(ticket.model, now - MAX_POOL_STATS_AGE_S)
            queue.forecast.record_offer(ticket, pool_stats, now)
            yield self._record_offered(ticket, offer(ticket, scheduler))
            unfit.clear()  # the offered ticket may be the one that blocked the credit of other schedulers

    def _record_offered(self, ticket: QueuedTicket, offer: Offer) -> Offer:
        self.adjust_totals(ticket, -1)
        self.mark_head_dirty(ticket.model)  # the scheduler waits for the head after each offer
        return offer

    # Heads.

    def mark_head_dirty(self, model: str) -> None:
        """Send the head of a model to its schedulers, even if it is unchanged."""
        self[model].mark_head_dirty()
        self._changed_models.add(model)

    def head_updates(self) -> Iterator[Head]:
        """Yield the heads that have changed since they were sent, for every scheduler of the model."""
        changed, self._changed_models = self._changed_models, set()
        for model in sorted(changed):
            if head := self[model].head_update():
                for scheduler in self._schedulers.schedulers_serving(model):
                    yield head.addressed_to(scheduler)

    def advance_virtual_time(self, model: str, priority: int, virtual_tokens: float) -> None:
        """Apply the virtual time of other shards for one class of a model."""
        self[model].policy.advance_virtual_time(priority, virtual_tokens)
        self._changed_models.add(model)

    # Predictions.

    def predict(self, ticket: QueuedTicket, now: float) -> Prediction:
        """Predict wait and TTFT of a ticket that arrives now. Without statistics, use the throughput of this shard."""
        queue, model = self[ticket.model], ticket.model
        position = queue.policy.position_of(ticket)
        queue.record_contention(ticket.priority, now)
        ahead = queue.work_ahead(ticket, position, self._schedulers.remote_backlogs(model))
        pool_stats = self._schedulers.pool_stats(model, now - MAX_POOL_STATS_AGE_S)
        found = queue.forecast.predict(ticket, ahead, pool_stats, self._schedulers.credit_for(model), now)
        if found.wait is None and (rate := self._service_rate(queue, now)):
            return found._replace(wait=position.work / rate)
        return found

    def slots(self, model: str, now: float) -> int:
        """Return the sequences that the workers of a model can run at once; 0 if no recent statistics tell it."""
        return sum([each.slots for each in self._schedulers.pool_stats(model, now - MAX_POOL_STATS_AGE_S)])

    def record_pool_stats(self, scheduler: str, model: str, stats: PoolStats) -> None:
        self._schedulers[scheduler].pool_stats[model] = stats
        queue, recent = self[model], self._schedulers.pool_stats(model, stats.received_at - MAX_POOL_STATS_AGE_S)
        queue.forecast.record_pool_stats(scheduler, stats, recent)
        queue.demand.record_pool_stats(recent)

    def record_lease(self, ticket: QueuedTicket, scheduler: str, worker: str, now: float) -> None:
        queue = self[ticket.model]
        queue.throughput.record(ticket.work, now)
        queue.forecast.record_lease(ticket, scheduler, worker, now)
        ticket.waited = max(0.0, now - ticket.arrived)
        if ticket.raw_wait or ticket.raw_ttft:
            # The waits of batch tickets depend on the headroom that schedulers keep, which predictions do not know.
            raw = 0.0 if ticket.is_batch else ticket.raw_wait
            queue.forecast.record_wait(ticket.predicted_wait, raw, ticket.waited)

    def record_first_token(self, ticket: QueuedTicket, after_lease: float) -> None:
        self[ticket.model].forecast.record_first_token(ticket, ticket.waited + after_lease)

    def retry_after(self, ticket: QueuedTicket, now: float) -> float:
        """Return the predicted wait of a ticket within RETRY_AFTER_BOUNDS_S."""
        wait = self.predict(ticket, now).wait
        return DEFAULT_RETRY_AFTER_S if wait is None else clamp_retry_after(wait)

    def _service_rate(self, queue: ModelQueue, now: float) -> float:
        """Return tokens per second; 0.0 if no rate is known."""
        return self._schedulers.tokens_per_second(queue.model) or queue.throughput.tokens_per_second(now)

    # Eviction.

    def evictable(self, priority: int) -> TicketTotals:
        """Return the totals of the tickets that a ticket of this class can evict."""
        totals = [queue.policy.evictable(priority) for queue in self._queues.values()]
        return TicketTotals(sum(each.tickets for each in totals), sum(each.tokens for each in totals))

    def next_victim(self, priority: int) -> QueuedTicket:
        """Return the newest ticket of the lowest class over all models. There must be one."""
        victims = [found for queue in self._queues.values() if (found := queue.policy.next_victim(priority))]
        return max(victims, key=lambda pair: pair[1])[0]


def clamp_retry_after(seconds: float) -> float:
    return min(max(seconds, RETRY_AFTER_BOUNDS_S[0]), RETRY_AFTER_BOUNDS_S[1])
