"""Settlements that auth has not confirmed yet, and the coalescer that sends many of them together."""

import asyncio
from collections.abc import Callable, Container, Iterable
from typing import Generic, TypeVar

from penstock.edge.lifecycle.effects import Settle
from penstock.edge.upstreams import frames
from penstock.mesh.v1.admission_pb2 import AdmitRequest

Frame = TypeVar("Frame")

COALESCE_WINDOW_S = 0.1  # longer than a burst of cancels lasts
MAX_IMMEDIATE_FRAMES = 8  # frames per window that are sent without delay


class FrameCoalescer(Generic[Frame]):
    """Sends the first `MAX_IMMEDIATE_FRAMES` of a window at once, and the others together at the end of the window.

    Frames that are put here keep their order. Before a frame that must not overtake them, the caller calls `flush`.
    """

    def __init__(self, send: Callable[[Frame], object], loop: asyncio.AbstractEventLoop) -> None:
        self._send = send
        self._loop = loop
        self._held: list[Frame] = []
        self._immediate_frames = 0  # in the present window
        self._window_timer: asyncio.TimerHandle | None = None

    def put(self, frame: Frame) -> None:
        if self._window_timer is None:
            self._immediate_frames = 0
            self._window_timer = self._loop.call_later(COALESCE_WINDOW_S, self._on_window_end)
        if self._immediate_frames < MAX_IMMEDIATE_FRAMES:
            self._immediate_frames += 1
            self._send(frame)
        else:
            self._held.append(frame)

    def flush(self) -> None:
        """Send the frames that are held back."""
        held, self._held = self._held, []
        for frame in held:
            self._send(frame)

    def discard(self, is_discarded: Callable[[Frame], bool]) -> None:
        """Drop those of the frames that are held back which are sent otherwise or whose stream is lost."""
        self._held = [frame for frame in self._held if not is_discarded(frame)]

    def close(self) -> None:
        self._held.clear()
        if self._window_timer:
            self._window_timer.cancel()
            self._window_timer = None

    def _on_window_end(self) -> None:
        self._window_timer = self._loop.call_later(COALESCE_WINDOW_S, self._on_window_end) if self._held else None
        self.flush()


class Settlements:
    """Keeps each settlement by reservation id until auth confirms it. Each is sent to the owner of its partition.

    Settlements of many cancelled requests are coalesced. Before every other frame the caller calls `flush`, because a
    settlement that is held back may free the tokens which that frame needs.
    """

    def __init__(self, send: Callable[[int, AdmitRequest], object], loop: asyncio.AbstractEventLoop) -> None:
        self._send_to_owner = send
        self._unconfirmed: dict[str, AdmitRequest] = {}
        self._coalescer = FrameCoalescer(self._send, loop)

    def __len__(self) -> int:
        return len(self._unconfirmed)

    def __contains__(self, reservation_id: str) -> bool:
        return reservation_id in self._unconfirmed

    @property
    def reservation_ids(self) -> set[str]:
        return set(self._unconfirmed)

    def partition(self, reservation_id: str) -> int | None:
        """Return the partition of a settlement. None if auth has confirmed it."""
        frame = self._unconfirmed.get(reservation_id)
        return frame.settle.partition if frame else None

    def settle(self, reservation_id: str, settlement: Settle, partition: int) -> None:
        frame = self._unconfirmed[reservation_id] = frames.settle(reservation_id, settlement, partition)
        if settlement.outcome == "cancelled":
            self._coalescer.put(frame)
        else:
            self.flush()
            self._send(frame)

    def on_settled(self, reservation_id: str) -> None:
        self._unconfirmed.pop(reservation_id, None)

    def resend(self, reservation_ids: Iterable[str], is_recordable: Callable[[int], bool]) -> None:
        """Send those of the settlements again that auth has not confirmed, if their owner can record them."""
        self.flush()
        for reservation_id in reservation_ids:
            frame = self._unconfirmed.get(reservation_id)
            if frame and is_recordable(frame.settle.partition):
                self._send(frame)

    def resend_to_owners(self, partitions: Container[int]) -> None:
        """Send every unconfirmed settlement of these partitions to their new owners."""
        self.discard_held(partitions)
        for frame in self._unconfirmed.values():
            if frame.settle.partition in partitions:
                self._send(frame)

    def flush(self) -> None:
        """Send the settlements that are held back."""
        self._coalescer.flush()

    def discard_held(self, partitions: Container[int]) -> None:
        """Hold back no settlement of these partitions, since `resend_to_owners` sends it."""
        self._coalescer.discard(lambda frame: frame.settle.partition in partitions)

    def close(self) -> None:
        self._coalescer.close()

    def _send(self, frame: AdmitRequest) -> None:
        self._send_to_owner(frame.settle.partition, frame)
