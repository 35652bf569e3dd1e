"""Settlements that auth has not confirmed yet."""

from collections.abc import Callable, Container, Iterable

from penstock.edge.lifecycle.effects import Settle
from penstock.edge.upstreams import frames
from penstock.mesh.v1.admission_pb2 import AdmitRequest


class Settlements:
    """Keeps each settlement by reservation id until auth confirms it. Each is sent to the owner of its partition.

    A settlement of an answer is sent at once, because an edge that dies before would leave the answer uncharged.
    `send_later` may delay one of a cancelled request, of which there are many at once, until the next frame of its
    stream. It precedes that frame, because it may free the tokens that the frame needs.
    """

    def __init__(
        self, send: Callable[[int, AdmitRequest], object], send_later: Callable[[int, AdmitRequest], object]
    ) -> None:
        self._send_to_owner = send
        self._send_later = send_later
        self._unconfirmed: dict[str, AdmitRequest] = {}
        self._callbacks: dict[str, Callable[[], None]] = {}  # of those that somebody waits for

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

    def settle(
        self,
        reservation_id: str,
        settlement: Settle,
        partition: int,
        on_settled: Callable[[], None] | None = None,
    ) -> None:
        """Send a settlement. `on_settled` is called once auth has confirmed it."""
        if on_settled:
            self._callbacks[reservation_id] = on_settled
        frame = self._unconfirmed[reservation_id] = frames.settle(reservation_id, settlement, partition)
        if settlement.outcome == "cancelled":
            self._send_later(partition, frame)
        else:
            self._send(frame)

    def on_settled(self, reservation_id: str) -> None:
        self._unconfirmed.pop(reservation_id, None)
        if self._callbacks and (on_settled := self._callbacks.pop(reservation_id, None)):
            on_settled()

    def resend(self, reservation_ids: Iterable[str], is_recordable: Callable[[int], bool]) -> None:
        """Send those of the settlements again that auth has not confirmed, if their owner can record them."""
        for reservation_id in reservation_ids:
            frame = self._unconfirmed.get(reservation_id)
            if frame and is_recordable(frame.settle.partition):
                self._send(frame)

    def resend_to_owners(self, partitions: Container[int]) -> None:
        """Send every unconfirmed settlement of these partitions to their new owners."""
        for frame in self._unconfirmed.values():
            if frame.settle.partition in partitions:
                self._send(frame)

    def _send(self, frame: AdmitRequest) -> None:
        self._send_to_owner(frame.settle.partition, frame)
