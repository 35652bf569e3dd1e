"""How much may wait in one shard. Knows no ticket."""

from dataclasses import dataclass

from penstock.queue.policies.policy import TicketTotals


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
