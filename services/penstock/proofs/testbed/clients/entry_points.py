"""The load of the kill proof: SDK clients at the edges, SDK clients and plain gRPC clients through the Envoys."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from penstock.bench.drivers.grpc import GrpcDriver, PlainClient
from penstock.bench.load import BenchRequest
from penstock.client import Client
from penstock.proofs.checks.interrupted_calls import ANY_ENVOY
from penstock.proofs.testbed.clients.load import ClosedLoopLoad, Loads
from penstock.proofs.testbed.testbed import Testbed

CONNECTIONS = 2  # of each kind of client to each Envoy


@asynccontextmanager
async def open_load_through_all(
    testbed: Testbed, requests: Sequence[BenchRequest], streams: int, seed: int
) -> AsyncIterator[Loads]:
    """Split `streams` into three even parts: SDK at the edges, SDK through the Envoys, plain gRPC through them."""
    third, mesh = streams // 3, testbed.mesh
    envoys = [envoy for envoy in mesh.plan.processes_of("envoy") for _ in range(CONNECTIONS)]
    async with AsyncExitStack() as stack:
        loads = [ClosedLoopLoad(testbed.driver, requests, streams - 2 * third, seed)]
        for number, part in enumerate(_even_parts(third, len(envoys))):
            proxies = mesh.plan.proxies if number % 2 else mesh.plan.proxies[::-1]
            client = await stack.enter_async_context(Client(*proxies, api_key=mesh.api_key))
            driver = GrpcDriver([client], time.time)
            loads.append(ClosedLoopLoad(driver, requests, part, seed + 1 + number, via=ANY_ENVOY))
        for number, (envoy, part) in enumerate(zip(envoys, _even_parts(third, len(envoys)), strict=True)):
            plain = await stack.enter_async_context(PlainClient(envoy.address, mesh.api_key))
            driver = GrpcDriver([plain], time.time)
            loads.append(ClosedLoopLoad(driver, requests, part, seed + 100 + number, via=envoy.name, is_plain=True))
        yield Loads(loads)


def _even_parts(total: int, count: int) -> list[int]:
    return [total // count + (number < total % count) for number in range(count)]
