"""All that a shard keeps about one model."""

from dataclasses import dataclass, field

from penstock.queue.effects import Head
from penstock.queue.forecast import Forecast
from penstock.queue.outlook import Line
from penstock.queue.pace import Pace
from penstock.queue.policies.order import Ahead, Order
from penstock.queue.waiting import WaitingTicket


@dataclass(slots=True)
class Shelf:
    model: str
    order: Order
    pace: Pace = field(default_factory=Pace)
    forecast: Forecast = field(default_factory=Forecast)
    _prompts: int = 0  # tokens of what waits, like the next
    _work: int = 0
    _tokens: int = 0
    _told: Head | None = None  # as schedulers know it, addressed to none of them; None: they know of no ticket
    _is_due: bool = False  # whether they are to be told even where nothing has changed

    def count(self, ticket: WaitingTicket, sign: int) -> None:
        self._prompts += sign * ticket.prompt_tokens
        self._work += sign * ticket.work
        self._tokens += sign * ticket.tokens

    @property
    def is_urgent(self) -> bool:
        head = self.order.head()
        return head is not None and head[0].goes_first

    def line(self, ahead: Ahead) -> Line:
        """Say what of the work ahead is prompts, and what it is promised, as it is over all that waits."""
        share = ahead.work / self._work if self._work else 0.0
        return Line(ahead.tickets, ahead.work, share * self._prompts, share * self._tokens)

    def tell_again(self) -> None:
        self._is_due = self._told is not None and self._told.waiting > 0

    def news(self) -> Head | None:
        """Return the head where schedulers are to hear of it; they are then taken to know it."""
        found, load = self.order.head(), self.order.load
        if found:
            ticket, key = found
            of_it = ticket.tokens, ticket.resumes, ticket.is_urgent
            head = Head("", self.model, load.tickets, load.tokens, key, *of_it)
        else:
            head = Head("", self.model, load.tickets, load.tokens, None)
        if not self._is_due and (head == self._told or (self._told is None and not found)):
            return None
        self._told, self._is_due = head, False
        return head
