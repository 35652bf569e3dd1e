"""What this worker's prefix cache holds, as its scheduler is to know it. Knows no clock and no stream."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

TOLD_EVERY = 0.25  # s


class CacheChange(NamedTuple):
    added: set[int]
    removed: set[int]
    anew: bool  # all that was told before is void


@dataclass(slots=True)
class CacheNews:
    """Names are the first 8 bytes of the engine's, as tickets have them."""

    held: set[int] = field(default_factory=set)
    _told: set[int] = field(default_factory=set)
    _touched: set[int] = field(default_factory=set)  # names whose presence may have changed since
    _is_new: bool = True  # the stream: nothing was told on it
    _told_at: float = -math.inf

    def note(self, news: Mapping[bytes, bool]) -> None:
        for name, is_held in news.items():
            short = int.from_bytes(name[:8], "little")
            (self.held.add if is_held else self.held.discard)(short)
            self._touched.add(short)

    def clear(self) -> None:
        """The engine is gone, and its cache with it."""
        self._touched |= self.held
        self.held.clear()

    def begin(self) -> None:
        """Another scheduler hears from now on."""
        self._is_new = True

    def take(self, now: float, *, at_once: bool) -> CacheChange | None:
        """Return what is news, but not too often unless it is to be told `at_once`."""
        if not at_once and now < self._told_at + TOLD_EVERY:
            return None
        before: set[int] = set() if self._is_new else self._told & self._touched
        current = set(self.held) if self._is_new else self.held & self._touched
        change = CacheChange(current - before, before - current, self._is_new)
        if not any(change):
            return None
        self._told_at, self._is_new = now, False
        self._told = (self._told if not change.anew else set()) - change.removed | change.added
        self._touched.clear()
        return change
