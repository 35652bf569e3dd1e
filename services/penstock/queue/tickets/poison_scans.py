"""Searches of all tickets of a shard for those that a report of poison requests concerns, in slices."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from penstock.queue.effects import Effect
from penstock.queue.ticket import QueuedTicket

# Tickets that one slice compares, and tickets that it drops. A slice takes some milliseconds.
MAX_SCANNED_PER_SLICE = 4_096
MAX_DROPPED_PER_SLICE = 128


class TicketScan(NamedTuple):
    """One search. It compares the tickets that were known when it began."""

    tickets: Iterator[QueuedTicket]
    on_ticket: Callable[[QueuedTicket, float], list[Effect]]  # at a time in s; returns effects if it drops the ticket
    tenants: frozenset[str] = frozenset()  # whose waiting tickets it drops


class TicketScans:
    """Searches, one after the other."""

    def __init__(self) -> None:
        self._scans: deque[TicketScan] = deque()
        self.suspended_tenants: frozenset[str] = frozenset()  # whose waiting tickets are being dropped

    def __bool__(self) -> bool:
        return bool(self._scans)

    def add(self, scan: TicketScan) -> None:
        self._scans.append(scan)
        self.suspended_tenants |= scan.tenants

    def run_slice(self, now: float) -> list[Effect]:
        """Compare a bounded number of tickets, and return the effects of those that were dropped."""
        if not self._scans:
            return []
        effects: list[Effect] = []
        scanned = dropped = 0
        scan = self._scans[0]
        for ticket in islice(scan.tickets, MAX_SCANNED_PER_SLICE):
            scanned += 1
            if found := scan.on_ticket(ticket, now):
                effects += found
                dropped += 1
                if dropped == MAX_DROPPED_PER_SLICE:
                    return effects
        if scanned < MAX_SCANNED_PER_SLICE:
            self._scans.popleft()
            self.suspended_tenants = frozenset[str]().union(*(each.tenants for each in self._scans))
        return effects
