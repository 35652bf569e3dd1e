"""Whether the host had cores for a mesh: what its processes waited for one is in every time that they took."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock.proofs.card import CardLine, reported
from penstock.proofs.testbed.testbed import Testbed


class CpuWait(NamedTuple):
    """Seconds of all threads of some processes, since they began."""

    ran_s: float
    waited_s: float  # able to run, while no core was free

    def ratio_line(self, before: "CpuWait") -> CardLine:
        ratio = (self.waited_s - before.waited_s) / max(1e-9, self.ran_s - before.ran_s)
        return reported("seconds for which processes waited for a core, for each on one", ratio)


def mesh_cpu_wait(testbed: Testbed) -> CpuWait:
    """Of all processes of the mesh; nothing where the system does not tell."""
    return cpu_wait_of(child.process.pid for child in testbed.mesh.processes.children)


def cpu_wait_of(pids: Iterable[int]) -> CpuWait:
    ran = waited = 0
    for pid in pids:
        for each in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):  # a thread that ended meanwhile
                nanoseconds = each.read_text().split()
                ran, waited = ran + int(nanoseconds[0]), waited + int(nanoseconds[1])
    return CpuWait(ran / 1e9, waited / 1e9)
