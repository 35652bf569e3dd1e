"""Open `reserve` frames, each with the replica that received it."""

from collections.abc import Callable

from penstock.edge.auth_fallback.pending import PendingReservations, SentReservation
from penstock.edge.auth_fallback.watch import OutageWatch
from penstock.edge.upstreams.auth_streams import AuthStreams
from penstock.mesh.v1.admission_pb2 import AdmitRequest


class Reservations:
    """Sends each `reserve` frame to the owner of its partition, and keeps it until it is answered."""

    def __init__(self, streams: AuthStreams, watch: OutageWatch, *, max_entries: int) -> None:
        self._streams = streams
        self._watch = watch
        self._pending = PendingReservations(max_entries=max_entries)

    def is_open(self, ticket_id: str) -> bool:
        return ticket_id in self._pending

    def get(self, ticket_id: str) -> SentReservation | None:
        return self._pending.get(ticket_id)

    def address(self, ticket_id: str) -> str:
        """Return the replica that received the frame last. Empty if none did, or if that one is not the owner."""
        sent = self._pending.get(ticket_id)
        return sent.address if sent else ""

    def send(self, ticket_id: str, frame: AdmitRequest, partition: int) -> bool:
        """Send a frame to the owner of its partition. Returns false if there is none, or if its stream is lost."""
        address = self._streams.owner(partition)
        former = self.address(ticket_id)
        if former and former != address:
            self._watch.on_request_moved(former, ticket_id)
        self._watch.on_request_sent(address, ticket_id)
        is_sent = self._streams.send(address, frame)
        if is_sent:
            self._pending.add(ticket_id, SentReservation(frame, partition, address))
        return is_sent

    def remove(self, ticket_id: str) -> None:
        self._pending.remove(ticket_id)

    def on_not_owner(self, ticket_id: str, address: str, partition: int) -> None:
        """Record the partition of a frame that the replica at `address` has not accepted."""
        if sent := self._pending.get(ticket_id):
            holder = "" if sent.address == address else sent.address
            self._pending.update(ticket_id, sent._replace(partition=partition, address=holder))

    def resend_orphaned(self, is_owned: Callable[[str], bool], is_sent: Callable[[int], bool]) -> None:
        """Send the frames of requests that are done, so that auth returns reservations to settle.

        `is_owned` names tickets that are not done, and `is_sent` the partitions.
        """
        for ticket_id, sent in self._pending.orphaned(is_owned):
            if is_sent(sent.partition):
                self.send(ticket_id, sent.frame, sent.partition)
