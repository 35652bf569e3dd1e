"""Unix time of single processes, set by libfaketime (Debian package `faketime`); monotonic clocks stay true."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from penstock.chassis.config import ConfigError
from penstock.local_mesh.plan import MeshPlan, ProcessSpec

LIBRARY_FOLDERS = (Path("/usr/lib"), Path("/usr/local/lib"))
LIBRARY_PATTERN = "**/faketime/libfaketimeMT.so.1"
REREAD_S = 1  # s within which a process sees a new offset


def faketime_library() -> Path:
    """Raise ConfigError if libfaketime is not installed."""
    found = next((path for folder in LIBRARY_FOLDERS for path in folder.glob(LIBRARY_PATTERN)), None)
    if found is None:
        raise ConfigError("libfaketime is not installed; install the Debian package faketime")
    return found


class FakeClocks:
    """An offset of Unix time for each process of a mesh, which a file in `folder` holds. At first it is 0."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = faketime_library()

    async def insert(self, plan: MeshPlan) -> MeshPlan:
        """Return a plan whose processes, except Envoys, read their offset."""
        return replace(plan, processes=tuple(self._with_clocks(plan)))

    def set_offset(self, process: str, seconds: float) -> None:
        """Step the Unix time of a process within REREAD_S, or let it start with this offset."""
        path = self._path(process)
        new = path.with_suffix(".new")
        new.write_text(f"{seconds:+.3f}\n")
        new.replace(path)  # a reader never sees half a line

    def _with_clocks(self, plan: MeshPlan) -> Iterator[ProcessSpec]:
        for spec in plan.processes:
            if spec.tier == "envoy":
                yield spec
                continue
            self.set_offset(spec.name, 0.0)
            faked = {
                "LD_PRELOAD": str(self._library),
                "FAKETIME_TIMESTAMP_FILE": str(self._path(spec.name)),
                "FAKETIME_CACHE_DURATION": str(REREAD_S),
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
            yield replace(spec, environment={**spec.environment, **faked})

    def _path(self, process: str) -> Path:
        return self._folder / f"{process}.offset"
