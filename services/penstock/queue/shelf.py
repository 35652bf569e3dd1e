"""All that a shard keeps about one model."""

from dataclasses import dataclass, field

from penstock.queue.effects import Head
from penstock.queue.forecast import Forecast
from penstock.queue.pace import Pace
from penstock.queue.policies.order import Order


@dataclass(slots=True)
class Shelf:
    model: str
    order: Order
    pace: Pace = field(default_factory=Pace)
    forecast: Forecast = field(default_factory=Forecast)
    _told: Head | None = None  # as schedulers know it, addressed to none of them; None: they know of no ticket
    _is_due: bool = False  # whether they are to be told even where nothing has changed

    def tell_again(self) -> None:
        self._is_due = self._told is not None and self._told.waiting > 0

    def news(self) -> Head | None:
        """Return the head where schedulers are to hear of it; they are then taken to know it."""
        found, load = self.order.head(), self.order.load
        ticket, key = found or (None, None)
        head = Head("", self.model, load.tickets, load.tokens, key, ticket.tokens if ticket else 0)
        if not self._is_due and (head == self._told or (self._told is None and not found)):
            return None
        self._told, self._is_due = head, False
        return head
