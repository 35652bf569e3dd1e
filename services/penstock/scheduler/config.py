"""Settings of the scheduler: PENSTOCK_SCHEDULER_*."""

from dataclasses import dataclass

from penstock.chassis.config import ServiceConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig(ServiceConfig):
    """Where the shards are, and how far ahead of the workers to place."""

    listen: str = "127.0.0.1:7004"
    queues: tuple[str, ...] = ("127.0.0.1:7003",)  # every shard: host:port or dns:///name:port
    lease_ttl: float = 5.0  # s from lease to START; an edge answers in milliseconds, a stalled one in a second
    look_ahead: int = 1  # leases per worker beyond its slots, so that the next step refills a slot that falls free
    express_slot_share: float = (
        1 / 16
    )  # of all slots of a model; at most so many are kept for tenants inside their shares
    drain_grace: float = 5.0  # s; workers attach elsewhere at once

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        if not self.queues:
            raise ValueError("queues must name at least one shard as host:port or dns:///name:port")
        if self.lease_ttl <= 0 or self.look_ahead < 0:
            raise ValueError("lease_ttl must be above 0 and look_ahead at least 0")
        if not 0 <= self.express_slot_share <= 0.5:
            raise ValueError("express_slot_share must be from 0 to 0.5")
