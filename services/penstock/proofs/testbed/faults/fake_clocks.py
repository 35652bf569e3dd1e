"""Unix time of single processes of a local mesh, which starts wrong or steps. Monotonic clocks stay true.

The processes import `shifted_time/sitecustomize.py`. libfaketime would shift the time of C code as well, but the waits
of gRPC stall under it (0.9.10), with true clocks too.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from penstock.local_mesh.plan import MeshPlan, ProcessSpec

SHIFTED_TIME = Path(__file__).parent / "shifted_time"


class FakeClocks:
    """An offset of Unix time for each process of a mesh, which a file in `folder` holds. At first it is 0."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def insert(self, plan: MeshPlan) -> MeshPlan:
        """Return a plan whose processes, except Envoys, read their offset."""
        return replace(plan, processes=tuple(self._with_clocks(plan)))

    def set_offset(self, process: str, seconds: float) -> None:
        """Step the Unix time of a process, or let it start with this offset."""
        path = self._path(process)
        new = path.with_suffix(".new")
        new.write_text(f"{seconds}\n")
        new.replace(path)  # a reader never sees half a line

    def _with_clocks(self, plan: MeshPlan) -> Iterator[ProcessSpec]:
        for spec in plan.processes:
            if spec.tier == "envoy":
                yield spec
                continue
            self.set_offset(spec.name, 0.0)
            shifted = {"PYTHONPATH": str(SHIFTED_TIME), "PROOF_TIME_OFFSET_FILE": str(self._path(spec.name))}
            yield replace(spec, environment={**spec.environment, **shifted})

    def _path(self, process: str) -> Path:
        return self._folder / f"{process}.offset"
