"""A shard of the queue, a scheduler with a stream to it, and workers without an engine, over real streams."""

import asyncio
import time
from contextlib import asynccontextmanager

from dispatch_mesh import book_of, demand_of
from free_ports import free_port
from penstock.chassis.channels import channel
from penstock.chassis.lifecycle import background
from penstock.chassis.server.server import serving
from penstock.chassis.streams.link import Link
from penstock.chassis.streams.protocol import HIGHEST_VERSION
from penstock.mesh.v1.queue_pb2_grpc import add_QueueServiceServicer_to_server
from penstock.mesh.v1.scheduler_pb2 import AttachRequest, Profile, Released
from penstock.mesh.v1.scheduler_pb2_grpc import SchedulerServiceStub, add_SchedulerServiceServicer_to_server
from penstock.queue.service import QueueService
from penstock.scheduler.autoscaling.fleet_demand import FleetDemand
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.leases import LeaseBook
from penstock.scheduler.service import SchedulerService
from penstock.v1.stream_pb2 import Hello
from queue_streams import TIMEOUT_S, StreamClient, edge_at
from queue_streams import ticket as ticket_of_model

PROFILE = {"model": "m", "card_digest": "d", "slots": 2, "kv_blocks": 16, "block_size": 16, "context_length": 200}


def ticket(ticket_id, **fields):
    return ticket_of_model(ticket_id, **{"model": "m@d", **fields})


class Clock:
    now = 100.0  # s

    def __call__(self):
        return self.now


class Scheduler:
    """A scheduler that listens and keeps a stream to a shard."""

    def __init__(self, queues):
        self.clock = Clock()
        self.dispatcher = Dispatcher(leases=LeaseBook(ttl=5.0, prefix="s"), look_ahead=0)
        hello = Hello(protocol=HIGHEST_VERSION, instance_id="scheduler-1", tier="scheduler")
        self.service = SchedulerService(self.dispatcher, queues, hello, FleetDemand(), now=self.clock)
        self.address = ""

    async def until(self, **figures):
        """Wait until the figures have these values."""
        await turns_until(lambda: figures.items() <= self.service.figures().items())


async def turns_until(is_so):
    """Run the event loop until `is_so` returns true."""
    async with asyncio.timeout(TIMEOUT_S):
        while not is_so():  # noqa: ASYNC110  # figures have no event
            await asyncio.sleep(0)


@asynccontextmanager
async def shard_at(listen=None):
    hello = Hello(protocol=HIGHEST_VERSION, instance_id="queue-1", tier="queue")
    book = book_of()
    service = QueueService(book, demand_of(book), hello, now=time.monotonic)
    registration = add_QueueServiceServicer_to_server, service
    listen = listen or f"127.0.0.1:{free_port()}"
    async with serving(listen, [registration], drain_grace=0.5) as server, background(service.tick()):
        yield server.address
        service.drain()


@asynccontextmanager
async def scheduler_of(*queues):
    scheduler = Scheduler(queues)
    registration = add_SchedulerServiceServicer_to_server, scheduler.service
    async with (
        serving("127.0.0.1:0", [registration], drain_grace=0.5) as server,
        background(scheduler.service.run(), scheduler.service.tick()),
    ):
        scheduler.address = server.address
        yield scheduler


class Worker(StreamClient):
    def released(self, *lease_ids):
        self.send(released=Released(lease_ids=lease_ids))


@asynccontextmanager
async def worker_at(address, name="worker-1", zone="", **profile):
    """An attached worker. Leaving the block breaks its stream."""
    async with channel(address) as to_scheduler:
        hello = Hello(protocol=HIGHEST_VERSION, instance_id=name, tier="worker", address=f"{name}:1", zone=zone)
        call = SchedulerServiceStub(to_scheduler).Attach
        worker = Worker(lambda **callbacks: Link(name, call, AttachRequest, hello, **callbacks), AttachRequest)
        running = asyncio.create_task(worker.link.run())
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await worker.up.wait()
            worker.send(profile=Profile(**PROFILE | profile))
            yield worker
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def mesh():
    """A shard, a scheduler, a worker, and an edge that has received the catalog with the worker's model."""
    async with (
        shard_at() as shard,
        scheduler_of(shard) as scheduler,
        worker_at(scheduler.address) as worker,
        edge_at(shard) as edge,
    ):
        await serves_one_model(edge)
        yield scheduler, worker, edge


async def serves_one_model(edge):
    while not (await edge.receive("catalog")).entries:
        pass
