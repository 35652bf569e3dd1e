"""Which edges are there, and which have stayed away for too long."""

import math

from penstock.chassis.clocks import StallFreeClock


class EdgeSessions:
    """Counts each instance's streams. An edge that reconnects within the grace was never away.

    `step`: s between two looks that count at most; nobody can reconnect to a process that stands still.
    """

    def __init__(self, *, grace: float, max_gap: float = math.inf) -> None:
        self._grace = grace  # s
        self._clock = StallFreeClock(max_gap)
        self._streams: dict[str, int] = {}
        self._away_since: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def on_connected(self, edge_id: str) -> None:
        """A new stream may come before the loss of the old one is noticed."""
        self._streams[edge_id] = self._streams.get(edge_id, 0) + 1
        self._away_since.pop(edge_id, None)

    def on_disconnected(self, edge_id: str, now: float) -> None:
        self._streams[edge_id] -= 1
        if not self._streams[edge_id]:
            del self._streams[edge_id]
            self._away_since[edge_id] = self._clock.at(now)

    def expect(self, edge_id: str, now: float) -> None:
        """An edge of the process before this one; its grace begins now."""
        self._away_since.setdefault(edge_id, self._clock.at(now))

    def pop_expired(self, now: float) -> list[str]:
        """Return, once each, the edges whose grace is over."""
        ran = self._clock.at(now)
        found = [edge_id for edge_id, since in self._away_since.items() if since + self._grace <= ran]
        for edge_id in found:
            del self._away_since[edge_id]
        return found
