"""CPU wait: how long threads were runnable without a core, which shows that other processes disturb a measurement.

The figures come from `/proc/PID/task/*/schedstat`; where the system has none, they are 0.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class CpuUse(NamedTuple):
    """s of all threads of some processes since their start."""

    ran_s: float
    waited_s: float  # runnable, without a core

    def since(self, before: "CpuUse") -> "CpuUse":
        return CpuUse(self.ran_s - before.ran_s, self.waited_s - before.waited_s)

    @property
    def waited_per_ran(self) -> float:
        """s waited for each s on a core."""
        return self.waited_s / max(1e-9, self.ran_s)

    @property
    def wait_share(self) -> float:
        """Share of the runnable time that was spent waiting, from 0 to 1."""
        return self.waited_s / max(1e-9, self.ran_s + self.waited_s)


def cpu_use_of(pids: Iterable[int | str]) -> CpuUse:
    """Return the use of the processes `pids`; "self" is this process."""
    ran = waited = 0
    for pid in pids:
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):  # the thread has ended
                nanoseconds = file.read_text().split()
                ran, waited = ran + int(nanoseconds[0]), waited + int(nanoseconds[1])
    return CpuUse(ran / 1e9, waited / 1e9)
