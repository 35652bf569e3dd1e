"""Settings of the queue: PENSTOCK_QUEUE_*."""

from dataclasses import dataclass

from penstock.chassis.config import ServiceConfig
from penstock.queue.admission.limits import TtftTargets
from penstock.queue.policies.factory import PolicyConfig, TenantPolicy
from penstock.queue.policies.ticket_order import TicketOrder
from penstock.v1.inference_pb2 import Priority


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueConfig(ServiceConfig):
    """Order and bounds of one shard."""

    listen: str = "127.0.0.1:7003"
    max_depth: int = 100_000  # tickets waiting; about 1 KB each
    max_tokens: int = 2_000_000_000  # prompt + output tokens waiting
    ttft_interactive: float = (
        10.0  # s to the first token, promised to its class; what cannot have it is refused; 0: none
    )
    ttft_standard: float = 60.0  # s
    ttft_batch: float = 0.0  # s; batch waits for as long as it takes
    ttft_headroom: float = 0.0  # share of promise or deadline that a prediction may take; 0: learnt from its errors
    tenant_policy: TenantPolicy = TenantPolicy.FAIR  # fair: weighted virtual token counters; none: one line for all
    ticket_order: TicketOrder = TicketOrder.FIFO  # fifo, token_aware or deadline
    min_class_share: float = 0.05  # of the tokens that go while a lower class waits, those that are its own
    burst_tokens: float = (
        0.0  # weighted tokens (1 in, 2 out) that a returning tenant may catch up; tenants come so far apart
    )
    ageing_rate: float = 200.0  # tokens/s; token_aware: so much predicted work counts as a second of waiting
    ageing_bound: float = 10.0  # s; token_aware: nothing that came so much later goes first
    default_deadline: float = 30.0  # s; deadline: when a ticket that has none counts as due
    unavailable_model_timeout: float = 10.0  # s a ticket waits for a model that is gone; a worker starts again in less
    warm_up: float = 5.0  # s after the start in which a model that nobody serves may be one nobody has named yet
    scheduler_wait: float = (
        2.0  # s after the start for a scheduler to name a model; edges are greeted then at the latest
    )
    recent_lease_ttl: float = 10.0  # s in which a lease may be recalled; above the schedulers' lease ttl
    drain_grace: float = 5.0  # s; edges enqueue elsewhere at once

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        for name in ("max_depth", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if not 0 <= self.min_class_share < 1:
            raise ValueError("min_class_share must be at least 0 and below 1")
        if not 0 <= self.ttft_headroom <= 1:
            raise ValueError("ttft_headroom must be from 0 to 1")
        for name in ("ageing_rate", "default_deadline"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")
        for name in ("ttft_interactive", "ttft_standard", "ttft_batch"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        for name in (
            "burst_tokens",
            "ageing_bound",
            "unavailable_model_timeout",
            "warm_up",
            "scheduler_wait",
            "recent_lease_ttl",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")

    @property
    def policy(self) -> PolicyConfig:
        return PolicyConfig(
            tenant_policy=self.tenant_policy,
            ticket_order=self.ticket_order,
            min_class_share=self.min_class_share,
            burst_tokens=self.burst_tokens,
            ageing_rate=self.ageing_rate,
            ageing_bound=self.ageing_bound,
            default_deadline=self.default_deadline,
        )

    @property
    def ttft_targets(self) -> TtftTargets:
        ttft = {
            Priority.PRIORITY_INTERACTIVE: self.ttft_interactive,
            Priority.PRIORITY_STANDARD: self.ttft_standard,
            Priority.PRIORITY_BATCH: self.ttft_batch,
        }
        return TtftTargets({int(priority): promised for priority, promised in ttft.items()}, self.ttft_headroom)
