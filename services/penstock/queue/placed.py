"""Tickets that got a lease a moment ago, so that a withdrawal still finds the scheduler that placed them."""

from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.queue.waiting import WaitingTicket


class Placement(NamedTuple):
    scheduler: str
    edge: str
    until: float
    fingerprint: int


@dataclass(slots=True)
class Placed:
    """Forgets each after `memory` seconds: by then its lease was started or has lapsed."""

    memory: float  # s; above the schedulers' lease ttl
    _placements: OrderedDict[str, Placement] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._placements)

    def note(self, ticket: WaitingTicket, scheduler: str, now: float) -> None:
        self._placements[ticket.ticket_id] = Placement(scheduler, ticket.edge, now + self.memory, ticket.fingerprint)
        self._placements.move_to_end(ticket.ticket_id)

    def knows(self, ticket_id: str) -> bool:
        return ticket_id in self._placements

    def pop(self, ticket_id: str) -> str:
        """Forget a ticket and return the scheduler that placed it; empty when none is remembered."""
        found = self._placements.pop(ticket_id, None)
        return found.scheduler if found else ""

    def of_edge(self, edge: str) -> list[str]:
        return [ticket_id for ticket_id, each in self._placements.items() if each.edge == edge]

    def like(self, fingerprints: Container[int]) -> dict[str, Placement]:
        return {key: each for key, each in self._placements.items() if each.fingerprint in fingerprints}

    def expire(self, now: float) -> None:
        while self._placements and next(iter(self._placements.values())).until <= now:
            self._placements.popitem(last=False)
