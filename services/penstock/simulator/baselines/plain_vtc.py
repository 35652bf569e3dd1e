"""The virtual token counter as published: the tenant with the least service goes first.

Source: Sheng et al. 2024, Fairness in Serving Large Language Models (OSDI), algorithm 2: input is charged when a
request is dispatched, output token by token as it comes, and a tenant that returns is lifted to the least counter of
those that wait. Knows no classes.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from penstock.queue.policies.policy import FitFn, QueuePosition, SortKey, TicketTotals
from penstock.queue.policies.ranked_queue import RankedQueue
from penstock.queue.ticket import QueuedTicket
from penstock.simulator.baselines.base import SingleShardPolicy
from penstock.simulator.mesh.engine import NO_STEP, SimRun


class PlainVtc(SingleShardPolicy):
    def __init__(
        self, input_weight: float, output_weight: float, clock: Callable[[], float], report_interval: float
    ) -> None:
        """`report_interval`: s from one time that it hears of tokens to the next; 0: it hears of each as it comes."""
        self._clock = clock
        self._report_interval = report_interval
        self._last_report_at = 0.0
        self._unreported_tokens = Counter[str]()  # tokens by tenant
        self._input_weight = input_weight
        self._output_weight = output_weight
        self._queues: dict[str, RankedQueue] = {}  # by tenant
        self._counters: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._totals = TicketTotals(0, 0)
        self._last_emptied = ""  # the tenant whose last ticket went most recently
        self._input_charged: set[int] = set()  # arrivals of tickets that went; one may be given back

    @property
    def totals(self) -> TicketTotals:
        return self._totals

    def pop_dropped(self) -> list[QueuedTicket]:
        return []

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        """Predictions are nothing to it: it charges what comes, token by token."""

    def on_step(self, runs: Iterable[SimRun], step: int) -> None:
        for run in runs:
            if (
                run.first_token_step != NO_STEP
                and run.last_token_step in (NO_STEP, step)
                and run.tenant in self._counters
            ):
                self._unreported_tokens[run.tenant] += 1
        now = self._clock()
        if now >= self._last_report_at + self._report_interval:
            self._last_report_at = now
            for tenant, tokens in self._unreported_tokens.items():
                self._counters[tenant] += tokens * self._output_weight / self._weights[tenant]
            self._unreported_tokens.clear()

    def push(self, ticket: QueuedTicket) -> None:
        tenant = ticket.tenant_id
        lane = self._queues.setdefault(tenant, RankedQueue())
        self._weights[tenant] = ticket.weight
        if ticket.arrival_number in self._input_charged:
            self._input_charged.discard(ticket.arrival_number)
            self._counters[tenant] -= self._input_cost(ticket)
        elif not lane.tickets:
            self._lift(tenant)
        lane.push(ticket)
        self._adjust_totals(ticket, 1)

    def remove(self, ticket: QueuedTicket) -> None:
        if ticket.is_listed:
            self._queues[ticket.tenant_id].remove(ticket)
            self._on_removed(ticket)

    def pop_fitting(self, fit: FitFn) -> QueuedTicket | None:
        for tenant in self._tenants_by_counter():
            taken = self._queues[tenant].pop_fitting(fit)
            if ticket := taken.ticket:
                taken.record_passes()
                self._counters[tenant] += self._input_cost(ticket)
                self._input_charged.add(ticket.arrival_number)
                self._on_removed(ticket)
            if taken.ticket or taken.is_blocked:
                return taken.ticket
        return None

    def head(self) -> tuple[QueuedTicket, SortKey] | None:
        for tenant in self._tenants_by_counter():
            if ticket := self._queues[tenant].first():
                return ticket, SortKey(ticket.priority, self._counters[tenant], ticket.enqueued)
        return None

    def position_of(self, ticket: QueuedTicket) -> QueuePosition:
        """Count each tenant with as much as the ticket's own has, at most: they take turns."""
        own = self._queues.get(ticket.tenant_id) or RankedQueue()
        lanes = self._queues.values()
        return QueuePosition(
            sum(min(each.tickets, own.tickets) for each in lanes), sum(min(each.work, own.work) for each in lanes)
        )

    def evictable(self, priority: int) -> TicketTotals:
        return TicketTotals(0, 0)

    def next_victim(self, priority: int) -> tuple[QueuedTicket, SortKey] | None:
        return None

    def _lift(self, tenant: str) -> None:
        waiting = [self._counters[each] for each, lane in self._queues.items() if lane.tickets]
        least = min(waiting) if waiting else self._counters.get(self._last_emptied, 0.0)
        self._counters[tenant] = max(self._counters.get(tenant, 0.0), least)

    def _tenants_by_counter(self) -> list[str]:
        return sorted(
            (tenant for tenant, lane in self._queues.items() if lane.tickets),
            key=lambda tenant: (self._counters[tenant], tenant),
        )

    def _input_cost(self, ticket: QueuedTicket) -> float:
        return ticket.prompt_tokens * self._input_weight / ticket.weight

    def _adjust_totals(self, ticket: QueuedTicket, sign: int) -> None:
        self._totals = TicketTotals(self._totals.tickets + sign, self._totals.tokens + sign * ticket.tokens)

    def _on_removed(self, ticket: QueuedTicket) -> None:
        self._adjust_totals(ticket, -1)
        if not self._queues[ticket.tenant_id].tickets:
            self._last_emptied = ticket.tenant_id
