"""The clients of the kill proof: SDK clients at the edges, SDK clients and plain gRPC clients through the Envoys."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from penstock.client import Client
from penstock.local_mesh.mesh import LocalMesh
from penstock.proofs.checks.transcript import ANY_ENVOY
from penstock.proofs.requests import ProofRequest
from penstock.proofs.testbed.load import ClosedLoopLoad, Loads
from penstock.proofs.testbed.plain_clients import PlainClient

CONNECTIONS = 2  # of each kind of client to each Envoy


@asynccontextmanager
async def open_load_through_all(
    direct: Client, mesh: LocalMesh, requests: Sequence[ProofRequest], streams: int, seed: int
) -> AsyncIterator[Loads]:
    """Split `streams` into three even parts: SDK at the edges, SDK through the Envoys, plain gRPC through them."""
    third = streams // 3
    envoys = [each for each in mesh.plan.processes_of("envoy") for _ in range(CONNECTIONS)]
    async with AsyncExitStack() as stack:
        loads = [ClosedLoopLoad(direct, requests, streams - 2 * third, seed)]
        for number, part in enumerate(_parts(third, len(envoys))):
            proxies = mesh.plan.proxies if number % 2 else mesh.plan.proxies[::-1]
            client = await stack.enter_async_context(Client(*proxies, api_key=mesh.api_key))
            loads.append(ClosedLoopLoad(client, requests, part, seed + 1 + number, via=ANY_ENVOY))
        for number, (envoy, part) in enumerate(zip(envoys, _parts(third, len(envoys)), strict=True)):
            plain = await stack.enter_async_context(PlainClient(envoy.address, mesh.api_key))
            loads.append(ClosedLoopLoad(plain, requests, part, seed + 100 + number, via=envoy.name))
        yield Loads(loads)


def _parts(whole: int, count: int) -> list[int]:
    return [whole // count + (number < whole % count) for number in range(count)]
