"""By when a ticket is to have its first token: its deadline, and what its class is promised. Knows no clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from penstock.queue.policies.policy import TicketTotals
from penstock.queue.ticket import QueuedTicket

READMISSION_AGE_S = 0.5  # s; a ticket first enqueued so long ago was let in before, by a shard that is gone


@dataclass(frozen=True, slots=True)
class TtftTargets:
    by_class: Mapping[int, float] = field(
        default_factory=lambda: MappingProxyType({})
    )  # s by class; none where missing
    headroom: float = 0.0  # share of the time there is that a prediction may take; 0: learnt from how far these are off

    def ttft_limit(self, ticket: QueuedTicket, now: float) -> float | None:
        """Return the s a ticket that comes now has for its first token; None: as long as it takes.

        What was let in before, here or elsewhere, is held to its deadline alone: refusing it now would break what its
        client was told then.
        """
        limits = [ticket.deadline - now] if ticket.deadline else []
        promised = self.by_class.get(ticket.priority, 0.0)
        if promised and not ticket.is_resumed and now - ticket.enqueued < READMISSION_AGE_S:
            limits.append(promised)
        return min(limits, default=None)

    def is_limited_by_deadline(self, ticket: QueuedTicket, arrived: float) -> bool:
        """Tell whether it is the client that set when a ticket is due that arrived then."""
        return bool(ticket.deadline) and self.ttft_limit(ticket, arrived) == ticket.deadline - arrived


@dataclass(frozen=True, slots=True)
class QueueLimits:
    max_depth: int  # tickets waiting
    max_tokens: int  # prompt + output tokens waiting

    def fits(self, waiting: TicketTotals, tokens: int) -> bool:
        """Tell whether one more ticket of `tokens` stays within the bounds."""
        return waiting.tickets < self.max_depth and waiting.tokens + tokens <= self.max_tokens

    def excess(self, waiting: TicketTotals, tokens: int) -> TicketTotals:
        """Return by how much one more ticket of `tokens` would pass the bounds."""
        return TicketTotals(
            max(0, waiting.tickets + 1 - self.max_depth),
            max(0, waiting.tokens + tokens - self.max_tokens),
        )
