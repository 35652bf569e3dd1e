"""What this worker's prefix cache holds, as its scheduler is to know it. Knows no clock and no stream."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

DELTA_INTERVAL_S = 0.25  # s


class PrefixCacheDelta(NamedTuple):
    added: set[int]
    removed: set[int]
    is_snapshot: bool  # all that was told before is void


@dataclass(slots=True)
class PrefixCacheTracker:
    """Names are the first 8 bytes of the engine's, as tickets have them."""

    held: set[int] = field(default_factory=set)
    _sent: set[int] = field(default_factory=set)
    _changed: set[int] = field(default_factory=set)  # names whose presence may have changed since
    _is_full_due: bool = True  # the stream: nothing was told on it
    _sent_at: float = -math.inf

    def apply(self, changes: Mapping[bytes, bool]) -> None:
        for name, is_held in changes.items():
            short = int.from_bytes(name[:8], "little")
            (self.held.add if is_held else self.held.discard)(short)
            self._changed.add(short)

    def clear(self) -> None:
        """The engine is gone, and its cache with it."""
        self._changed |= self.held
        self.held.clear()

    def on_stream_opened(self) -> None:
        """Another scheduler hears from now on."""
        self._is_full_due = True

    def pop_delta(self, now: float, *, at_once: bool) -> PrefixCacheDelta | None:
        """Return what is news, but not too often unless it is to be told `at_once`."""
        if not at_once and now < self._sent_at + DELTA_INTERVAL_S:
            return None
        before: set[int] = set() if self._is_full_due else self._sent & self._changed
        current = set(self.held) if self._is_full_due else self.held & self._changed
        change = PrefixCacheDelta(current - before, before - current, self._is_full_due)
        if not any(change):
            return None
        self._sent_at, self._is_full_due = now, False
        self._sent = (self._sent if not change.is_snapshot else set()) - change.removed | change.added
        self._changed.clear()
        return change
