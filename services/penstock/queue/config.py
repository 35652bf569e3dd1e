"""Settings of the queue."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from penstock.chassis.config import ServiceConfig, setting
from penstock.queue.admission.admission import TtftTargets
from penstock.queue.policies.factory import PolicyConfig, TenantPolicy
from penstock.queue.policies.ticket_order import TicketOrder
from penstock.v1.inference_pb2 import Priority


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueConfig(ServiceConfig):
    """Settings of `PENSTOCK_QUEUE_*`: order and limits of one shard."""

    former_names: ClassVar[Mapping[str, str]] = {
        "between_tenants": "tenant_policy",
        "within_tenant": "ticket_order",
        "class_floor": "min_class_share",
        "burst": "burst_tokens",
        "patience": "unavailable_model_timeout",
        "staffing": "scheduler_wait",
        "placed_memory": "recent_lease_ttl",
    }

    listen: str = setting("127.0.0.1:7003", "Address of the gRPC server.", unit="host:port")
    max_depth: int = setting(
        100_000, "Most waiting tickets, about 1 KB each. A further one fails with QUEUE_FULL.", unit="tickets"
    )
    max_tokens: int = setting(
        2_000_000_000,
        "Most waiting prompt and output tokens. A ticket beyond it fails with QUEUE_TOKENS_FULL.",
        unit="tokens",
    )
    ttft_interactive: float = setting(
        10.0,
        "TTFT target of the class interactive. A ticket that is predicted to miss it is rejected. 0: no target.",
        unit="s",
    )
    ttft_standard: float = setting(60.0, "TTFT target of the class standard. 0: no target.", unit="s")
    ttft_batch: float = setting(0.0, "TTFT target of the class batch. 0: no target.", unit="s")
    ttft_headroom: float = setting(
        0.0, "Share of a TTFT target or deadline that a prediction may take. 0: learned from prediction errors."
    )
    guest_share: float = setting(
        0.5,
        "Share of a TTFT target within which the first token of a guest, a request of another region, must be "
        "predicted, the time outside of this region included.",
    )
    tenant_policy: TenantPolicy = setting(
        TenantPolicy.FAIR,
        "Order between tenants of one class. `fair`: weighted virtual token counters. `none`: one queue for all.",
    )
    ticket_order: TicketOrder = setting(TicketOrder.FIFO, "Order of the tickets of one tenant.")
    min_class_share: float = setting(
        0.05, "Share of the dispatched tokens that a lower class gets while it has waiting tickets."
    )
    burst_tokens: float = setting(
        0.0,
        "Weighted tokens (input counts 1, output 2) that a returning tenant may catch up. The service of two"
        " tenants can differ by as much more.",
        unit="tokens",
    )
    ageing_rate: float = setting(
        200.0, "Order `token_aware`: predicted tokens that count as one second of waiting.", unit="tokens/s"
    )
    ageing_bound: float = setting(
        10.0, "Order `token_aware`: no ticket is passed by a ticket that arrived later by more than this.", unit="s"
    )
    default_deadline: float = setting(
        30.0, "Order `deadline`: due time after arrival of tickets without a deadline.", unit="s"
    )
    unavailable_model_timeout: float = setting(
        10.0, "Longest wait of a ticket for a model that has lost its last worker.", unit="s"
    )
    warm_up: float = setting(
        5.0, "Time after the start in which an unknown model is awaited instead of rejected.", unit="s"
    )
    scheduler_wait: float = setting(
        2.0, "Longest wait after the start for a scheduler with a model, before edges are accepted.", unit="s"
    )
    recent_lease_ttl: float = setting(
        10.0, "Time for which a granted lease can be withdrawn. Longer than the lease TTL of the schedulers.", unit="s"
    )
    drain_grace: float = setting(5.0, "Longest drain after SIGTERM. Edges enqueue at other shards at once.", unit="s")

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        for name in ("max_depth", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if not 0 <= self.min_class_share < 1:
            raise ValueError("min_class_share must be at least 0 and below 1")
        if not 0 <= self.ttft_headroom <= 1:
            raise ValueError("ttft_headroom must be from 0 to 1")
        if not 0 < self.guest_share <= 1:
            raise ValueError("guest_share must be above 0 and at most 1")
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
        return TtftTargets(
            {int(priority): promised for priority, promised in ttft.items()}, self.ttft_headroom, self.guest_share
        )
