"""How much of the machine others used while an engine was measured: a turn that they disturbed is taken again."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import psutil

QUIET = 0.05  # of all cores: what a machine does beside a measurement anyway
TRIES = 3
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Readings of clocks that only go up, s."""

    wall: float
    busy: float  # of all cores and processes, what a hypervisor took included
    own: float  # of the engine measured and of this process


def read_times(engine_pid: int) -> CpuTimes:
    machine = psutil.cpu_times()
    engine = psutil.Process(engine_pid).cpu_times()
    busy = sum(getattr(machine, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    return CpuTimes(time.monotonic(), busy, engine.user + engine.system + time.process_time())


def others_share(before: CpuTimes, after: CpuTimes, cores: int) -> float:
    """Share of all cores' time that went to other processes, 0 to 1."""
    others = (after.busy - before.busy) - (after.own - before.own)
    return min(1.0, max(0.0, others / ((after.wall - before.wall) * cores)))


def least_disturbed(turn: Callable[[], Result], read: Callable[[], CpuTimes], cores: int) -> tuple[Result, float]:
    """What the turn gave when others used least of the machine, and their share then. At most `TRIES` turns."""
    best: tuple[Result, float] | None = None
    for _ in range(TRIES):
        before = read()
        result = turn()
        share = others_share(before, read(), cores)
        if best is None or share < best[1]:
            best = result, share
        if share <= QUIET:
            break
    assert best
    return best
