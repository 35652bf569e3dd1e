"""One shard of the queue: `python -m penstock.queue`."""

import asyncio

from penstock.chassis import lifecycle
from penstock.chassis.clocks import StallFreeClock, WallMonotonicClock
from penstock.chassis.lifecycle import background, stop_requested
from penstock.chassis.operators.listeners import OperatorListeners
from penstock.chassis.security.process import open_security
from penstock.chassis.server.admin import AdminService
from penstock.chassis.server.server import Server, serving
from penstock.chassis.streams.link import MAX_RECONNECT_S
from penstock.chassis.streams.protocol import hello_of
from penstock.mesh.v1.queue_pb2_grpc import add_QueueServiceServicer_to_server
from penstock.queue.admission.admission import QueueLimits
from penstock.queue.autoscaling.shard_demand import ShardDemand
from penstock.queue.config import QueueConfig
from penstock.queue.models.availability import ModelAvailability
from penstock.queue.observability.snapshot import tables
from penstock.queue.service import QueueService
from penstock.queue.tickets.book import TicketBook
from penstock.queue.tickets.recent_leases import RecentLeases

STALL_THRESHOLD_S = 0.5  # s between ticks; a longer gap means that this process stalled and may have missed frames
MAX_SCHEDULER_WAIT_S = 8.0  # s until a shard is ready without a scheduler; schedulers resolve names every 5 s


async def run(config: QueueConfig) -> None:
    hello = hello_of("queue", config.instance_id)
    now = WallMonotonicClock().now
    book = TicketBook(
        limits=QueueLimits(config.max_depth, config.max_tokens),
        availability=ModelAvailability(
            timeout=config.unavailable_model_timeout,
            warm_up=config.warm_up,
            started_at=now(),
            clock=StallFreeClock(STALL_THRESHOLD_S),
        ),
        recent_leases=RecentLeases(config.recent_lease_ttl),
        ttft_targets=config.ttft_targets,
        new_policy=config.policy,
    )
    demand = ShardDemand(book.model_queues, book.accounting, complete_at=now() + config.warm_up)
    service = QueueService(book, demand, hello, now=now, scheduler_wait=config.scheduler_wait)
    async with serving(
        config.listen,
        [(add_QueueServiceServicer_to_server, service)],
        admin=AdminService("queue", config.instance_id, service.figures, lambda: tables(book)),
        observe=service.observations,
        operators=OperatorListeners.of(config),
        drain_grace=config.drain_grace,
        advertise=config.advertise,
        is_ready=False,
        security=open_security(config),
    ) as server:
        hello.address = server.address
        async with background(
            service.tick(), service.report_demand(), _set_ready_once_scheduler_connected(service, server)
        ):
            await stop_requested()
            service.drain()


async def _set_ready_once_scheduler_connected(service: QueueService, server: Server) -> None:
    """Report ready once the shard can place tickets, because a rollout then goes on to the next shard."""
    await service.wait_for_scheduler(MAX_SCHEDULER_WAIT_S)
    await asyncio.sleep(MAX_RECONNECT_S)
    server.set_ready(is_ready=True)


if __name__ == "__main__":
    lifecycle.main(QueueConfig, "queue", run)
