"""Time for the edge's cores."""

import time


class WallMonotonicClock:
    """Unix time in seconds that never goes back: read once from the system's clock, then counted on."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        return time.monotonic() + self._offset
