"""Census of a shard: who waits and runs in each class of a model, as edges tell it to operators. `now` is in s."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, Protocol

from penstock.queue.policies.policy import TicketTotals
from penstock.queue.ticket import QueuedTicket

INTERVAL_S = 0.5  # s between two counts, so that a ticket costs no count of its own
MAX_COUNTED = 2_048  # entries of tenants in one count; a count takes less than a millisecond


class ClassCensus(NamedTuple):
    """What waits and runs in the class of a ticket when it arrives."""

    tenant_id: str = ""  # with the most waiting tickets
    tenant_tickets: int = 0  # that wait
    class_running: int = 0  # tickets of the class that run, as this shard has leased them
    running: int = 0  # of all classes of the model
    slots: int = 0  # of the model's workers; 0: not known


class WaitingTickets(Protocol):
    """The interface of all model queues."""

    @property
    def totals_by_tenant(self) -> Mapping[tuple[str, int, str], TicketTotals]: ...

    def slots(self, model: str, now: float) -> int: ...


@dataclass(slots=True)
class QueueCensus:
    """Counts at most every `INTERVAL_S`."""

    waiting: WaitingTickets
    running: Mapping[tuple[str, int], int]  # tickets that run, by model and class
    _busiest: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)  # tenant and tickets
    _counted_at: float = -math.inf

    def of(self, ticket: QueuedTicket, now: float) -> ClassCensus:
        """Return the census of the ticket's model and class."""
        if now >= self._counted_at + INTERVAL_S:
            self._counted_at = now
            self._count()
        tenant_id, tickets = self._busiest.get((ticket.model, ticket.priority), ("", 0))
        by_class = [count for (model, _), count in self.running.items() if model == ticket.model]
        return ClassCensus(
            tenant_id,
            tickets,
            self.running.get((ticket.model, ticket.priority), 0),
            sum(by_class),
            self.waiting.slots(ticket.model, now),
        )

    def _count(self) -> None:
        self._busiest.clear()
        for (model, priority, tenant_id), totals in islice(self.waiting.totals_by_tenant.items(), MAX_COUNTED):
            found = self._busiest.get((model, priority))
            if found is None or totals.tickets > found[1]:
                self._busiest[model, priority] = tenant_id, totals.tickets
