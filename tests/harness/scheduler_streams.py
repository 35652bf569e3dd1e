"""Queue shards and workers of a scheduler that the test drives over real streams."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from penstock.chassis.lifecycle import background
from penstock.chassis.security.channels import PLAINTEXT
from penstock.chassis.server.server import serving
from penstock.chassis.streams.link import Link, accept_stream
from penstock.chassis.streams.protocol import HIGHEST_VERSION
from penstock.mesh.v1 import queue_pb2, scheduler_pb2
from penstock.mesh.v1.queue_pb2_grpc import QueueServiceServicer, add_QueueServiceServicer_to_server
from penstock.mesh.v1.scheduler_pb2_grpc import SchedulerServiceStub, add_SchedulerServiceServicer_to_server
from penstock.scheduler.autoscaling.fleet_demand import FleetDemand
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.leases import LeaseBook
from penstock.scheduler.service import SchedulerService
from penstock.v1.stream_pb2 import Hello

TIMEOUT_S = 30.0  # bound of every wait


class ReceivedFrames:
    """The received frames of one stream. `receive(kind)` returns the next frame of a kind and skips others."""

    def __init__(self):
        self._frames = asyncio.Queue()

    def put(self, frame):
        self._frames.put_nowait(frame)

    async def receive(self, kind):
        async with asyncio.timeout(TIMEOUT_S):
            while (frame := await self._frames.get()).WhichOneof("frame") != kind:
                pass
        return getattr(frame, kind)


class FakeShard(QueueServiceServicer):
    """The queue's end of a stream with a scheduler."""

    def __init__(self, name):
        self.hello = Hello(protocol=HIGHEST_VERSION, instance_id=name, tier="queue")
        self.frames = ReceivedFrames()
        self.receive = self.frames.receive
        self.address = ""
        self.peer = None
        self.ended = asyncio.Queue()  # for each stream: whether the peer has sent `end`

    async def Dispatch(self, request_iterator, context):
        async with accept_stream(context, queue_pb2.DispatchResponse, self.hello) as peer:
            self.peer = peer
            try:
                async for frame in peer:
                    self.frames.put(frame)
            finally:
                self.ended.put_nowait(peer.has_peer_ended)

    def send(self, **frame):
        assert self.peer.send(queue_pb2.DispatchResponse(**frame))

    def offer(self, ticket):
        self.send(offer=queue_pb2.Offer(ticket=ticket))

    async def catalog_of(self, *models):
        """Wait until the scheduler serves exactly these models."""
        while [entry.model for entry in (await self.receive("catalog")).entries] != list(models):
            pass


class AttachedWorker:
    """The worker's end of an attachment."""

    def __init__(self, call, name):
        self.frames = ReceivedFrames()
        self.receive = self.frames.receive
        self.up = asyncio.Event()
        hello = Hello(protocol=HIGHEST_VERSION, instance_id=name, tier="worker", address=f"{name}:1")
        self.link = Link(
            name,
            call,
            scheduler_pb2.AttachRequest,
            hello,
            on_frame=self.frames.put,
            on_up=lambda _: self.up.set(),
        )

    def send(self, **frame):
        assert self.link.send(scheduler_pb2.AttachRequest(**frame))

    def profile(self, **fields):
        whole = {
            "model": "m",
            "card_digest": "d",
            "slots": 2,
            "kv_blocks": 64,
            "block_size": 16,
            "context_length": 4_096,
        }
        self.send(profile=scheduler_pb2.Profile(**whole | fields))

    def started(self, lease_id):
        self.send(started=scheduler_pb2.Started(lease_id=lease_id))

    def released(self, *lease_ids):
        self.send(released=scheduler_pb2.Released(lease_ids=lease_ids))


@dataclass
class SchedulerProcess:
    service: SchedulerService
    dispatcher: Dispatcher
    address: str
    shards: list[FakeShard] = field(default_factory=list)


@asynccontextmanager
async def shard_server(name):
    shard = FakeShard(name)
    registration = add_QueueServiceServicer_to_server, shard
    async with serving("127.0.0.1:0", [registration], drain_grace=1.0) as server:
        shard.address = server.address
        yield shard


@asynccontextmanager
async def scheduler_of(*shards, ttl=5.0, look_ahead=0):
    """A scheduler that listens and keeps a stream to each of `shards`."""
    dispatcher = Dispatcher(leases=LeaseBook(ttl=ttl, prefix="s"), look_ahead=look_ahead)
    hello = Hello(protocol=HIGHEST_VERSION, instance_id="scheduler-1", tier="scheduler")
    service = SchedulerService(dispatcher, [shard.address for shard in shards], hello, FleetDemand())
    registration = add_SchedulerServiceServicer_to_server, service
    async with (
        serving("127.0.0.1:0", [registration], drain_grace=1.0) as server,
        background(service.run(), service.tick()),
    ):
        yield SchedulerProcess(service, dispatcher, server.address, list(shards))


@asynccontextmanager
async def worker_at(address, name="w1", **profile):
    """An attached worker. Leaving the block breaks its stream."""
    async with idle_worker(address, name) as worker:
        worker.profile(**profile)
        yield worker


@asynccontextmanager
async def idle_worker(address, name):
    """A worker whose stream is open; it has not sent its profile."""
    async with PLAINTEXT.channel(address, "scheduler") as to_scheduler:
        worker = AttachedWorker(lambda: SchedulerServiceStub(to_scheduler).Attach(), f"{name}")
        running = asyncio.create_task(worker.link.run())
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await worker.up.wait()
            yield worker
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
