"""Strict classes, first come first served within each; resumed work at the head of its class."""

from penstock.queue.policies.lane import Lane
from penstock.queue.policies.order import FitOf, Key, Load
from penstock.queue.waiting import WaitingTicket


class ClassFifo:
    """One lane per class; a class is served when those above it are empty."""

    def __init__(self) -> None:
        self._lanes: dict[int, Lane] = {}  # by priority, ascending

    @property
    def load(self) -> Load:
        return _sum([lane.load for lane in self._lanes.values()])

    def push(self, ticket: WaitingTicket) -> None:
        if ticket.priority not in self._lanes:
            self._lanes = dict(sorted([*self._lanes.items(), (ticket.priority, Lane())]))
        self._lanes[ticket.priority].push(ticket)

    def remove(self, ticket: WaitingTicket) -> None:
        if lane := self._lanes.get(ticket.priority):
            lane.remove(ticket)

    def take(self, fit: FitOf) -> WaitingTicket | None:
        for lane in self._lanes.values():
            ticket, is_barred = lane.take(fit)
            if ticket or is_barred:
                return ticket
        return None

    def head(self) -> tuple[WaitingTicket, Key] | None:
        for lane in self._lanes.values():
            if ticket := lane.first():
                return ticket, _key(ticket)
        return None

    def ahead(self, ticket: WaitingTicket) -> Load:
        loads = [lane.load for priority, lane in self._lanes.items() if priority < ticket.priority]
        if own := self._lanes.get(ticket.priority):
            loads.append(own.resumed if ticket.resumes else own.load)
        return _sum(loads)

    def evictable(self, priority: int) -> Load:
        return _sum([lane.evictable for lower, lane in self._lanes.items() if lower > priority])

    def next_evicted(self, priority: int) -> tuple[WaitingTicket, Key] | None:
        for lowest in reversed(self._lanes):
            if lowest > priority and (ticket := self._lanes[lowest].newest()):
                return ticket, _key(ticket)
        return None


def _key(ticket: WaitingTicket) -> Key:
    return Key(ticket.priority, 0.0, ticket.enqueued)


def _sum(loads: list[Load]) -> Load:
    return Load(sum(load.tickets for load in loads), sum(load.tokens for load in loads))
