"""Which of several targets comes next: each in turn, but for those that have just failed."""

FAILURE_COOLDOWN_S = 1.0  # s; during which a target that failed is asked only if all others have failed as well


class TargetRotation:
    def __init__(self, targets: list[str]) -> None:
        self._targets = targets  # the next first
        self._failed_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._targets)

    def next(self, now: float) -> str:
        """The next that has not failed of late, or else the one whose failure is the longest ago."""
        healthy = (each for each in self._targets if self._is_healthy(each, now))
        chosen = next(healthy, None) or min(self._targets, key=lambda each: self._failed_at[each])
        self._targets.remove(chosen)
        self._targets.append(chosen)
        return chosen

    def has_healthy(self, now: float) -> bool:
        """Whether a target but the one last given has not failed of late."""
        return any(self._is_healthy(each, now) for each in self._targets[:-1])

    def mark_failed(self, target: str, now: float) -> None:
        self._failed_at[target] = now

    def _is_healthy(self, target: str, now: float) -> bool:
        return target not in self._failed_at or now - self._failed_at[target] >= FAILURE_COOLDOWN_S
