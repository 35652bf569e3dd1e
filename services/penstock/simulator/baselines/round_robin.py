"""Flows in turn, one ticket each, and a bound on the time that a ticket may wait.

Source: llm-d's router (formerly Gateway API Inference Extension), flow control: priority band, then flow by round
robin, then the oldest of the flow; what waited for longer than its time to live is evicted. A flow is a tenant here.
"""

from collections.abc import Callable

from penstock.queue.policies.lane import Lane
from penstock.queue.policies.order import NOTHING, Ahead, FitOf, Key, Load
from penstock.queue.waiting import WaitingTicket
from penstock.simulator.baselines.alone import Alone

Flow = tuple[int, str]  # class and tenant


class RoundRobin(Alone):
    def __init__(self, ttl: float, clock: Callable[[], float]) -> None:
        self._ttl = ttl
        self._clock = clock
        self._flows: dict[Flow, Lane] = {}  # of those that wait, whose turn it is first
        self._dropped: list[WaitingTicket] = []
        self.load = NOTHING

    def dropped(self) -> list[WaitingTicket]:
        dropped, self._dropped = self._dropped, []
        return dropped

    def push(self, ticket: WaitingTicket) -> None:
        self._flows.setdefault(_flow(ticket), Lane()).push(ticket)
        self._count(ticket, 1)

    def remove(self, ticket: WaitingTicket) -> None:
        if ticket.is_listed:
            self._flows[_flow(ticket)].remove(ticket)
            self._left(ticket)

    def take(self, fit: FitOf) -> WaitingTicket | None:
        self._evict()
        for flow in self._in_turn():
            taken = self._flows[flow].take(fit)
            if taken.ticket:
                taken.passed()
                self._flows[flow] = self._flows.pop(flow)
                self._left(taken.ticket)
            if taken.ticket or taken.is_barred:
                return taken.ticket
        return None

    def head(self) -> tuple[WaitingTicket, Key] | None:
        for flow in self._in_turn():
            if ticket := self._flows[flow].first():
                return ticket, Key(ticket.priority, 0.0, ticket.enqueued)
        return None

    def charge(self, ticket: WaitingTicket, cost: float) -> None:
        ticket.charged = cost

    def ahead(self, ticket: WaitingTicket) -> Ahead:
        """Count each flow with as much as the ticket's own has, at most: they take turns."""
        own = self._flows.get(_flow(ticket)) or Lane()
        lanes = self._flows.values()
        return Ahead(
            sum(min(each.tickets, own.tickets) for each in lanes), sum(min(each.work, own.work) for each in lanes)
        )

    def evictable(self, priority: int) -> Load:
        return NOTHING

    def next_evicted(self, priority: int) -> tuple[WaitingTicket, Key] | None:
        return None

    def _in_turn(self) -> list[Flow]:
        return sorted(self._flows, key=lambda flow: flow[0])  # stable: within a class, whose turn it is

    def _evict(self) -> None:
        oldest = self._clock() - self._ttl
        for flow in list(self._flows):
            while (lane := self._flows.get(flow)) and (ticket := lane.first()) and ticket.arrived < oldest:
                self.remove(ticket)
                self._dropped.append(ticket)

    def _left(self, ticket: WaitingTicket) -> None:
        self._count(ticket, -1)
        if not self._flows[_flow(ticket)].tickets:
            del self._flows[_flow(ticket)]

    def _count(self, ticket: WaitingTicket, sign: int) -> None:
        self.load = Load(self.load.tickets + sign, self.load.tokens + sign * ticket.tokens)


def _flow(ticket: WaitingTicket) -> Flow:
    return ticket.priority, ticket.tenant_id
