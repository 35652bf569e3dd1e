"""Virtual token counter (VTC) as published: the tenant with the least service is served first.

Source: Sheng et al. 2024, Fairness in Serving Large Language Models (OSDI), algorithm 2: input is charged when a
request is dispatched, output token by token as it is generated, and the counter of a returning tenant is lifted to the
least counter of the waiting tenants. Priority classes are ignored.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from penstock.queue.policies.policy import FitFn, QueuePosition, SortKey, TicketTotals
from penstock.queue.policies.ranked_queue import RankedQueue
from penstock.queue.ticket import QueuedTicket
from penstock.simulator.baselines.base import SingleShardPolicy
from penstock.simulator.mesh.engine import NO_STEP, SimRun


class PlainVtc(SingleShardPolicy):
    """VTC over one queue per tenant."""

    def __init__(
        self, input_weight: float, output_weight: float, clock: Callable[[], float], report_interval: float
    ) -> None:
        """Output tokens are charged every `report_interval` s, or after each step if it is 0."""
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
        self._last_emptied = ""  # the tenant whose queue emptied last
        self._input_charged: set[int] = set()  # arrival numbers of dispatched tickets, which may be returned

    @property
    def totals(self) -> TicketTotals:
        return self._totals

    def pop_dropped(self) -> list[QueuedTicket]:
        return []

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        """Ignore reported costs: tokens are charged by `on_step`."""

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
        queue = self._queues.setdefault(tenant, RankedQueue())
        self._weights[tenant] = ticket.weight
        if ticket.arrival_number in self._input_charged:
            self._input_charged.discard(ticket.arrival_number)
            self._counters[tenant] -= self._input_cost(ticket)
        elif not queue.tickets:
            self._lift(tenant)
        queue.push(ticket)
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
        """Count at most as much of each tenant as the ticket's own tenant has, because tenants take turns."""
        own = self._queues.get(ticket.tenant_id) or RankedQueue()
        queues = self._queues.values()
        return QueuePosition(
            sum(min(each.tickets, own.tickets) for each in queues), sum(min(each.work, own.work) for each in queues)
        )

    def evictable(self, priority: int) -> TicketTotals:
        return TicketTotals(0, 0)

    def next_victim(self, priority: int) -> tuple[QueuedTicket, SortKey] | None:
        return None

    def _lift(self, tenant: str) -> None:
        waiting = [self._counters[each] for each, queue in self._queues.items() if queue.tickets]
        least = min(waiting) if waiting else self._counters.get(self._last_emptied, 0.0)
        self._counters[tenant] = max(self._counters.get(tenant, 0.0), least)

    def _tenants_by_counter(self) -> list[str]:
        return sorted(
            (tenant for tenant, queue in self._queues.items() if queue.tickets),
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
