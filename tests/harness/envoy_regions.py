"""Regions as real Envoys with their control planes and fake auth processes, in front of backends of the test."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import httpx

from envoy_auth import GOOD, EnvoyAuth
from envoy_proxy import ECHO, Backend, EnvoyProxy
from free_ports import free_port
from operators import admin_socket

STAT_TIMEOUT_S = 60.0
KNOWN = (("authorization", GOOD),)


async def wait_for_stat(front, name, is_reached):
    """Return once `is_reached(value)` is true of a statistic of the proxy."""
    url = f"http://127.0.0.1:{front.admin_port}/stats?filter=^{name}$"
    async with asyncio.timeout(STAT_TIMEOUT_S), httpx.AsyncClient() as http:
        while not is_reached(int((await http.get(url)).text.rpartition(": ")[2])):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def sees_healthy(front, cluster, healthy):
    """Return once the proxy has `healthy` healthy hosts in a cluster."""
    await wait_for_stat(front, f"cluster.{cluster}.membership_healthy", lambda value: value == healthy)


class RegionFront:
    """One region: its edges, its proxy and its auth."""

    def __init__(self, folder, name, doors, edges, **settings):
        folder.mkdir()
        self.name = name
        self.auth = EnvoyAuth()
        self.backends = [Backend(f"{name}{number}") for number in range(edges)]
        self.state = folder / "regions.json"
        others = ",".join(f"{other}={door}" for other, door in doors.items() if other != name)
        self.front = EnvoyProxy(
            folder,
            REGION=name,
            REGION_LISTEN=doors[name],
            REGIONS=others,
            REGIONS_STATE=self.state,
            REGION_RETURN_STEP=1,
            AUTH_CHECK_TIMEOUT=5,
            **settings,
        )

    @asynccontextmanager
    async def running(self):
        async with AsyncExitStack() as stack:
            self.auth = await stack.enter_async_context(self.auth.running())
            for backend in self.backends:
                await stack.enter_async_context(backend.running())
            self.admin = stack.enter_context(admin_socket())
            self.front.settings |= {
                "ADMIN_LISTEN": self.admin,
                "AUTHS": self.auth.address,
                "PROXY_STATS": f"127.0.0.1:{self.front.admin_port}",
            }
            self.front.write_edges(*(backend.edge for backend in self.backends))
            self.front.plane = await stack.enter_async_context(self.front.control_plane())
            await self.front.plane.wait_for_line('"listening"')
            self.front.proxy = await stack.enter_async_context(self.front.envoy())
            self.calls = await stack.enter_async_context(self.front.channel())
            yield self

    def unary(self, *metadata):
        return self.calls.unary_unary(f"{ECHO}Unary")(b"", metadata=(*KNOWN, *metadata))

    def stream(self):
        return self.calls.unary_stream(f"{ECHO}Stream")(b"", metadata=KNOWN)

    async def stop_edges(self):
        for backend in self.backends:
            await backend.stop()


@asynccontextmanager
async def running_regions(folder, *names, edges=1, allowed="*", **settings):
    """Regions whose tenants are allowed in the regions `allowed`, each with `edges` edges."""
    doors = {name: f"127.0.0.1:{free_port()}" for name in names}
    async with AsyncExitStack() as stack:
        regions = [RegionFront(folder / name, name, doors, edges, **settings) for name in names]
        for region in regions:
            region.auth.regions = allowed
            region.door = doors[region.name]
            await stack.enter_async_context(region.running())
        for region in regions:
            for name in set(names) - {region.name}:
                await sees_healthy(region.front, f"region_{name}", 1)
        yield regions
