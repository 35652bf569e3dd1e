"""Ranks of the tickets of one tenant. A rank is fixed at arrival, in s of the Unix clock; the lowest is served first.

Because ranks are times, the delay of a ticket has a bound without a clock: a ticket that arrives after this ticket's
rank never passes it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from penstock.queue.ticket import QueuedTicket

Rank = Callable[[QueuedTicket], float]


class TicketOrder(StrEnum):
    """Names of the ranks, for settings."""

    FIFO = "fifo"
    TOKEN_AWARE = "token_aware"  # noqa: S105  # not a password
    DEADLINE = "deadline"


def fifo(ticket: QueuedTicket) -> float:
    return ticket.enqueued


@dataclass(frozen=True, slots=True)
class TokenAware:
    """Shortest predicted work first, with ageing: `tokens_per_second` tokens of work count as one second of waiting.

    A ticket waits at most `max_delay_s` for tickets that arrived after it. Source: shortest job first by predicted
    length (Fu et al. 2024, Efficient LLM Scheduling by Learning to Rank), with this bound instead of its starvation
    guard.
    """

    tokens_per_second: float = 200.0
    max_delay_s: float = 10.0  # s

    def __call__(self, ticket: QueuedTicket) -> float:
        return ticket.enqueued + min(ticket.work / self.tokens_per_second, self.max_delay_s)


@dataclass(frozen=True, slots=True)
class EarliestDeadline:
    """Earliest deadline first (Liu and Layland 1973). A ticket without a deadline is due after `default_deadline_s`."""

    default_deadline_s: float = 30.0  # s

    def __call__(self, ticket: QueuedTicket) -> float:
        return ticket.deadline or ticket.enqueued + self.default_deadline_s
