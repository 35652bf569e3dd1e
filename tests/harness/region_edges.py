"""Ends of the stream between two regions that a test drives: an edge that runs guests, and one that offers them."""

import asyncio
from contextlib import asynccontextmanager

from penstock.chassis.channels import channel
from penstock.chassis.lifecycle import background
from penstock.chassis.server.server import serving
from penstock.chassis.streams.link import Link, accept_stream
from penstock.chassis.streams.protocol import hello_of
from penstock.mesh.v1.region_pb2 import GuestOffer, RegionServiceRunRequest, RegionServiceRunResponse
from penstock.mesh.v1.region_pb2_grpc import (
    RegionServiceServicer,
    RegionServiceStub,
    add_RegionServiceServicer_to_server,
)
from penstock.mesh.v1.worker_pb2 import Cancel
from penstock.v1.inference_pb2 import PRIORITY_STANDARD, Sampling

TIMEOUT_S = 30.0  # bound of every wait


class RegionEdge(RegionServiceServicer):
    """An edge of another region. It answers nothing by itself."""

    def __init__(self):
        self.peer = None  # the present stream
        self.offers = asyncio.Queue()

    async def Run(self, request_iterator, context):
        hello = hello_of("edge", "us-e1")
        async with accept_stream(context, RegionServiceRunResponse, hello, tiers=("edge",)) as peer:
            self.peer = peer
            async for frame in peer:
                if frame.WhichOneof("frame") == "offer":
                    self.offers.put_nowait(frame.offer)


@asynccontextmanager
async def region_edge():
    """Yield the edge and its address."""
    edge = RegionEdge()
    async with serving("127.0.0.1:0", [(add_RegionServiceServicer_to_server, edge)], drain_grace=0.0) as server:
        yield edge, server.address


class HomeEdge:
    """A home edge, which offers what a test says. `frames` has the answers."""

    def __init__(self, to_region):
        self.frames = asyncio.Queue()
        self.up, self.down = asyncio.Event(), asyncio.Event()
        self.link = Link(
            "region us",
            RegionServiceStub(to_region).Run,
            RegionServiceRunRequest,
            hello_of("edge", "home-e1"),
            on_frame=self.frames.put_nowait,
            on_up=lambda _: self.up.set(),
            on_down=lambda _: self.down.set(),
        )

    def offer(self, handle=1, **fields):
        given = {
            "request_id": "r1",
            "model": "tiny@d1",
            "token_ids": [5, 6],
            "max_output_tokens": 3,
            "sampling": Sampling(seed=1),
            "tenant_id": "acme",
            "priority": PRIORITY_STANDARD,
            "weight": 1.0,
            "away_nanos": 1,
            **fields,
        }
        self.link.send(RegionServiceRunRequest(offer=GuestOffer(handle=handle, **given)))

    def cancel(self, handle=1):
        self.link.send(RegionServiceRunRequest(cancel=Cancel(handle=handle)))

    async def next_frame(self):
        return await asyncio.wait_for(self.frames.get(), TIMEOUT_S)

    async def end_of(self, handle=1):
        """Return the kind of the last frame about a request, the frame, and the tokens before it."""
        tokens = []
        while True:
            frame = await self.next_frame()
            kind = frame.WhichOneof("frame")
            if kind == "step":
                found = zip(frame.step.handles, frame.step.indexes, frame.step.token_ids, strict=True)
                tokens += [(index, token) for each, index, token in found if each == handle]
            elif kind not in ("started", "end") and getattr(frame, kind).handle == handle:
                return kind, getattr(frame, kind), tokens


@asynccontextmanager
async def home_edge(address):
    async with channel(address) as to_region:
        home = HomeEdge(to_region)
        async with background(home.link.run()):
            await asyncio.wait_for(home.up.wait(), TIMEOUT_S)
            yield home
