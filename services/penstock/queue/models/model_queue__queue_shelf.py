"""All that a shard keeps about one model."""

from dataclasses import dataclass, field

from penstock.queue.effects import Head
from penstock.queue.policies.policy import QueuePosition, SchedulingPolicy
from penstock.queue.prediction.forecast import Forecast
from penstock.queue.prediction.throughput import Throughput
from penstock.queue.prediction.ttft_model import WorkAhead
from penstock.queue.ticket import QueuedTicket


@dataclass(slots=True)
class ModelQueue:
    model: str
    policy: SchedulingPolicy
    throughput: Throughput = field(default_factory=Throughput)
    forecast: Forecast = field(default_factory=Forecast)
    _prompt_tokens: int = 0  # tokens of what waits, like the next
    _work: int = 0
    _tokens: int = 0
    _last_sent_head: Head | None = (
        None  # as schedulers know it, addressed to none of them; None: they know of no ticket
    )
    _is_head_dirty: bool = False  # whether they are to be told even where nothing has changed

    def adjust_totals(self, ticket: QueuedTicket, sign: int) -> None:
        self._prompt_tokens += sign * ticket.prompt_tokens
        self._work += sign * ticket.work
        self._tokens += sign * ticket.tokens

    @property
    def has_expedited_head(self) -> bool:
        head = self.policy.head()
        return head is not None and head[0].is_expedited

    def work_ahead(self, position: QueuePosition) -> WorkAhead:
        """Say what of the work ahead is prompts, and what it is promised, as it is over all that waits."""
        share = position.work / self._work if self._work else 0.0
        return WorkAhead(position.tickets, position.work, share * self._prompt_tokens, share * self._tokens)

    def mark_head_dirty(self) -> None:
        self._is_head_dirty = self._last_sent_head is not None and self._last_sent_head.waiting > 0

    def head_update(self) -> Head | None:
        """Return the head where schedulers are to hear of it; they are then taken to know it."""
        found, load = self.policy.head(), self.policy.totals
        if found:
            ticket, key = found
            of_it = ticket.tokens, ticket.is_resumed, ticket.is_express
            head = Head("", self.model, load.tickets, load.tokens, key, *of_it)
        else:
            head = Head("", self.model, load.tickets, load.tokens, None)
        if not self._is_head_dirty and (head == self._last_sent_head or (self._last_sent_head is None and not found)):
            return None
        self._last_sent_head, self._is_head_dirty = head, False
        return head
