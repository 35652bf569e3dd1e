"""Whether the host had cores for a mesh: what its processes waited for one is in every time that they took."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock.proofs.card import Line, told
from penstock.proofs.testbed.testbed import Rig


class OnCores(NamedTuple):
    """Seconds of all threads of some processes, since they began."""

    ran: float
    waited: float  # able to run, while no core was free

    def since(self, before: "OnCores") -> Line:
        ratio = (self.waited - before.waited) / max(1e-9, self.ran - before.ran)
        return told("seconds for which processes waited for a core, for each on one", ratio)


def on_cores(stage: Rig) -> OnCores:
    """Of all processes of the mesh; nothing where the system does not tell."""
    return spent(child.process.pid for child in stage.mesh.processes.children)


def spent(pids: Iterable[int]) -> OnCores:
    ran = waited = 0
    for pid in pids:
        for each in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):  # a thread that ended meanwhile
                nanoseconds = each.read_text().split()
                ran, waited = ran + int(nanoseconds[0]), waited + int(nanoseconds[1])
    return OnCores(ran / 1e9, waited / 1e9)
