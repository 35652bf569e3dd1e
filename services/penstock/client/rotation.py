"""Which of several targets comes next: each in turn, but for those that have just failed."""

COOLDOWN = 1.0  # s; during which a target that failed is asked only if all others have failed as well


class Rotation:
    def __init__(self, targets: list[str]) -> None:
        self._targets = targets  # the next first
        self._failed_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._targets)

    def next(self, now: float) -> str:
        """The next that has not failed of late, or else the one whose failure is the longest ago."""
        well = (each for each in self._targets if now - self._failed_at.get(each, -COOLDOWN) >= COOLDOWN)
        chosen = next(well, None) or min(self._targets, key=lambda each: self._failed_at[each])
        self._targets.remove(chosen)
        self._targets.append(chosen)
        return chosen

    def failed(self, target: str, now: float) -> None:
        self._failed_at[target] = now
