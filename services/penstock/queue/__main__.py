"""One shard of the queue: `python -m penstock.queue`."""

import asyncio
import time

from penstock.chassis import lifecycle
from penstock.chassis.admin import AdminService
from penstock.chassis.lifecycle import background, stop_requested
from penstock.chassis.own_time import OwnTime
from penstock.chassis.server import Server, serving
from penstock.chassis.streams import PROTOCOL, RECONNECTED
from penstock.mesh.v1.queue_pb2_grpc import add_QueueServiceServicer_to_server
from penstock.queue.book import TicketBook
from penstock.queue.bounds import Bounds
from penstock.queue.config import QueueConfig
from penstock.queue.placed import Placed
from penstock.queue.presence import Presence
from penstock.queue.service import QueueService
from penstock.queue.snapshot import tables
from penstock.v1.stream_pb2 import Hello

STANDSTILL = 0.5  # s without a tick, after which a shard that goes on knows to have missed what was said
UNSTAFFED = 8.0  # s until a shard that no scheduler found is ready all the same; they look names up every 5 s


async def run(config: QueueConfig) -> None:
    hello = Hello(protocol=PROTOCOL, instance_id=config.instance_id, tier="queue")
    book = TicketBook(
        bounds=Bounds(config.max_depth, config.max_tokens),
        presence=Presence(
            patience=config.patience,
            warm_up=config.warm_up,
            started_at=time.time(),
            own_time=OwnTime(STANDSTILL),
        ),
        placed=Placed(config.placed_memory),
        promises=config.promises,
        new_order=config.order,
    )
    service = QueueService(book, hello, staffing=config.staffing)
    async with serving(
        config.listen,
        [(add_QueueServiceServicer_to_server, service)],
        admin=AdminService(
            "queue", config.instance_id, service.figures, lambda: tables(book), token=config.admin_token
        ),
        drain_grace=config.drain_grace,
        advertise=config.advertise,
        is_ready=False,
    ) as server:
        hello.address = server.address
        async with background(service.tick(), _ready_once_staffed(service, server)):
            await stop_requested()
            service.drain()


async def _ready_once_staffed(service: QueueService, server: Server) -> None:
    """Whoever rolls the shards goes on to the next when this one is ready: by then it must do the other's work."""
    await service.staffed(UNSTAFFED)
    await asyncio.sleep(RECONNECTED)
    server.set_ready(is_ready=True)


if __name__ == "__main__":
    lifecycle.main(QueueConfig, "queue", run)
