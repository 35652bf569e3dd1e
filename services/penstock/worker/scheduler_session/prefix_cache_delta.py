"""Changes of the worker's prefix cache since the last report to its scheduler. Knows no clock and no stream."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

DELTA_INTERVAL_S = 0.25


class PrefixCacheDelta(NamedTuple):
    added: set[int]
    removed: set[int]
    is_snapshot: bool  # replaces all earlier reports


@dataclass(slots=True)
class PrefixCacheTracker:
    """Tracks the hashes in the cache and those reported. Hashes are shortened to 8 bytes, as in tickets."""

    held: set[int] = field(default_factory=set)
    _sent: set[int] = field(default_factory=set)
    _changed: set[int] = field(default_factory=set)  # hashes whose presence may have changed since the last report
    _is_full_due: bool = True  # the next report must be a snapshot
    _sent_at: float = -math.inf

    def apply(self, changes: Mapping[bytes, bool]) -> None:
        for block_hash, is_held in changes.items():
            short_hash = int.from_bytes(block_hash[:8], "little")
            (self.held.add if is_held else self.held.discard)(short_hash)
            self._changed.add(short_hash)

    def clear(self) -> None:
        """Remove all hashes, after the engine was lost."""
        self._changed |= self.held
        self.held.clear()

    def on_stream_opened(self) -> None:
        """Make the next report a snapshot, for another scheduler."""
        self._is_full_due = True

    def pop_delta(self, now: float, *, at_once: bool) -> PrefixCacheDelta | None:
        """Return the changes; None if there are none, or within `DELTA_INTERVAL_S` of the last unless `at_once`."""
        if not at_once and now < self._sent_at + DELTA_INTERVAL_S:
            return None
        before: set[int] = set() if self._is_full_due else self._sent & self._changed
        current = set(self.held) if self._is_full_due else self.held & self._changed
        delta = PrefixCacheDelta(current - before, before - current, self._is_full_due)
        if not any(delta):
            return None
        self._sent_at, self._is_full_due = now, False
        self._sent = (self._sent if not delta.is_snapshot else set()) - delta.removed | delta.added
        self._changed.clear()
        return delta
