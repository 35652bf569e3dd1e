"""The file with the operators' state of regions, which all replicas of routing read and any of them writes."""

import asyncio
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from penstock.routing.regions.region_state import RegionState, RegionStateInvalid

log = structlog.get_logger()


@dataclass(slots=True)
class RegionStateFile:
    """The last valid state in a file. A file that disappears or is not valid never replaces it."""

    path: Path
    state: RegionState
    fault: str = ""  # why the present file was refused; logged once

    @classmethod
    async def load(cls, path: Path) -> "RegionStateFile":
        """Read the file; without one, no region is drained. Raises RegionStateInvalid or OSError."""
        try:
            return cls(path, await asyncio.to_thread(_read, path))
        except FileNotFoundError:
            return cls(path, RegionState())

    async def poll(self) -> RegionState:
        """Read the file again. Return the last valid state."""
        try:
            state = await asyncio.to_thread(_read, self.path)
        except FileNotFoundError:
            if self.state != RegionState():
                self._on_fault(f"{self.path} has disappeared")
        except (RegionStateInvalid, OSError) as error:
            self._on_fault(str(error))
        else:
            self._on_read(state)
        return self.state

    async def change(self, changed: Callable[[RegionState], RegionState]) -> RegionState:
        """Write and return the changed state. Raises what `changed` raises, and OSError.

        Of two replicas that write at the same time, the later one wins.
        """
        state = changed(await self.poll())
        if state != self.state:
            await asyncio.to_thread(_write, self.path, state)
            self._on_read(state)
        return state

    def _on_read(self, state: RegionState) -> None:
        self.fault = ""
        if state != self.state:
            self.state = state
            log.info("regions_changed", drained=sorted(state.drained), weights=dict(state.weights))

    def _on_fault(self, fault: str) -> None:
        if fault != self.fault:
            self.fault = fault
            log.error("regions_state_invalid", error=fault, kept=True)


def _read(path: Path) -> RegionState:
    return RegionState.parse(path.read_text())


def _write(path: Path, state: RegionState) -> None:
    """Replace the file at once, so that no reader sees a part of it."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as replacement:
        try:
            replacement.write(state.text())
            replacement.flush()
            os.fsync(replacement.fileno())
            Path(replacement.name).chmod(0o644)
            Path(replacement.name).replace(path)
        except OSError:
            Path(replacement.name).unlink(missing_ok=True)
            raise
