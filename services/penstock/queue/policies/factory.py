"""Which order a shard keeps, put together from its settings."""

from dataclasses import dataclass
from enum import StrEnum

from penstock.queue.policies.fair_share import WeightedVtc
from penstock.queue.policies.priority_classes import PriorityClasses
from penstock.queue.policies.tenant_queue import SharedQueue, TenantQueue
from penstock.queue.policies.ticket_order import EarliestDeadline, Rank, TicketOrder, TokenAware, fifo


class TenantPolicy(StrEnum):
    """What decides between tenants of one class."""

    FAIR = "fair"  # virtual token counters
    NONE = "none"  # one line for all


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Makes the order of each model."""

    tenant_policy: TenantPolicy = TenantPolicy.FAIR
    ticket_order: TicketOrder = TicketOrder.FIFO
    min_class_share: float = 0.05  # of the tokens served while a lower class waits that are its own
    burst_tokens: float = 0.0  # weighted tokens; tenants come apart by as much, and a quiet one waits little less
    ageing_rate: float = 200.0  # tokens per s, for token_aware
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
