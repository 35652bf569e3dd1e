"""One shard of the queue: `python -m penstock.queue`."""

import time

from penstock.chassis import lifecycle
from penstock.chassis.admin import AdminService
from penstock.chassis.lifecycle import background, stop_requested
from penstock.chassis.server import serving
from penstock.chassis.streams import PROTOCOL
from penstock.mesh.v1.queue_pb2_grpc import add_QueueServiceServicer_to_server
from penstock.queue.book import TicketBook
from penstock.queue.bounds import Bounds
from penstock.queue.config import QueueConfig
from penstock.queue.placed import Placed
from penstock.queue.presence import Presence
from penstock.queue.service import QueueService
from penstock.queue.snapshot import tables
from penstock.v1.stream_pb2 import Hello


async def run(config: QueueConfig) -> None:
    hello = Hello(protocol=PROTOCOL, instance_id=config.instance_id, tier="queue")
    book = TicketBook(
        bounds=Bounds(config.max_depth, config.max_tokens),
        presence=Presence(patience=config.patience, warm_up=config.warm_up, started_at=time.time()),
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
    ) as server:
        hello.address = server.address
        async with background(service.tick()):
            await stop_requested()
            service.drain()


if __name__ == "__main__":
    lifecycle.main(QueueConfig, "queue", run)
