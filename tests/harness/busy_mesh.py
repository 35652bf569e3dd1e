"""A mesh of real shards and a real scheduler, with an edge and a worker that the test drives."""

import time
from contextlib import asynccontextmanager
from typing import NamedTuple

from dispatch_mesh import book_of, demand_of
from operators import operators_at_socket
from penstock.chassis.lifecycle import background
from penstock.chassis.server.admin import AdminService
from penstock.chassis.server.server import serving
from penstock.chassis.streams.protocol import HIGHEST_VERSION
from penstock.mesh.v1.queue_pb2_grpc import add_QueueServiceServicer_to_server
from penstock.mesh.v1.scheduler_pb2 import LoadReport
from penstock.mesh.v1.scheduler_pb2_grpc import add_SchedulerServiceServicer_to_server
from penstock.queue.observability import snapshot as queue_snapshot
from penstock.queue.service import QueueService
from penstock.scheduler import snapshot as scheduler_snapshot
from penstock.scheduler.autoscaling.fleet_demand import FleetDemand
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.leases import LeaseBook
from penstock.scheduler.service import SchedulerService
from penstock.v1.stream_pb2 import Hello
from queue_streams import edge_at
from queue_streams import ticket as ticket_of_model
from scheduler_streams import worker_at

DIGEST = "d"


def ticket(ticket_id, **fields):
    return ticket_of_model(ticket_id, **{"model": f"m@{DIGEST}", **fields})


@asynccontextmanager
async def shard_at(name):
    book = book_of()
    hello = Hello(protocol=HIGHEST_VERSION, instance_id=name, tier="queue")
    service = QueueService(book, demand_of(book), hello, now=time.time)
    admin = AdminService("queue", name, service.figures, lambda: queue_snapshot.tables(book))
    registration = add_QueueServiceServicer_to_server, service
    with operators_at_socket() as operators:
        async with (
            serving("127.0.0.1:0", [registration], admin=admin, operators=operators, drain_grace=0.5) as server,
            background(service.tick()),
        ):
            yield server
            service.drain()


@asynccontextmanager
async def scheduler_of(*queues):
    dispatcher = Dispatcher(leases=LeaseBook(ttl=5.0, prefix="s"), look_ahead=0)
    hello = Hello(protocol=HIGHEST_VERSION, instance_id="s", tier="scheduler")
    service = SchedulerService(dispatcher, queues, hello, FleetDemand())
    tables = lambda: scheduler_snapshot.tables(dispatcher.fleet)  # noqa: E731  # as in the composition root
    admin = AdminService("scheduler", "scheduler-1", service.figures, tables)
    registration = add_SchedulerServiceServicer_to_server, service
    with operators_at_socket() as operators:
        async with (
            serving("127.0.0.1:0", [registration], admin=admin, operators=operators, drain_grace=0.5) as server,
            background(service.run(), service.tick()),
        ):
            yield server


class Busy(NamedTuple):
    """The Admin addresses of two shards and of their scheduler, an edge, and the scheduler's own address."""

    admin_addresses: list[str]
    edge: object
    scheduler: str


@asynccontextmanager
async def busy_mesh():
    """Two shards and a worker with two slots: of three tickets on the first shard, two are leased and one waits."""
    async with (
        shard_at("queue-1") as first,
        shard_at("queue-2") as second,
        scheduler_of(first.address, second.address) as scheduler,
        worker_at(scheduler.address) as worker,
        edge_at(first.address) as edge,
    ):
        while not (await edge.receive("catalog")).entries:
            pass
        worker.send(load_report=LoadReport(running=2, tokens_per_second=40.0))
        edge.enqueue(*(ticket(f"t{number}") for number in range(3)))
        for _ in range(2):
            await edge.receive("leased")
        yield Busy([each.admin_address for each in (first, second, scheduler)], edge, scheduler.address)
