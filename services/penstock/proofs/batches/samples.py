"""Samples of the processes of a mesh: peak memory, CPU time, and tokens that workers computed, over restarts."""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import grpc
import psutil

from penstock.bench.run import process_cpu_s
from penstock.local_mesh.processes import ChildProcess
from penstock.proofs.testbed.testbed import Testbed


class ComputedTokens(NamedTuple):
    """Tokens that an engine has computed."""

    generated: float = 0.0
    prefilled: float = 0.0


@dataclass(slots=True)
class MeshSamples:
    """The latest values of each process that has run, by its id. A process is sampled before it is killed."""

    testbed: Testbed
    peak_bytes: dict[int, int] = field(default_factory=dict)  # of batch processes
    _tiers: dict[int, str] = field(default_factory=dict)
    _cpu_s: dict[int, float] = field(default_factory=dict)
    _cpu_before: dict[int, float] = field(default_factory=dict)
    _tokens: dict[int, ComputedTokens] = field(default_factory=dict)

    async def take(self) -> None:
        for child in list(self.testbed.mesh.processes.children):
            with suppress(OSError, psutil.NoSuchProcess, grpc.aio.AioRpcError):  # it has just died
                await self._take_one(child)

    async def _take_one(self, child: ChildProcess) -> None:
        pid, spec = child.process.pid, child.spec
        self._tiers[pid], self._cpu_s[pid] = spec.tier, process_cpu_s(pid)
        if spec.tier == "batch":
            self.peak_bytes[pid] = peak_memory(pid)
        if spec.tier == "worker":
            figures = await self.testbed.figures_of(spec.admin_address)
            earlier = self._tokens.get(pid, ComputedTokens())
            now = ComputedTokens(figures["tokens_generated"], figures["tokens_prefilled"])
            self._tokens[pid] = ComputedTokens(*map(max, earlier, now))  # a process that restarted has fewer

    def start(self) -> None:
        """Count CPU time from the latest sample on."""
        self._cpu_before = dict(self._cpu_s)

    @property
    def computed(self) -> ComputedTokens:
        """Tokens since the start of the mesh."""
        found = self._tokens.values()
        return ComputedTokens(sum(each.generated for each in found), sum(each.prefilled for each in found))

    @property
    def cpu_s(self) -> dict[str, float]:
        """CPU time since `start` by tier, in s; for a process that started later, since its start."""
        used: Counter[str] = Counter()
        for pid, seconds in self._cpu_s.items():
            used[self._tiers[pid]] += seconds - self._cpu_before.get(pid, 0.0)  # type: ignore[assignment]  # seconds
        return dict(used)


def peak_memory(pid: int) -> int:
    """Return the most resident memory that a process has had, in bytes. Raises OSError if there is no such process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise ProcessLookupError(pid)
