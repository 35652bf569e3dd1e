"""Reservations asked for and not answered: auth may hold them long after the last who waited for one is gone."""

from collections import OrderedDict
from collections.abc import Callable

from penstock.mesh.v1.admission_pb2 import AdmitRequest


class PendingReservations:
    """By ticket. Asked again for nobody, each is answered with its name, under which it is given back.

    Past `most` the oldest are forgotten, which auth then holds until they lapse.
    """

    def __init__(self, *, max_entries: int) -> None:
        self._max_entries = max_entries
        self._frames: OrderedDict[str, AdmitRequest] = OrderedDict()

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, ticket_id: str, frame: AdmitRequest) -> None:
        self._frames[ticket_id] = frame
        self._frames.move_to_end(ticket_id)
        if len(self._frames) > self._max_entries:
            self._frames.popitem(last=False)

    def remove(self, ticket_id: str) -> None:
        self._frames.pop(ticket_id, None)

    def orphaned(self, is_owned: Callable[[str], bool]) -> list[AdmitRequest]:
        return [frame for ticket_id, frame in self._frames.items() if not is_owned(ticket_id)]
