"""Settings of the queue: PENSTOCK_QUEUE_*."""

from dataclasses import dataclass

from penstock.chassis.config import ServiceConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueConfig(ServiceConfig):
    """Bounds of one shard."""

    listen: str = "127.0.0.1:7003"
    max_depth: int = 100_000  # tickets waiting; about 1 KB each
    max_tokens: int = 2_000_000_000  # prompt + output tokens waiting
    patience: float = 10.0  # s a ticket waits for a model that is gone; a worker starts again in less
    warm_up: float = 5.0  # s after the start in which a model that nobody serves may be one nobody has named yet
    placed_memory: float = 10.0  # s in which a lease may be recalled; above the schedulers' lease ttl
    drain_grace: float = 5.0  # s; edges enqueue elsewhere at once

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        for name in ("max_depth", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("patience", "warm_up", "placed_memory"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
