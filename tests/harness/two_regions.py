"""Two edges of two regions, each with scripted auth, queue and workers. The edge of `home` offers to `us`."""

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from edge_mesh import EdgeMesh, FakeWorker, edge_mesh
from penstock.chassis.errors import Overloaded

HOME_WORKER, US_WORKER = "home-1", "us-1"


def full(retry_after=2.0):
    return Overloaded("full", reason="QUEUE_FULL", retry_after=retry_after)


@dataclass
class TwoRegions:
    home: EdgeMesh
    us: EdgeMesh

    def shed_at_home(self, count=1):
        """The queue at home rejects the next tickets."""
        self.home.queue.sheds += [full() for _ in range(count)]

    async def answer(self, text="hi", **fields):
        """Return the text and the end of one answer."""
        texts, finished = [], None
        async for response in self.home.generate(text, **fields):
            if response.HasField("delta"):
                texts.append(response.delta.text)
            elif response.HasField("finished"):
                finished = response.finished
        return "".join(texts), finished


@asynccontextmanager
async def two_regions(*, us=None, home=None, allowed=("us",), us_settings=None, **settings):
    """`settings`: of the edge at home."""
    async with AsyncExitStack() as stack:
        us_mesh = await stack.enter_async_context(
            edge_mesh(fakes=[us or FakeWorker(US_WORKER)], instance_id="us-e1", **(us_settings or {}))
        )
        home_mesh = await stack.enter_async_context(
            edge_mesh(
                fakes=[home or FakeWorker(HOME_WORKER)],
                allowed_regions=lambda _: allowed,
                regions=(f"us={us_mesh.address}",),
                **settings,
            )
        )
        regions = TwoRegions(home_mesh, us_mesh)
        await wait_for(home_mesh, region_links_up=1)
        yield regions


async def wait_for(mesh, **figures):
    """Wait until an edge has these figures."""
    import asyncio

    async with asyncio.timeout(30.0):
        while True:
            found = await mesh.figures()
            if {name: found[name] for name in figures} == figures:
                return
            await asyncio.sleep(0.01)
