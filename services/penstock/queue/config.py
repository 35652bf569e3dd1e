"""Settings of the queue: PENSTOCK_QUEUE_*."""

from dataclasses import dataclass

from penstock.chassis.config import ServiceConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueConfig(ServiceConfig):
    """Bounds of one shard."""

    listen: str = "127.0.0.1:7003"
    max_depth: int = 100_000  # tickets waiting; about 1 KB each
    max_tokens: int = 2_000_000_000  # prompt + output tokens waiting
    worker_patience: float = 10.0  # s; a rolling restart of the last worker of a model is over by then
    placed_memory: float = 10.0  # s; above the schedulers' lease ttl
    drain_grace: float = 5.0  # s; edges enqueue elsewhere at once

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        for name in ("max_depth", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
