"""Reservations asked for and not answered: auth may hold them long after the last who waited for one is gone."""

from collections import OrderedDict
from collections.abc import Callable

from penstock.mesh.v1.admission_pb2 import AdmitRequest


class Unanswered:
    """By ticket. Asked again for nobody, each is answered with its name, under which it is given back.

    Past `most` the oldest are forgotten, which auth then holds until they lapse.
    """

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._asks: OrderedDict[str, AdmitRequest] = OrderedDict()

    def __len__(self) -> int:
        return len(self._asks)

    def asked(self, ticket_id: str, frame: AdmitRequest) -> None:
        self._asks[ticket_id] = frame
        self._asks.move_to_end(ticket_id)
        if len(self._asks) > self._most:
            self._asks.popitem(last=False)

    def answered(self, ticket_id: str) -> None:
        self._asks.pop(ticket_id, None)

    def of_nobody(self, is_waited_for: Callable[[str], bool]) -> list[AdmitRequest]:
        return [frame for ticket_id, frame in self._asks.items() if not is_waited_for(ticket_id)]
