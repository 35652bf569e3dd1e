"""Log lines of a scheduler: workers that attach and leave, models that gain and lose their workers, and the drain."""

from typing import Any

import structlog

from penstock.chassis.streams.endpoint import StreamEndpoint
from penstock.scheduler import metrics
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.fleet.fleet import Fleet
from penstock.scheduler.fleet.worker import Worker

log = structlog.get_logger()


def log_worker_attached(worker: Worker, fleet: Fleet) -> None:
    """Log a worker of the fleet. `adopted`: leases that it runs, of another scheduler or of a former stream."""
    profile = worker.profile
    metrics.record_worker_change(worker.model, "attached")
    log.info(
        "worker_attached",
        **_names(worker),
        slots=profile.slots,
        kv_blocks=profile.kv_blocks,
        adopted=len(profile.running),
        workers=len(fleet.pools[worker.model]),
    )


def log_worker_left(worker: Worker, dispatcher: Dispatcher, stream: StreamEndpoint[Any, Any]) -> None:
    """Log a worker that is no longer of the fleet. It is lost unless it has ended its stream or this process drains."""
    pool = dispatcher.fleet.pools.get(worker.model)
    facts = {**_names(worker), "leases": len(worker.promised), "workers": len(pool) if pool else 0}
    if stream.has_peer_ended or dispatcher.is_draining:
        metrics.record_worker_change(worker.model, "detached")
        log.info("worker_detached", **facts, because=stream.end_reason or "this scheduler drains")
    else:
        metrics.record_worker_change(worker.model, "lost")
        log.warning("worker_lost", **facts, because=stream.close_reason or "cut")
    if pool is None:
        log.warning("model_without_workers", model=worker.model)


def log_worker_quarantined(worker_id: str, suspects: int) -> None:
    log.warning("worker_quarantined", worker_id=worker_id, suspects=suspects)


def log_draining(dispatcher: Dispatcher) -> None:
    log.info("handing_over", workers=len(dispatcher.fleet), leases=len(dispatcher.leases))


def _names(worker: Worker) -> dict[str, str]:
    return {"worker_id": worker.worker_id, "address": worker.address, "zone": worker.zone, "model": worker.model}
