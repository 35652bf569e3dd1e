"""Repeats a measurement that other processes disturbed, as shown by the CPU wait of the measured engine."""

from collections.abc import Callable
from typing import TypeVar

from penstock.bench.cpu_wait import CpuUse

MAX_WAIT_SHARE = 0.05  # of the engine's runnable time
MAX_ATTEMPTS = 3
Result = TypeVar("Result")


def least_disturbed(measure: Callable[[], Result], read_use: Callable[[], CpuUse]) -> tuple[Result, float]:
    """Measure up to `MAX_ATTEMPTS` times; return the least disturbed result and its share of CPU wait, 0 to 1."""
    best: tuple[Result, float] | None = None
    for _ in range(MAX_ATTEMPTS):
        before = read_use()
        result = measure()
        share = read_use().since(before).wait_share
        if best is None or share < best[1]:
            best = result, share
        if share <= MAX_WAIT_SHARE:
            break
    assert best
    return best
