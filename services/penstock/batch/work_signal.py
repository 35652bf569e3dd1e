"""Signals of work, by which a process starts at once what it has made itself."""

import asyncio
from contextlib import suppress

LOOK_INTERVAL_S = 1.0  # between looks for work in the store that no signal tells of: of other replicas


class WorkSignal:
    """Wakes one loop that waits for work."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """There may be work now."""
        self._event.set()

    async def wait(self, limit_s: float) -> None:
        """Return when there may be work: at the first signal since the last return, or after `limit_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._event.wait()
        self._event.clear()
