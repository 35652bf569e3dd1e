"""The timer of a service's ticks. There is one, at the earliest due time, because each tick wakes the process."""

import asyncio
import math

from penstock.chassis.streams.ticks import delay_to_tick

MIN_ADVANCE_S = 0.005  # a due time that is earlier by less does not move the timer: its clock is read apart from ours


class TickTimer:
    """Wakes the ticking task at the earliest due time since its last tick."""

    def __init__(self) -> None:
        self._timer: asyncio.Handle | None = None
        self._due_at = math.inf  # s of the loop; infinite without a timer
        self._is_due = asyncio.Event()

    def expedite(self, delay_s: float) -> None:
        """Tick in `delay_s`, or up to a tick of streams earlier, unless a tick is due before."""
        loop = asyncio.get_running_loop()
        due_at = loop.time() + delay_to_tick(max(0.0, delay_s))
        if due_at < self._due_at - MIN_ADVANCE_S:
            if self._timer:
                self._timer.cancel()
            self._due_at, self._timer = due_at, loop.call_at(due_at, self._fire)

    async def wait(self) -> None:
        """Wait for the next tick. Its caller states the due time of the one after it with `expedite`."""
        await self._is_due.wait()
        self._is_due.clear()

    def _fire(self) -> None:
        self._timer, self._due_at = None, math.inf
        self._is_due.set()
