"""Limits of admission: TTFT targets per class, deadlines, and the limits of the queue. Has no clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from penstock.queue.policies.policy import TicketTotals
from penstock.queue.ticket import QueuedTicket

READMISSION_AGE_S = 0.5  # s; a ticket first enqueued earlier was admitted before, by a shard that is lost


@dataclass(frozen=True, slots=True)
class TtftTargets:
    """TTFT targets of the priority classes."""

    by_class: Mapping[int, float] = field(
        default_factory=lambda: MappingProxyType({})
    )  # s; classes without one are absent
    headroom: float = 0.0  # share of the limit that a prediction may take; 0: learned from prediction errors

    def ttft_limit(self, ticket: QueuedTicket, now: float) -> float | None:
        """Return the s that a ticket that arrives now has for its first token; None if there is no limit.

        For a ticket that was admitted before, by this or another shard, only the deadline counts: a rejection would
        break the promise of the earlier admission.
        """
        limits = [ticket.deadline - now] if ticket.deadline else []
        target = self.by_class.get(ticket.priority, 0.0)
        if target and not ticket.is_resumed and now - ticket.enqueued < READMISSION_AGE_S:
            limits.append(target)
        return min(limits, default=None)

    def is_limited_by_deadline(self, ticket: QueuedTicket, arrived: float) -> bool:
        """Whether the deadline, and not the TTFT target, limits a ticket that arrived at `arrived`."""
        return bool(ticket.deadline) and self.ttft_limit(ticket, arrived) == ticket.deadline - arrived


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Largest number of waiting tickets and tokens."""

    max_depth: int  # tickets waiting
    max_tokens: int  # prompt + output tokens waiting

    def fits(self, waiting: TicketTotals, tokens: int) -> bool:
        """Whether one more ticket of `tokens` tokens stays within the limits."""
        return waiting.tickets < self.max_depth and waiting.tokens + tokens <= self.max_tokens

    def excess(self, waiting: TicketTotals, tokens: int) -> TicketTotals:
        """Return by how much one more ticket of `tokens` tokens would exceed the limits."""
        return TicketTotals(
            max(0, waiting.tickets + 1 - self.max_depth),
            max(0, waiting.tokens + tokens - self.max_tokens),
        )
