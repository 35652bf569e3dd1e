"""Two edges of two regions, each with scripted auth, queue and workers. The edge of `home` offers to `us`."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from edge_mesh import TIMEOUT_S, EdgeMesh, FakeWorker, edge_mesh
from penstock.chassis.errors import Overloaded
from penstock.local_mesh.tcp_relay import RelayEnds, TcpRelay


def full(retry_after=2.0):
    return Overloaded("full", reason="QUEUE_FULL", retry_after=retry_after)


@dataclass
class TwoRegions:
    home: EdgeMesh
    us: EdgeMesh
    link: TcpRelay  # between the edges
    begun: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))  # answers with a token

    def shed_at_home(self, count=1):
        """The queue at home rejects the next tickets."""
        self.home.queue.sheds += [full() for _ in range(count)]

    async def answer(self, text="hi", **fields):
        """Return the text and the end of one answer."""
        texts, finished = [], None
        async for response in self.home.generate(text, **fields):
            if response.HasField("delta"):
                if not texts:
                    self.begun.release()
                texts.append(response.delta.text)
            elif response.HasField("finished"):
                finished = response.finished
        return "".join(texts), finished

    async def at_rest(self):
        """Wait until no edge has a request or a reservation."""
        await wait_for(self.us, guests=0, active_requests=0)
        await wait_for(self.home, active_requests=0, reservations_open=0, spilled_requests=0)


@asynccontextmanager
async def two_regions(*, us=(), home=None, allowed=(), us_settings=None, **settings):
    """`us`: workers. `allowed`: regions of the tenant; empty: all. `settings`: of the edge at home."""
    async with AsyncExitStack() as stack:
        us_edge = edge_mesh(fakes=us or [FakeWorker("us-1")], instance_id="us-e1", **(us_settings or {}))
        us_mesh = await stack.enter_async_context(us_edge)
        link = TcpRelay(RelayEnds("home", "us"), us_mesh.address)
        await stack.enter_async_context(link.listening())
        home_edge = edge_mesh(
            fakes=[home or FakeWorker("home-1")],
            region="eu",
            regions=(f"us={link.address}",),
            **settings,
        )
        home_mesh = await stack.enter_async_context(home_edge)
        home_mesh.auth.allowed_regions = allowed
        await wait_for(home_mesh, region_links_up=1)
        yield TwoRegions(home_mesh, us_mesh, link)


async def wait_for(mesh, **figures):
    """Wait until an edge has these figures."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            found = await mesh.figures()
            if {name: found[name] for name in figures} == figures:
                return
            await asyncio.sleep(0.01)
