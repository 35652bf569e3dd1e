"""Edge sessions: the connected edges, and the edges whose grace period has passed."""

import math

from penstock.chassis.clocks import StallFreeClock


class EdgeSessions:
    """Streams per edge instance. The session of an edge survives a disconnection shorter than `grace`.

    `max_gap`: longest time in s between two calls that counts, because no edge can reconnect while this process stalls.
    """

    def __init__(self, *, grace: float, max_gap: float = math.inf) -> None:
        self._grace = grace  # s
        self._clock = StallFreeClock(max_gap)
        self._streams: dict[str, int] = {}
        self._away_since: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def on_connected(self, edge_id: str) -> None:
        """Add a stream. It may connect before the loss of the former stream is detected."""
        self._streams[edge_id] = self._streams.get(edge_id, 0) + 1
        self._away_since.pop(edge_id, None)

    def on_disconnected(self, edge_id: str, now: float) -> None:
        self._streams[edge_id] -= 1
        if not self._streams[edge_id]:
            del self._streams[edge_id]
            self._away_since[edge_id] = self._clock.at(now)

    def expect(self, edge_id: str, now: float) -> None:
        """Start the grace period of an edge of a former process, unless it is connected."""
        if edge_id not in self._streams:
            self._away_since.setdefault(edge_id, self._clock.at(now))

    def pop_expired(self, now: float) -> list[str]:
        """Return, once each, the edges whose grace period has passed."""
        ran = self._clock.at(now)
        expired = [edge_id for edge_id, since in self._away_since.items() if since + self._grace <= ran]
        for edge_id in expired:
            del self._away_since[edge_id]
        return expired
