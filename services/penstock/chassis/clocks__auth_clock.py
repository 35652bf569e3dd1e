"""The time that limits and expiries are counted in."""

import time
from collections.abc import Callable


def wall_monotonic() -> Callable[[], float]:
    """Unix seconds that never step: true at the start, because buckets outlive the process, then monotonic."""
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset
