"""Target rotation: the targets of a client in turn, except those that failed recently."""

FAILURE_COOLDOWN_S = 1.0  # a failed target is used within this time only if all others have failed as well


class TargetRotation:
    """Round-robin order of targets. No I/O; `now` is passed in."""

    def __init__(self, targets: list[str]) -> None:
        self._targets = targets  # next first
        self._failed_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._targets)

    def next(self, now: float) -> str:
        """Return the next target that has not failed recently, or else the one that failed first."""
        healthy = (each for each in self._targets if self._is_healthy(each, now))
        chosen = next(healthy, None) or min(self._targets, key=lambda each: self._failed_at[each])
        self._targets.remove(chosen)
        self._targets.append(chosen)
        return chosen

    def has_healthy(self, now: float) -> bool:
        """Return whether a target other than the last one has not failed recently."""
        return any(self._is_healthy(each, now) for each in self._targets[:-1])

    def mark_failed(self, target: str, now: float) -> None:
        self._failed_at[target] = now

    def _is_healthy(self, target: str, now: float) -> bool:
        return target not in self._failed_at or now - self._failed_at[target] >= FAILURE_COOLDOWN_S
