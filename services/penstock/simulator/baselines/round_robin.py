"""Round robin over flows, with a limit on the time that a ticket may wait.

Source: llm-d's router (formerly Gateway API Inference Extension), flow control: priority band, then flow by round
robin, then the oldest ticket of the flow; tickets older than their time to live are evicted. A flow is a tenant here.
"""

from collections.abc import Callable

from penstock.queue.policies.policy import NO_TICKETS, FitFn, QueuePosition, SortKey, TicketTotals
from penstock.queue.policies.ranked_queue import RankedQueue
from penstock.queue.ticket import QueuedTicket
from penstock.simulator.baselines.base import SingleShardPolicy

Flow = tuple[int, str]  # class and tenant


class RoundRobin(SingleShardPolicy):
    """Serves one ticket per flow in turn within each class; drops tickets after `ttl` s."""

    def __init__(self, ttl: float, clock: Callable[[], float]) -> None:
        self._ttl_s = ttl
        self._clock = clock
        self._queues: dict[Flow, RankedQueue] = {}  # non-empty ones, in order of their turns
        self._dropped: list[QueuedTicket] = []
        self.totals = NO_TICKETS

    def pop_dropped(self) -> list[QueuedTicket]:
        dropped, self._dropped = self._dropped, []
        return dropped

    def push(self, ticket: QueuedTicket) -> None:
        self._queues.setdefault(_flow_of(ticket), RankedQueue()).push(ticket)
        self._adjust_totals(ticket, 1)

    def remove(self, ticket: QueuedTicket) -> None:
        if ticket.is_listed:
            self._queues[_flow_of(ticket)].remove(ticket)
            self._on_removed(ticket)

    def pop_fitting(self, fit: FitFn) -> QueuedTicket | None:
        self._evict_expired()
        for flow in self._flows_in_turn():
            taken = self._queues[flow].pop_fitting(fit)
            if taken.ticket:
                taken.record_passes()
                self._queues[flow] = self._queues.pop(flow)
                self._on_removed(taken.ticket)
            if taken.ticket or taken.is_blocked:
                return taken.ticket
        return None

    def head(self) -> tuple[QueuedTicket, SortKey] | None:
        for flow in self._flows_in_turn():
            if ticket := self._queues[flow].first():
                return ticket, SortKey(ticket.priority, 0.0, ticket.enqueued)
        return None

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        ticket.charged_cost = cost

    def position_of(self, ticket: QueuedTicket) -> QueuePosition:
        """Count at most as much of each flow as the ticket's own flow has, because flows take turns."""
        own = self._queues.get(_flow_of(ticket)) or RankedQueue()
        queues = self._queues.values()
        return QueuePosition(
            sum(min(each.tickets, own.tickets) for each in queues), sum(min(each.work, own.work) for each in queues)
        )

    def evictable(self, priority: int) -> TicketTotals:
        return NO_TICKETS

    def next_victim(self, priority: int) -> tuple[QueuedTicket, SortKey] | None:
        return None

    def _flows_in_turn(self) -> list[Flow]:
        return sorted(self._queues, key=lambda flow: flow[0])  # stable: the order of turns within a class is kept

    def _evict_expired(self) -> None:
        oldest = self._clock() - self._ttl_s
        for flow in list(self._queues):
            while (queue := self._queues.get(flow)) and (ticket := queue.first()) and ticket.arrived < oldest:
                self.remove(ticket)
                self._dropped.append(ticket)

    def _on_removed(self, ticket: QueuedTicket) -> None:
        self._adjust_totals(ticket, -1)
        if not self._queues[_flow_of(ticket)].tickets:
            del self._queues[_flow_of(ticket)]

    def _adjust_totals(self, ticket: QueuedTicket, sign: int) -> None:
        self.totals = TicketTotals(self.totals.tickets + sign, self.totals.tokens + sign * ticket.tokens)


def _flow_of(ticket: QueuedTicket) -> Flow:
    return ticket.priority, ticket.tenant_id
