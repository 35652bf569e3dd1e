"""Limits how often one peer may fail to show that it is an operator. Pure: `now` is passed in."""

from collections import OrderedDict
from dataclasses import dataclass, field

FAILURE_BURST = 5.0  # failures that a peer may have at once
FAILURES_PER_S = 1.0  # then one more each second
MAX_PEERS = 1_024  # of the table; the peer that failed longest ago is forgotten first


@dataclass
class FailureThrottle:
    """Failures by host, each a bucket that empties over time."""

    burst: float = FAILURE_BURST
    per_s: float = FAILURES_PER_S
    max_peers: int = MAX_PEERS
    _levels: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)  # level, and when it was so

    def delay(self, host: str, now: float) -> float:
        """Return the seconds until `host` may try again; 0.0: at once."""
        return max(0.0, (self._level(host, now) + 1.0 - self.burst) / self.per_s)

    def record_failure(self, host: str, now: float) -> None:
        self._levels[host] = self._level(host, now) + 1.0, now
        self._levels.move_to_end(host)
        if len(self._levels) > self.max_peers:
            self._levels.popitem(last=False)

    def _level(self, host: str, now: float) -> float:
        level, at = self._levels.get(host, (0.0, now))
        return max(0.0, level - max(0.0, now - at) * self.per_s)


@dataclass
class RefusalReport:
    """Collects refusals, so that a flood of them is one line per second."""

    interval: float = 1.0  # s
    pending: int = 0
    _reported_at: float = float("-inf")

    def record(self, now: float) -> int:
        """Record one refusal; return the number to report now, 0 if it is reported later."""
        self.pending += 1
        return self.take() if self._is_due(now) else 0

    def take(self) -> int:
        """Return the refusals that no line has reported, which the caller reports."""
        count, self.pending = self.pending, 0
        return count

    def _is_due(self, now: float) -> bool:
        if now - self._reported_at < self.interval:
            return False
        self._reported_at = now
        return True
