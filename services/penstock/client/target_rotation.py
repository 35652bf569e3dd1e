"""Target rotation: the targets of a client in turn, except those that failed recently, home targets first."""

import math
from collections.abc import Sequence

FAILURE_COOLDOWN_S = 1.0  # a failed target is used within this time only if all others have failed as well
REFUSAL_COOLDOWN_S = 60.0  # a target whose region refuses the caller is used within this time only if all do


class TargetRotation:
    """Round-robin order of home targets, and of failover targets while every home target is down.

    A home target is down after a connection to it failed, or a call that began while the target had recently failed:
    the first failure may be of one process behind it. It stays down until it is marked as up. Without failover targets
    no target is down. Targets whose region refuses the caller are left out, unless all do. No I/O; `now` is passed in.
    """

    def __init__(self, home: Sequence[str], failover: Sequence[str] = ()) -> None:
        self._home = list(home)  # next first
        self._failover = list(failover)  # next first
        self._failed_at: dict[str, float] = {}
        self._refused_at: dict[str, float] = {}
        self._down: set[str] = set()  # home targets
        self._last = ""

    def __len__(self) -> int:
        return len(self._home) + len(self._failover)

    @property
    def down(self) -> frozenset[str]:
        """Home targets that are down."""
        return frozenset(self._down)

    def is_home_usable(self, now: float) -> bool:
        """Return whether a home target is neither down nor of a region that refuses the caller."""
        return any(each not in self._down for each in self._accepting(self._home, now))

    def next(self, now: float) -> str:
        """Return the next target that has not failed recently, or else the one that failed first."""
        self._last = chosen = self._choose(now)
        targets = self._home if chosen in self._home else self._failover
        targets.remove(chosen)
        targets.append(chosen)
        return chosen

    def has_healthy(self, now: float) -> bool:
        """Return whether a target other than the last one has neither failed nor refused the caller recently."""
        targets = self._accepting((*self._home, *self._failover), now)
        return any(self.is_healthy(each, now) for each in targets if each != self._last)

    def is_healthy(self, target: str, now: float) -> bool:
        """Return whether a target is not down and has not failed recently."""
        has_failed = target in self._failed_at and now - self._failed_at[target] < FAILURE_COOLDOWN_S
        return not has_failed and target not in self._down

    def mark_failed(self, target: str, began_at: float, now: float) -> None:
        """Record the failure of a call that began at `began_at`."""
        failed_at = self._failed_at.get(target)
        if failed_at is not None and 0 <= began_at - failed_at < FAILURE_COOLDOWN_S:
            self._set_down(target)
        self._failed_at[target] = now

    def mark_unreachable(self, target: str, now: float) -> None:
        """Record that no connection could be made."""
        self._set_down(target)
        self._failed_at[target] = now

    def mark_refused(self, target: str, now: float) -> bool:
        """Record that the region of a target refuses the caller. Return whether another target may not."""
        self._refused_at[target] = now
        return bool(self._accepting((*self._home, *self._failover), now))

    def mark_up(self, target: str) -> None:
        self._down.discard(target)
        self._failed_at.pop(target, None)

    def _choose(self, now: float) -> str:
        home, failover = self._accepting(self._home, now), self._accepting(self._failover, now)
        if not home and not failover:
            home, failover = self._home, self._failover
        for target in home:
            if self.is_healthy(target, now):
                return target
        suspects = [each for each in home if each not in self._down] if failover else ()
        if suspects:
            return min(suspects, key=lambda each: self._failed_at[each])
        for target in failover:
            if self.is_healthy(target, now):
                return target
        return min((*home, *failover), key=lambda each: self._failed_at[each])

    def _accepting(self, targets: Sequence[str], now: float) -> list[str]:
        """Return the targets whose region has not refused the caller recently."""
        return [each for each in targets if now - self._refused_at.get(each, -math.inf) >= REFUSAL_COOLDOWN_S]

    def _set_down(self, target: str) -> None:
        if self._failover and target in self._home:
            self._down.add(target)
