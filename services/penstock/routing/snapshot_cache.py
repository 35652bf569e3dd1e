"""The snapshot cache: the snapshot in force, and watchers that are notified of the next one."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.routing.snapshot import Snapshot


@dataclass(slots=True)
class SnapshotCache:
    """The snapshot in force. Each xDS stream watches it."""

    snapshot: Snapshot
    is_closed: bool = False  # the process drains, and all streams end
    watchers: set[asyncio.Event] = field(default_factory=set)
    published: int = 1  # snapshots, with the first

    def publish(self, snapshot: Snapshot) -> bool:
        """Replace the snapshot and notify the watchers. Return False if it equals the one in force."""
        if not snapshot.differs_from(self.snapshot):
            return False
        self.snapshot = snapshot
        self.published += 1
        self._notify()
        return True

    def close(self) -> None:
        self.is_closed = True
        self._notify()

    @contextmanager
    def watch(self) -> Iterator[asyncio.Event]:
        """Yield an event that is set at each publication and at the close; the caller clears it and may set it, too."""
        changed = asyncio.Event()
        self.watchers.add(changed)
        try:
            yield changed
        finally:
            self.watchers.discard(changed)

    def _notify(self) -> None:
        for changed in self.watchers:
            changed.set()

    def __repr__(self) -> str:
        return f"<SnapshotCache {self.snapshot!r}, {len(self.watchers)} streams>"
