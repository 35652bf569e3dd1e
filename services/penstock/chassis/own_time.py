"""Time in which this process ran, by which silence of others is told from deafness of its own. Pure."""


class OwnTime:
    """Counts what passed between two looks, up to `step`: who did not look for longer stood still, and heard nobody.

    It is to be looked at twice a step at least while it matters, so that a look which is a little late costs nothing.
    """

    def __init__(self, step: float) -> None:
        self._step = step  # s
        self._looked_at: float | None = None
        self._passed = 0.0

    def __repr__(self) -> str:
        return f"<OwnTime {self._passed:.3f} s>"

    def at(self, now: float) -> float:
        """Return the own time, in s; differences alone mean anything. `now` may be of any clock."""
        if self._looked_at is None:
            self._looked_at = self._passed = now
        self._passed += min(max(0.0, now - self._looked_at), self._step)
        self._looked_at = now
        return self._passed
