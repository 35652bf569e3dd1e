"""Drain of the own region: whether routing says that an operator has drained it, and when sessions move because of it.

A drain cuts nothing. A drained region accepts no guests, and tells its sessions to move as a draining edge does: their
running requests end here, and the proxies send the next session to another region. A session that comes back, because
no other region is healthy or allowed, is served.
"""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Final

# Proxies learn of a drain when edges do. Sessions that moved before them would come back, and all at once are a burst.
MOVE_DELAYS_S: Final = (1.0, 4.0)  # from the start of a drain to the first and to the last move
MOVE_AGAIN_S: Final = 30.0  # age at which a session that was opened in a drain moves: another region may be healthy
_SPREAD: Final = 0.618034  # of successive numbers: their multiples are evenly distributed modulo 1


def move_at(number: int, *, opened_at: float, drained_at: float) -> float:
    """Return the time at which a session moves in a drain that began at `drained_at`. `number`: its place of all."""
    first, last = MOVE_DELAYS_S
    if opened_at > drained_at + first:
        return opened_at + MOVE_AGAIN_S
    return drained_at + first + (last - first) * (number * _SPREAD % 1.0)


class RegionDrain:
    """The state of the own region at one edge. It lasts until routing reports another one."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._drained_at: float | None = None  # None: the region is not drained
        self._is_drained = asyncio.Event()
        self._numbers = count()

    def __repr__(self) -> str:
        return f"<RegionDrain {'drained' if self.is_on else 'open'}>"

    @property
    def is_on(self) -> bool:
        """Whether the region is drained."""
        return self._drained_at is not None

    def set(self, *, is_on: bool) -> bool:
        """Apply the state that routing has reported. Return whether it is another one than before."""
        if is_on == self.is_on:
            return False
        self._drained_at = self._now() if is_on else None
        if is_on:
            self._is_drained.set()
        else:
            self._is_drained.clear()
        return True

    async def wait_move(self) -> None:
        """Return when a session that begins now has to move to another region."""
        opened_at, number = self._now(), next(self._numbers)
        while True:
            await self._is_drained.wait()
            drained_at = self._drained_at
            assert drained_at is not None, "the event is set while the region is drained"
            await asyncio.sleep(move_at(number, opened_at=opened_at, drained_at=drained_at) - self._now())
            if self._drained_at == drained_at:
                return
