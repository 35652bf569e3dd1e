"""Tickets by edge, and the edges that are lost: their tickets are removed in slices, so that the loop is not held."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from penstock.queue.ticket import QueuedTicket
from penstock.queue.tickets.recent_leases import RecentLeases


@dataclass(slots=True)
class EdgeTickets:
    """Waiting, offered and recently leased tickets by edge. A lost edge is listed until it has none of them."""

    recent_leases: RecentLeases
    _by_edge: dict[str, dict[str, None]] = field(default_factory=dict)  # ids of waiting and offered tickets, by edge
    _lost: dict[str, None] = field(default_factory=dict)  # edges, in the order of their loss

    @property
    def has_orphans(self) -> bool:
        return bool(self._lost)

    def add(self, ticket: QueuedTicket) -> None:
        self._by_edge.setdefault(ticket.edge, {})[ticket.ticket_id] = None

    def discard(self, ticket: QueuedTicket) -> None:
        of_edge = self._by_edge[ticket.edge]
        del of_edge[ticket.ticket_id]
        if not of_edge:
            del self._by_edge[ticket.edge]

    def on_edge_lost(self, edge: str) -> None:
        self._lost[edge] = None

    def is_orphan(self, ticket: QueuedTicket) -> bool:
        return ticket.edge in self._lost

    def next_orphans(self, limit: int) -> list[str]:
        """Return at most `limit` tickets of a lost edge. The caller removes them at once."""
        edge = next(iter(self._lost), None)
        if edge is None:
            return []
        found = list(islice(self._of_edge(edge), limit))
        if len(found) < limit:
            del self._lost[edge]
        return found

    def _of_edge(self, edge: str) -> Iterator[str]:
        return chain(self._by_edge.get(edge, ()), self.recent_leases.of_edge(edge))
