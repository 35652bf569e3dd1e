"""Auth of a home region and of a region that follows it, on real gRPC servers, with a link that a test can cut."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count

import pytest

from auth_server import FakeClock, auth_process
from penstock.auth.regions import roles, usage_reporter
from penstock.auth.regions.spending import follower, home_streams
from penstock.local_mesh.tcp_relay import RelayEnds, TcpRelay
from penstock.v1 import admin_pb2 as pb

TIMEOUT_S = 20.0
FAST_S = 0.05


@pytest.fixture
def fast(monkeypatch):
    """Let regions exchange what they do once a second far more often."""
    monkeypatch.setattr(follower, "TICK_S", FAST_S)
    monkeypatch.setattr(home_streams, "PAUSE_S", (FAST_S, FAST_S))
    monkeypatch.setattr(home_streams, "REFUSED_PAUSE_S", FAST_S)
    monkeypatch.setattr(roles, "GRANT_INTERVAL_S", FAST_S)
    monkeypatch.setattr(roles, "REPORT_INTERVAL_S", FAST_S)
    monkeypatch.setattr(usage_reporter, "REFUSED_PAUSE_S", FAST_S)


class Door:
    """The region door of the home region: leads each connection to the next of its servers."""

    def __init__(self, targets):
        """`targets`: addresses of the servers, which a test may change."""
        self.address = ""
        self._targets = targets
        self._connections = count()

    @asynccontextmanager
    async def open(self):
        server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._running = set()
        try:
            yield self
        finally:
            server.close()
            for each in list(self._running):
                each.cancel()

    async def _relay(self, reader, writer):
        task = asyncio.current_task()
        self._running.add(task)
        host, _, port = self._targets[next(self._connections) % len(self._targets)].rpartition(":")
        try:
            to_server = await asyncio.open_connection(host, int(port))
            await asyncio.gather(_copy(reader, to_server[1]), _copy(to_server[0], writer))
        except (OSError, asyncio.CancelledError):
            writer.close()
        finally:
            self._running.discard(task)


async def _copy(reader, writer):
    try:
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)
            await writer.drain()
    finally:
        writer.close()


@asynccontextmanager
async def home_region(*stores, clock=None, targets=None, **settings):
    """Yield the processes of auth of region eu, and the link to its door, which leads to `targets`."""
    clock, settings = clock or FakeClock(), {"spending_regions": ("us",), **settings}
    async with AsyncExitStack() as stack:
        found = [
            await stack.enter_async_context(
                auth_process(each, clock=clock, region="eu", instance_id=f"eu-auth-{number}", **settings)
            )
            for number, each in enumerate(stores or (":memory:",), 1)
        ]
        targets = [] if targets is None else targets
        targets += [each.address for each in found]
        door = await stack.enter_async_context(Door(targets).open())
        link = TcpRelay(RelayEnds("us", "eu"), door.address)
        await stack.enter_async_context(link.listening())
        yield found, link


@asynccontextmanager
async def spending_region(link, *stores, clock=None, name="us-auth", **settings):
    """Yield the processes of auth of region us, which follow the home region over `link`."""
    clock, settings = clock or FakeClock(), {"home": "eu", "home_door": link.address, **settings}
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                auth_process(each, clock=clock, region="us", instance_id=f"{name}-{number}", **settings)
            )
            for number, each in enumerate(stores or (":memory:",), 1)
        ]


@asynccontextmanager
async def another_home(store, clock):
    """Yield one more process of region eu on the store of the others."""
    async with auth_process(
        store, clock=clock, region="eu", instance_id="eu-auth-more", spending_regions=("us",)
    ) as found:
        yield found


@asynccontextmanager
async def two_regions(clock=None, **settings):
    """Yield one process of auth of each region, and their link. The second one follows the first one."""
    clock = clock or FakeClock()
    async with home_region(clock=clock, **settings) as ([eu], link), spending_region(link, clock=clock) as [us]:
        await follows(us)
        yield eu, us, link


async def wait_until(is_true):
    async with asyncio.timeout(TIMEOUT_S):
        while not is_true():  # noqa: ASYNC110  # memory has no event
            await asyncio.sleep(0.01)


async def wait_as_time_passes(process, is_true):
    """Wait until a condition is true, while the clock of the process runs faster than time."""
    async with asyncio.timeout(TIMEOUT_S):
        while not is_true():
            process.clock.now += 0.5
            await asyncio.sleep(0.05)


async def follows(process):
    """Wait until a process follows the home region and has its catalog."""
    await wait_until(lambda: process.role.follower.is_following)


async def create_key(found, tenant_id="acme", **limits):
    """Create a tenant and a key of it at home. Return the secret."""
    await found.admin.PutTenant(pb.PutTenantRequest(tenant=pb.Tenant(tenant_id=tenant_id, **limits)))
    return (await found.admin.CreateKey(pb.CreateKeyRequest(tenant_id=tenant_id))).secret
