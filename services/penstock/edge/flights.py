"""The requests under way at this edge, bounded in number and bytes."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.chassis.errors import Overloaded
from penstock.edge.flight.state import State
from penstock.edge.passage import Passage

SMOOTHING = 0.1  # weight of the newest interval
RETRY_BOUNDS = (0.1, 30.0)  # s
FREE_SHARE = 0.05  # of the places; a refused client comes back when that many have come free


class Flights:
    """Who is in the air. Full means refused at once, with the time in which places will have come free."""

    def __init__(self, *, max_flights: int, max_bytes: int) -> None:
        self.max_flights = max_flights
        self.max_bytes = max_bytes
        self.bytes = 0
        self.opened = 0
        self._passages: dict[str, Passage] = {}
        self._ended_at = 0.0
        self._interval = 1.0  # s between endings, smoothed

    def __repr__(self) -> str:
        return f"<Flights {len(self)}/{self.max_flights}, {self.bytes}/{self.max_bytes} bytes>"

    def __len__(self) -> int:
        return len(self._passages)

    def __iter__(self) -> Iterator[Passage]:
        return iter(list(self._passages.values()))  # those that look may end some

    def get(self, ticket_id: str) -> Passage | None:
        return self._passages.get(ticket_id)

    def in_state(self, *states: State) -> list[Passage]:
        return [passage for passage in self if passage.flight.state in states]

    def counts(self) -> Counter[State]:
        return Counter(passage.flight.state for passage in self._passages.values())

    def check_room(self, size: int) -> None:
        """Raise Overloaded when one more flight of `size` bytes is too much."""
        if len(self) >= self.max_flights or self.bytes + size > self.max_bytes:
            text = f"this edge holds {len(self)} requests of {self.bytes} bytes and takes no more now"
            raise Overloaded(text, reason="EDGE_FULL", retry_after=self._retry_after())

    def add(self, passage: Passage) -> None:
        self._passages[passage.ticket_id] = passage
        self.bytes += passage.size
        self.opened += 1

    def grow(self, passage: Passage, size: int) -> None:
        """Note `size` more bytes of an open flight; raises Overloaded, and notes nothing, past the bound."""
        if passage.ticket_id not in self._passages:  # its client left while it was tokenized
            return
        if self.bytes + size > self.max_bytes:
            self.check_room(size)
        passage.size += size
        self.bytes += size

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Count `size` bytes that belong to no flight; raises Overloaded as `check_room` does."""
        self.check_room(size)
        self.bytes += size
        try:
            yield
        finally:
            self.bytes -= size

    def remove(self, passage: Passage, now: float) -> None:
        if self._passages.pop(passage.ticket_id, None) is None:
            return
        self.bytes -= passage.size
        if self._ended_at:
            self._interval += SMOOTHING * (now - self._ended_at - self._interval)
        self._ended_at = now

    def _retry_after(self) -> float:
        low, high = RETRY_BOUNDS
        return min(high, max(low, self._interval * self.max_flights * FREE_SHARE))
