"""A queue shard that listens, with a clock that the test advances."""

from contextlib import asynccontextmanager

from penstock.chassis.lifecycle import background
from penstock.chassis.server.server import serving
from penstock.chassis.streams.protocol import HIGHEST_VERSION
from penstock.mesh.v1.queue_pb2_grpc import add_QueueServiceServicer_to_server
from penstock.queue.admission.admission import QueueLimits
from penstock.queue.autoscaling.shard_demand import ShardDemand
from penstock.queue.models.availability import ModelAvailability
from penstock.queue.service import QueueService
from penstock.queue.tickets.book import TicketBook
from penstock.queue.tickets.recent_leases import RecentLeases
from penstock.v1.stream_pb2 import Hello

START_S = 2_000.0


class Shard:
    """A shard that listens, with a clock that the test advances."""

    def __init__(self, max_depth, scheduler_wait):
        self.time = START_S
        self.book = TicketBook(
            limits=QueueLimits(max_depth, 1_000_000),
            availability=ModelAvailability(timeout=10.0, warm_up=5.0, started_at=START_S - 60),
            recent_leases=RecentLeases(10.0),
        )
        hello = Hello(protocol=HIGHEST_VERSION, instance_id="queue-1", tier="queue")
        demand = ShardDemand(self.book.model_queues, self.book.accounting, complete_at=START_S)
        self.service = QueueService(self.book, demand, hello, scheduler_wait=scheduler_wait, now=lambda: self.time)
        self.address, self.calls = "", None


@asynccontextmanager
async def shard_of(max_depth=1_000, scheduler_wait=0.0):
    shard = Shard(max_depth, scheduler_wait)
    registration = add_QueueServiceServicer_to_server, shard.service
    async with (
        serving("127.0.0.1:0", [registration], drain_grace=1.0) as server,
        background(shard.service.tick()),
    ):
        shard.address, shard.calls = server.address, server.calls
        yield shard
