"""Memory, CPU time and life of the processes of a mesh."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from penstock.bench.cpu_wait import CpuUse, cpu_use_of
from penstock.bench.run import process_cpu_s
from penstock.local_mesh.processes import ChildProcess

SAMPLE_INTERVAL_S = 0.25  # s
SETTLE_TIMEOUT_S = 30.0  # s after an attack until memory has to be back
MIN_SETTLE_S = 0.5  # s between two attacks
MAX_GROWTH = 0.10  # of the memory before an attack
TRACEBACK = b"Traceback (most recent call last)"

Memory = Mapping[str, int]  # bytes by process


@dataclass(slots=True)
class MemoryUse:
    """Memory of each process before, during and after one attack."""

    before: Memory
    peak: dict[str, int] = field(default_factory=dict)
    after: Memory = field(default_factory=dict)
    returned_after_s: float = 0.0  # s until every process was back within 10 %; meaningless if one was not

    def record(self, memory: Memory) -> None:
        for name, used in memory.items():
            self.peak[name] = max(used, self.peak.get(name, 0))

    def not_returned(self, memory: Memory) -> list[str]:
        """Return the processes that use more than 10 % beyond the memory before."""
        return [
            name for name, used in memory.items() if name in self.before and used > self.before[name] * (1 + MAX_GROWTH)
        ]

    @property
    def largest_growth(self) -> tuple[str, float]:
        """Return the process that grew most during the attack, and its growth in bytes."""
        grown = {name: peak - self.before.get(name, peak) for name, peak in self.peak.items()}
        return max(grown.items(), key=lambda each: each[1], default=("", 0))


class MeshProcesses:
    """The processes that were alive at the start."""

    def __init__(self, children: Sequence[ChildProcess], folder: Path) -> None:
        self._children = list(children)
        self._folder = folder

    def memory(self) -> Memory:
        """Return the resident bytes of each living process, with its children."""
        return {
            child.spec.name: used
            for child in self._children
            if child.is_alive and (used := _resident(child.process.pid))
        }

    def cpu_s(self) -> float:
        return sum(process_cpu_s(child.process.pid) for child in self._children if child.is_alive)

    def cpu_use(self) -> CpuUse:
        """Return how long threads ran and waited for a core."""
        return cpu_use_of(child.process.pid for child in self._children if child.is_alive)

    def lost(self) -> list[str]:
        return [child.spec.name for child in self._children if not child.is_alive]

    def tracebacks(self) -> int:
        """Return the number of tracebacks in the logs: of input that the code did not expect."""
        return sum(log.read_bytes().count(TRACEBACK) for log in self._folder.glob("*.log"))

    async def sample(self, use: MemoryUse) -> None:
        """Record the memory until cancelled."""
        while True:
            use.record(self.memory())
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def settle(self, use: MemoryUse) -> None:
        """Wait until memory is back, at least 1 s and at most 30 s."""
        ended_at = time.monotonic()
        while (elapsed := time.monotonic() - ended_at) < SETTLE_TIMEOUT_S:
            use.after = self.memory()
            if not use.not_returned(use.after):
                break
            await asyncio.sleep(SAMPLE_INTERVAL_S)
        use.returned_after_s = elapsed
        await asyncio.sleep(max(0.0, MIN_SETTLE_S - elapsed))


def _resident(pid: int) -> int:
    """Return the resident bytes of a process and its children; 0 if it has ended."""
    try:
        process = psutil.Process(pid)
        return sum(int(each.memory_info().rss) for each in (process, *process.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0
