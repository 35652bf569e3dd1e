"""Edges and schedulers of a queue shard that the test drives over real streams."""

import asyncio
from contextlib import asynccontextmanager

from penstock.chassis.security.channels import PLAINTEXT
from penstock.chassis.streams.link import Link
from penstock.chassis.streams.protocol import HIGHEST_VERSION
from penstock.mesh.v1 import queue_pb2 as pb
from penstock.mesh.v1.queue_pb2_grpc import QueueServiceStub
from penstock.mesh.v1.ticket_pb2 import CatalogEntry, Lease, Ticket
from penstock.v1.inference_pb2 import PRIORITY_STANDARD
from penstock.v1.stream_pb2 import Hello

TIMEOUT_S = 30.0  # bound of every wait


def ticket(ticket_id, **fields):
    whole = {
        "tenant_id": "acme",
        "priority": PRIORITY_STANDARD,
        "weight": 1.0,
        "model": "m",
        "prompt_tokens": 90,
        "max_output_tokens": 10,
        "attempt": 1,
    }
    return Ticket(ticket_id=ticket_id, **whole | fields)


class StreamClient:
    """The client of one stream. `receive(kind)` returns the next frame of a kind and skips others.

    Frames of the kinds in `ignored` are dropped at their arrival.
    """

    def __init__(self, link_of, out):
        self.out = out
        self.frames = asyncio.Queue()
        self.ignored = set()
        self.up, self.down = asyncio.Event(), asyncio.Event()
        self.link = link_of(on_frame=self._on_frame, on_up=lambda _: self.up.set(), on_down=lambda _: self.down.set())

    def _on_frame(self, frame):
        if frame.WhichOneof("frame") not in self.ignored:
            self.frames.put_nowait(frame)

    async def receive(self, kind):
        async with asyncio.timeout(TIMEOUT_S):
            while (frame := await self.frames.get()).WhichOneof("frame") != kind:
                pass
        return getattr(frame, kind)

    def send(self, **frame):
        assert self.link.send(self.out(**frame))


class QueueEdge(StreamClient):
    def enqueue(self, *tickets):
        self.send(enqueue=pb.Enqueue(tickets=tickets))

    def withdraw(self, *ticket_ids):
        self.send(withdraw=pb.Withdraw(ticket_ids=ticket_ids))


class QueueScheduler(StreamClient):
    def serve(self, *models, poison_reports=()):
        entries = [CatalogEntry(model=each, worker_address="w:1", workers_hint=1) for each in models]
        self.send(catalog=pb.Catalog(entries=entries, poison_reports=poison_reports))

    def credit(self, tickets, **fields):
        self.send(credit=pb.Credit(model="m", tickets=tickets, **fields))

    def place(self, ticket_id, lease_id="lease"):
        lease = Lease(lease_id=lease_id, ticket_id=ticket_id, worker_id="w", worker_address="w:1", attempt=1)
        self.send(place=pb.Place(lease=lease))

    def decline(self, ticket_id, reason="NO_CAPACITY"):
        self.send(decline=pb.Decline(ticket_id=ticket_id, reason=reason))


@asynccontextmanager
async def edge_at(address, name="edge-1", zone=""):
    async with _connected(QueueEdge, lambda stub: stub.Submit, pb.SubmitRequest, address, name, zone=zone) as edge:
        yield edge


@asynccontextmanager
async def scheduler_at(address, name="scheduler-1", models=("m",)):
    async with _connected(QueueScheduler, lambda stub: stub.Dispatch, pb.DispatchRequest, address, name) as scheduler:
        scheduler.serve(*models)
        yield scheduler


@asynccontextmanager
async def _connected(kind, method, out, address, name, *, zone=""):
    """A connected client. Leaving the block breaks its stream."""
    async with PLAINTEXT.channel(address, "queue") as to_shard:
        hello = Hello(protocol=HIGHEST_VERSION, instance_id=name, tier=kind.__name__.lower(), zone=zone)
        call = method(QueueServiceStub(to_shard))
        side = kind(lambda **callbacks: Link(name, call, out, hello, **callbacks), out)
        running = asyncio.create_task(side.link.run())
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await side.up.wait()
            yield side
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
