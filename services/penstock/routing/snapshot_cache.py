"""The snapshot in force, and a bell for every stream that waits for the next one."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.routing.snapshot import Snapshot


@dataclass(slots=True)
class SnapshotCache:
    snapshot: Snapshot
    is_closed: bool = False  # the streams are to end: this process is going
    watchers: set[asyncio.Event] = field(default_factory=set)

    def publish(self, snapshot: Snapshot) -> bool:
        """Put it in force and wake the streams; false, and nobody wakes, where it says what is said already."""
        if not snapshot.differs_from(self.snapshot):
            return False
        self.snapshot = snapshot
        self._notify()
        return True

    def close(self) -> None:
        self.is_closed = True
        self._notify()

    @contextmanager
    def watch(self) -> Iterator[asyncio.Event]:
        """Rings at each publication and at the end; the holder may ring it for its own reasons."""
        bell = asyncio.Event()
        self.watchers.add(bell)
        try:
            yield bell
        finally:
            self.watchers.discard(bell)

    def _notify(self) -> None:
        for bell in self.watchers:
            bell.set()

    def __repr__(self) -> str:
        return f"<SnapshotBoard {self.snapshot!r}, {len(self.watchers)} streams>"
