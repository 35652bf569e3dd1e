"""The interface of all drivers, and `open_driver`, which opens one by the name of its API."""

import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

import httpx

from penstock.bench.drivers.grpc import GrpcDriver
from penstock.bench.drivers.http import HttpDriver
from penstock.bench.load import BenchRequest
from penstock.bench.transcript import Transcript
from penstock.client import Client, RetryPolicy

GRPC_APIS = ("grpc", "session")
HTTP_APIS = ("responses", "chat", "completions")
NO_RETRIES = RetryPolicy(max_attempts=1)
HTTP_TIMEOUT_S = 600.0  # s; the bound of one request


class Driver(Protocol):
    async def send(self, request: BenchRequest, transcript: Transcript) -> None:
        """Send one request and read its answer into `transcript`; a failure is recorded there, never raised."""


@asynccontextmanager
async def open_driver(
    api: str,
    addresses: Sequence[str],
    key: str,
    *,
    clock: Callable[[], float] = time.perf_counter,
    retries: RetryPolicy = NO_RETRIES,
    sessions: int = 1,
) -> AsyncIterator[Driver]:
    """`addresses`: host:port of edges, which the driver uses in rotation. `sessions`: streams of the session API."""
    async with AsyncExitStack() as stack:
        if api in HTTP_APIS:
            headers, limits = {"authorization": f"Bearer {key}"}, httpx.Limits(max_connections=None)
            http = await stack.enter_async_context(
                httpx.AsyncClient(headers=headers, limits=limits, timeout=HTTP_TIMEOUT_S)
            )
            yield HttpDriver(http, itertools.cycle(f"http://{each}/v1" for each in addresses), api, clock)
            return
        client = await stack.enter_async_context(Client(*addresses, api_key=key, retries=retries))
        if api == "grpc":
            yield GrpcDriver([client], clock)
            return
        yield GrpcDriver([await stack.enter_async_context(client.session()) for _ in range(sessions)], clock)
