"""Settings of the queue: PENSTOCK_QUEUE_*."""

from dataclasses import dataclass

from penstock.chassis.config import ServiceConfig
from penstock.queue.policies.choice import Between, Choice
from penstock.queue.policies.ranks import Within


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueConfig(ServiceConfig):
    """Order and bounds of one shard."""

    listen: str = "127.0.0.1:7003"
    max_depth: int = 100_000  # tickets waiting; about 1 KB each
    max_tokens: int = 2_000_000_000  # prompt + output tokens waiting
    between_tenants: Between = Between.FAIR  # fair: weighted virtual token counters; none: one line for all
    within_tenant: Within = Within.FIFO  # fifo, token_aware or deadline
    class_floor: float = 0.05  # of the tokens that go while a lower class waits, those that are its own
    ageing_rate: float = 200.0  # tokens/s; token_aware: so much predicted work counts as a second of waiting
    ageing_bound: float = 10.0  # s; token_aware: nothing that came so much later goes first
    default_deadline: float = 30.0  # s; deadline: when a ticket that has none counts as due
    patience: float = 10.0  # s a ticket waits for a model that is gone; a worker starts again in less
    warm_up: float = 5.0  # s after the start in which a model that nobody serves may be one nobody has named yet
    placed_memory: float = 10.0  # s in which a lease may be recalled; above the schedulers' lease ttl
    drain_grace: float = 5.0  # s; edges enqueue elsewhere at once

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        for name in ("max_depth", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if not 0 <= self.class_floor < 1:
            raise ValueError("class_floor must be at least 0 and below 1")
        for name in ("ageing_rate", "default_deadline"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")
        for name in ("ageing_bound", "patience", "warm_up", "placed_memory"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")

    @property
    def order(self) -> Choice:
        return Choice(
            between=self.between_tenants,
            within=self.within_tenant,
            class_floor=self.class_floor,
            ageing_rate=self.ageing_rate,
            ageing_bound=self.ageing_bound,
            default_deadline=self.default_deadline,
        )
