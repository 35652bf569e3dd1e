"""In which order the tickets of one tenant go. A rank is fixed at arrival and in s of the unix clock, lower first.

As ranks are times, how long a ticket can be held up has a bound that needs no clock: nothing that arrives later than
the ticket's rank ever goes before it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from penstock.queue.ticket import QueuedTicket

Rank = Callable[[QueuedTicket], float]


class TicketOrder(StrEnum):
    """Names of the ranks, for settings."""

    FIFO = "fifo"
    TOKEN_AWARE = "token_aware"  # noqa: S105  # no password
    DEADLINE = "deadline"


def fifo(ticket: QueuedTicket) -> float:
    return ticket.enqueued


@dataclass(frozen=True, slots=True)
class TokenAware:
    """Shortest predicted work first, with ageing: each `tokens_per_second` of work count as a second of waiting.

    A ticket waits at most `bound` s for tickets that came after it. Source: shortest job first by predicted length
    (Fu et al. 2024, Efficient LLM Scheduling by Learning to Rank), its starvation guard replaced by that bound.
    """

    tokens_per_second: float = 200.0
    max_delay_s: float = 10.0  # s

    def __call__(self, ticket: QueuedTicket) -> float:
        return ticket.enqueued + min(ticket.work / self.tokens_per_second, self.max_delay_s)


@dataclass(frozen=True, slots=True)
class EarliestDeadline:
    """Earliest deadline first (Liu and Layland 1973); a ticket without one counts as due `default` s after it came."""

    default_deadline_s: float = 30.0  # s

    def __call__(self, ticket: QueuedTicket) -> float:
        return ticket.deadline or ticket.enqueued + self.default_deadline_s
