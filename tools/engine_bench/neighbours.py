"""How much of the machine others used while an engine was measured: a turn that they disturbed is taken again."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import psutil

MAX_OTHERS_SHARE = 0.05  # of all cores: what a machine does beside a measurement anyway
MAX_ATTEMPTS = 3
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Readings of clocks that only go up, s."""

    wall_s: float
    busy_s: float  # of all cores and processes, what a hypervisor took included
    own_s: float  # of the engine measured and of this process


def read_times(engine_pid: int) -> CpuTimes:
    machine = psutil.cpu_times()
    engine = psutil.Process(engine_pid).cpu_times()
    busy = sum(getattr(machine, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    return CpuTimes(time.monotonic(), busy, engine.user + engine.system + time.process_time())


def others_cpu_share(before: CpuTimes, after: CpuTimes, cores: int) -> float:
    """Share of all cores' time that went to other processes, 0 to 1."""
    others = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return min(1.0, max(0.0, others / ((after.wall_s - before.wall_s) * cores)))


def least_disturbed(measure: Callable[[], Result], read: Callable[[], CpuTimes], cores: int) -> tuple[Result, float]:
    """What the turn gave when others used least of the machine, and their share then. At most `TRIES` turns."""
    best: tuple[Result, float] | None = None
    for _ in range(MAX_ATTEMPTS):
        before = read()
        result = measure()
        share = others_cpu_share(before, read(), cores)
        if best is None or share < best[1]:
            best = result, share
        if share <= MAX_OTHERS_SHARE:
            break
    assert best
    return best
