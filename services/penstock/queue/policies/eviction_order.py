"""Order in which the waiting tickets of one class are evicted: the newest first."""

from penstock.queue.policies.lazy_heap import LazyHeap
from penstock.queue.policies.ranked_queue import is_current
from penstock.queue.ticket import QueuedTicket

NewestEntry = tuple[
    float, int, int, QueuedTicket
]  # negated first enqueue, negated arrival number, listing version, ticket


class EvictionOrder:
    """Waiting tickets of one class by their first enqueue.

    Most tickets arrive in this order, and are kept in a dict, which takes 52 bytes per ticket where a heap takes 140.
    A heap holds the others: those that a scheduler has returned, and those that another shard admitted earlier.
    """

    __slots__ = ("_in_order", "_last_key", "_others")

    def __init__(self) -> None:
        self._in_order: dict[QueuedTicket, None] = {}  # oldest first
        self._last_key = (0.0, 0)  # first enqueue and arrival number of the newest ticket that was added in order
        self._others: LazyHeap[NewestEntry] = LazyHeap(is_current, counts_deletions=True)

    def push(self, ticket: QueuedTicket) -> None:
        """Add a ticket that a queue of the class has just listed."""
        key = (ticket.enqueued, ticket.arrival_number)
        if key >= self._last_key or not self._in_order:
            self._last_key = key
            self._in_order[ticket] = None
        else:
            self._others.push((-ticket.enqueued, -ticket.arrival_number, ticket.listing_version, ticket))

    def remove(self, ticket: QueuedTicket) -> None:
        """Remove a ticket that its queue does not list any more."""
        if ticket in self._in_order:
            del self._in_order[ticket]
        else:
            self._others.on_deleted()

    def newest(self) -> QueuedTicket | None:
        entry = self._others.first()
        other = entry[-1] if entry else None
        if not self._in_order:
            return other
        # Unlike `reversed`, `popitem` does not pass the places of removed tickets again at the next call.
        newest, _ = self._in_order.popitem()
        self._in_order[newest] = None
        if other and (other.enqueued, other.arrival_number) > (newest.enqueued, newest.arrival_number):
            return other
        return newest
