"""Settings of the scheduler."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from penstock.chassis.config import ServiceConfig, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig(ServiceConfig):
    """Settings of `PENSTOCK_SCHEDULER_*`."""

    former_names: ClassVar[Mapping[str, str]] = {"reserve_share": "express_slot_share"}

    listen: str = setting("127.0.0.1:7004", "Address of the gRPC server.", unit="host:port")
    queues: tuple[str, ...] = setting(("127.0.0.1:7003",), "Every queue shard: host:port or dns:///name:port.")
    lease_ttl: float = setting(5.0, "Time from a lease to its START; an unstarted lease then expires.", unit="s")
    look_ahead: int = setting(
        1, "Leases per worker beyond its slots, so that a free slot is taken in the next step.", unit="leases"
    )
    express_slot_share: float = setting(
        1 / 16, "Most slots of a model, as a share, that are kept free for express tickets."
    )
    pod_deletion_costs: bool = setting(
        False,
        "Write the leases of each worker to its pod as its deletion cost, so that Kubernetes stops the idlest ones "
        "first. The instance id of a worker must be the name of its pod, or end with a dot and that name.",
    )
    drain_grace: float = setting(
        5.0, "Longest drain after SIGTERM. Workers attach to other schedulers at once.", unit="s"
    )

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        if not self.queues:
            raise ValueError("queues must name at least one shard as host:port or dns:///name:port")
        if self.lease_ttl <= 0 or self.look_ahead < 0:
            raise ValueError("lease_ttl must be above 0 and look_ahead at least 0")
        if not 0 <= self.express_slot_share <= 0.5:
            raise ValueError("express_slot_share must be from 0 to 0.5")
