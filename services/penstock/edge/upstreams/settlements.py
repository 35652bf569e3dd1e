"""Settlements that auth has not confirmed yet, and when they are sent to it."""

import asyncio
from collections.abc import Callable, Iterable

from penstock.edge.lifecycle.effects import Settle
from penstock.edge.upstreams import frames
from penstock.edge.upstreams.coalescer import FrameCoalescer
from penstock.mesh.v1.admission_pb2 import AdmitRequest


class Settlements:
    """Keeps each settlement by reservation id until auth confirms it.

    Settlements of many cancelled requests are coalesced. Every other frame is sent through `flush_and_send`, because a
    settlement that is held back may free the tokens which that frame needs.
    """

    def __init__(self, send: Callable[[AdmitRequest], bool], loop: asyncio.AbstractEventLoop) -> None:
        self._send = send
        self._unconfirmed: dict[str, AdmitRequest] = {}
        self._coalescer = FrameCoalescer(send, loop)

    def __len__(self) -> int:
        return len(self._unconfirmed)

    def __contains__(self, reservation_id: str) -> bool:
        return reservation_id in self._unconfirmed

    @property
    def reservation_ids(self) -> set[str]:
        return set(self._unconfirmed)

    def settle(self, reservation_id: str, settlement: Settle) -> None:
        frame = self._unconfirmed[reservation_id] = frames.settle(reservation_id, settlement)
        if settlement.outcome == "cancelled":
            self._coalescer.put(frame)
        else:
            self.flush_and_send(frame)

    def on_settled(self, reservation_id: str) -> None:
        self._unconfirmed.pop(reservation_id, None)

    def resend(self, reservation_ids: Iterable[str]) -> None:
        """Send those of the settlements again that auth has not confirmed."""
        for reservation_id in reservation_ids:
            if frame := self._unconfirmed.get(reservation_id):
                self.flush_and_send(frame)

    def resend_all(self) -> None:
        """Send every unconfirmed settlement to a new stream."""
        for frame in self._unconfirmed.values():
            self.flush_and_send(frame)

    def flush_and_send(self, frame: AdmitRequest) -> bool:
        """Send a frame after the settlements that are held back. Returns whether a replica is connected."""
        self.flush()
        return self._send(frame)

    def flush(self) -> None:
        self._coalescer.flush()

    def discard_held(self) -> None:
        """Drop the frames that are held back, since `resend_all` sends their settlements."""
        self._coalescer.discard()

    def close(self) -> None:
        self._coalescer.close()
