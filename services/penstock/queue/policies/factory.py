"""Scheduling policy of a shard, built from its settings."""

from dataclasses import dataclass
from enum import StrEnum

from penstock.queue.policies.fair_share import WeightedVtc
from penstock.queue.policies.priority_classes import PriorityClasses
from penstock.queue.policies.tenant_queue import SharedQueue, TenantQueue
from penstock.queue.policies.ticket_order import EarliestDeadline, Rank, TicketOrder, TokenAware, fifo


class TenantPolicy(StrEnum):
    """Order between tenants of one class, for settings."""

    FAIR = "fair"  # weighted virtual token counters
    NONE = "none"  # one queue for all tenants


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Settings of the policy. A call creates the policy of one model."""

    tenant_policy: TenantPolicy = TenantPolicy.FAIR
    ticket_order: TicketOrder = TicketOrder.FIFO
    min_class_share: float = 0.05  # share of the dispatched tokens that a lower class gets while it waits
    burst_tokens: float = 0.0  # weighted tokens that a returning tenant may catch up
    ageing_rate: float = 200.0  # tokens/s, for token_aware
    ageing_bound: float = 10.0  # s, for token_aware
    default_deadline: float = 30.0  # s, for deadline

    def __call__(self) -> PriorityClasses:
        return PriorityClasses(self._new_tenant_queue, self.min_class_share)

    def _new_tenant_queue(self) -> TenantQueue:
        return (
            WeightedVtc(self._rank, self.burst_tokens)
            if self.tenant_policy is TenantPolicy.FAIR
            else SharedQueue(self._rank)
        )

    @property
    def _rank(self) -> Rank:
        match self.ticket_order:
            case TicketOrder.TOKEN_AWARE:
                return TokenAware(self.ageing_rate, self.ageing_bound)
            case TicketOrder.DEADLINE:
                return EarliestDeadline(self.default_deadline)
            case _:
                return fifo
