"""Target rotation: the targets of a client in turn, except those that failed recently, home targets first."""

from collections.abc import Sequence

FAILURE_COOLDOWN_S = 1.0  # a failed target is used within this time only if all others have failed as well


class TargetRotation:
    """Round-robin order of home targets, and of failover targets while every home target is down.

    A home target is down after a connection to it failed, or a call that began while the target had recently failed:
    the first failure may be of one process behind it. It stays down until it is marked as up. Without failover targets
    no target is down. No I/O; `now` is passed in.
    """

    def __init__(self, home: Sequence[str], failover: Sequence[str] = ()) -> None:
        self._home = list(home)  # next first
        self._failover = list(failover)  # next first
        self._failed_at: dict[str, float] = {}
        self._down: set[str] = set()  # home targets
        self._last = ""

    def __len__(self) -> int:
        return len(self._home) + len(self._failover)

    @property
    def down(self) -> frozenset[str]:
        """Home targets that are down."""
        return frozenset(self._down)

    @property
    def is_home_down(self) -> bool:
        """Whether every home target is down."""
        return self._down.issuperset(self._home)

    def next(self, now: float) -> str:
        """Return the next target that has not failed recently, or else the one that failed first."""
        self._last = chosen = self._choose(now)
        targets = self._home if chosen in self._home else self._failover
        targets.remove(chosen)
        targets.append(chosen)
        return chosen

    def has_healthy(self, now: float) -> bool:
        """Return whether a target other than the last one has not failed recently."""
        return any(self._is_healthy(each, now) for each in (*self._home, *self._failover) if each != self._last)

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

    def mark_up(self, target: str) -> None:
        self._down.discard(target)
        self._failed_at.pop(target, None)

    def _choose(self, now: float) -> str:
        for target in self._home:
            if self._is_healthy(target, now):
                return target
        suspects = [each for each in self._home if each not in self._down] if self._failover else ()
        if suspects:
            return min(suspects, key=lambda each: self._failed_at[each])
        for target in self._failover:
            if self._is_healthy(target, now):
                return target
        return min((*self._home, *self._failover), key=lambda each: self._failed_at[each])

    def _set_down(self, target: str) -> None:
        if self._failover and target in self._home:
            self._down.add(target)

    def _is_healthy(self, target: str, now: float) -> bool:
        has_failed = target in self._failed_at and now - self._failed_at[target] < FAILURE_COOLDOWN_S
        return not has_failed and target not in self._down
