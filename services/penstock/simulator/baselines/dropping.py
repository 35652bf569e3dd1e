"""FIFO policies that drop tickets at the head, by the time that they have waited."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.queue.policies.policy import FitFn, QueuePosition, SortKey, TicketTotals
from penstock.queue.policies.priority_classes import ClassFifo
from penstock.queue.ticket import QueuedTicket
from penstock.simulator.baselines.base import SingleShardPolicy


class DropRule(Protocol):
    """Decides which tickets are dropped at the head."""

    def should_drop(self, waited: float, now: float) -> bool:
        """Return whether to drop the ticket at the head; called once for each ticket, in order."""


@dataclass(slots=True)
class AgeDrop:
    """Drops tickets that have waited longer than `max_wait_s`."""

    max_wait_s: float

    def should_drop(self, waited: float, now: float) -> bool:
        return waited > self.max_wait_s


@dataclass(slots=True)
class FollyCodel:
    """Drops tickets that waited longer than twice the target, if the shortest wait of the last interval exceeded it.

    Source: Meta's folly, executors/Codel: CoDel of Nichols and Jacobson (RFC 8289), which uses sojourn times instead
    of queue lengths, with its drop rule replaced by that threshold; defaults 5 ms and 100 ms.
    """

    target: float = 0.005  # s
    interval: float = 0.1  # s
    _min_wait: float = 0.0  # s; shortest wait in this interval
    _interval_ends_at: float = 0.0
    _is_overloaded: bool = False

    def should_drop(self, waited: float, now: float) -> bool:
        # The first ticket of an interval is never dropped, so that each interval has a wait.
        if now > self._interval_ends_at:
            self._interval_ends_at = now + self.interval
            self._is_overloaded = self._min_wait > self.target
            self._min_wait = waited
            return False
        self._min_wait = min(self._min_wait, waited)
        return self._is_overloaded and waited > 2 * self.target


@dataclass(slots=True)
class NeverDrop:
    """Drops no ticket: plain FIFO."""

    def should_drop(self, waited: float, now: float) -> bool:
        return False


class DroppingFifo(SingleShardPolicy):
    """A FIFO that applies `rule` to each ticket at the head; the shard collects the dropped tickets."""

    def __init__(self, rule: DropRule, clock: Callable[[], float]) -> None:
        self._rule = rule
        self._clock = clock
        self._fifo = ClassFifo()
        self._dropped: list[QueuedTicket] = []

    @property
    def totals(self) -> TicketTotals:
        return self._fifo.totals

    def pop_dropped(self) -> list[QueuedTicket]:
        dropped, self._dropped = self._dropped, []
        return dropped

    def push(self, ticket: QueuedTicket) -> None:
        self._fifo.push(ticket)

    def remove(self, ticket: QueuedTicket) -> None:
        self._fifo.remove(ticket)

    def pop_fitting(self, fit: FitFn) -> QueuedTicket | None:
        now = self._clock()
        while ticket := self._fifo.pop_fitting(fit):
            if not self._rule.should_drop(now - ticket.arrived, now):
                return ticket
            self._dropped.append(ticket)
        return None

    def head(self) -> tuple[QueuedTicket, SortKey] | None:
        return self._fifo.head()

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        ticket.charged_cost = cost

    def position_of(self, ticket: QueuedTicket) -> QueuePosition:
        return self._fifo.position_of(ticket)

    def evictable(self, priority: int) -> TicketTotals:
        return self._fifo.evictable(priority)

    def next_victim(self, priority: int) -> tuple[QueuedTicket, SortKey] | None:
        return self._fifo.next_victim(priority)
