"""The place of the operators' state of regions, which all replicas of routing read and any of them writes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from penstock.routing.regions.region_state import RegionState, RegionStateInvalid

log = structlog.get_logger()

MAX_ATTEMPTS = 5  # of a change while other replicas change the state as well


class StateConflict(OSError):
    """Another replica has changed the state since it was read."""


@dataclass(frozen=True, slots=True)
class StoredText:
    """The text of the state, and its version if the place has versions."""

    text: str | None  # None: there is none
    version: str = ""


class StatePlace(Protocol):
    """A place that holds the text. Both methods block and raise OSError."""

    def read(self) -> StoredText:
        """Return the present text."""

    def write(self, text: str, version: str) -> None:
        """Replace the text that was read with `version`. Raises StateConflict if the place has another version."""


@dataclass(slots=True)
class RegionStateStore:
    """The last valid state in a place. A text that disappears or is not valid never replaces it."""

    place: StatePlace
    state: RegionState
    fault: str = ""  # why the present text was refused; logged once

    @classmethod
    async def load(cls, place: StatePlace) -> "RegionStateStore":
        """Read the text; without one, no region is drained. Raises RegionStateInvalid or OSError."""
        stored = await asyncio.to_thread(place.read)
        return cls(place, RegionState() if stored.text is None else RegionState.parse(stored.text))

    async def poll(self) -> RegionState:
        """Read the text again. Return the last valid state."""
        return (await self._read())[0]

    async def change(self, changed: Callable[[RegionState], RegionState]) -> RegionState:
        """Write and return the changed state. Raises what `changed` raises, and OSError."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            before, version = await self._read()
            state = changed(before)
            if state == before:
                return state
            try:
                await asyncio.to_thread(self.place.write, state.text(), version)
            except StateConflict:
                if attempt == MAX_ATTEMPTS:
                    raise
            else:
                self._on_read(state)
                return state
        raise AssertionError("the last attempt returns or raises")

    async def _read(self) -> tuple[RegionState, str]:
        """Return the last valid state, and the version of the present text."""
        stored = StoredText(None)
        try:
            stored = await asyncio.to_thread(self.place.read)
            if stored.text is not None:
                self._on_read(RegionState.parse(stored.text))
            elif self.state != RegionState():
                self._on_fault(f"{self.place} has no state any more")
        except (RegionStateInvalid, OSError) as error:
            self._on_fault(str(error))
        return self.state, stored.version

    def _on_read(self, state: RegionState) -> None:
        self.fault = ""
        if state != self.state:
            self.state = state
            log.info("regions_changed", drained=sorted(state.drained), weights=dict(state.weights))

    def _on_fault(self, fault: str) -> None:
        if fault != self.fault:
            self.fault = fault
            log.error("regions_state_invalid", error=fault, kept=True)
