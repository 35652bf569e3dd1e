"""The ticks of a service: often while it has work, rarely while it is at rest, because each tick wakes the process."""

import asyncio
from contextlib import suppress

REST_AFTER_S = 1.0  # without an event and without work, so that what an event sets off still ticks often
REST_INTERVAL_S = 1.0  # between two ticks at rest; shards trust statistics for twice this time


class TickPacer:
    """Waits for the next tick. Any event ends the rest at once."""

    def __init__(self, interval: float) -> None:
        self._interval = interval  # s between two ticks under work
        self._quiet_ticks = 0
        self._event = asyncio.Event()

    def on_event(self) -> None:
        """Tick often from now on."""
        self._quiet_ticks = 0
        if not self._event.is_set():
            self._event.set()

    async def wait(self, *, is_idle: bool) -> None:
        """Wait for the next tick. `is_idle`: nothing waits or runs."""
        self._quiet_ticks = self._quiet_ticks + 1 if is_idle else 0
        if self._quiet_ticks * self._interval <= REST_AFTER_S:
            await asyncio.sleep(self._interval)
            return
        self._event.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_INTERVAL_S):
                await self._event.wait()
