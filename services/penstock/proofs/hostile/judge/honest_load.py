"""The honest load: requests at a fixed rate by every route, and streams through Envoy that never pause.

The rate does not depend on the answers, so that an attack cannot lower the load that it is judged by. The streams are
plain gRPC calls, which fail if anything cuts them; SDK clients would resume and hide it.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from penstock.bench.drivers.driver import Driver, open_driver
from penstock.bench.drivers.grpc import GrpcDriver, PlainClient
from penstock.bench.load import BenchRequest
from penstock.bench.transcript import Transcript
from penstock.chassis.lifecycle import background
from penstock.client import Options, RetryPolicy
from penstock.local_mesh.mesh import LocalMesh

REQUESTS_PER_S = 8.0  # over all routes
REQUEST_TOKENS = 12
STREAMS = 20  # neighbours of an attacker, on connections of their own
STREAM_TOKENS = 60
STREAM_CONNECTIONS = 4
PROMPT = "Name the colours of the rainbow."
REQUEST_TIMEOUT_S = 20.0  # s
STREAM_PAUSE_S = 0.2  # s after a failed stream
SETTINGS = (
    "PENSTOCK_WORKER_SIM_BASE_S=0.05",  # s of an engine step: 20 tokens/s of each stream
    "PENSTOCK_WORKER_SIM_PER_DECODE_SEQ_S=0",
)


class HonestLoad:
    """Requests and streams, and their transcripts in Unix s."""

    def __init__(self, routes: Sequence[Driver], neighbours: Sequence[Driver]) -> None:
        self.requests: list[Transcript] = []
        self.streams: list[Transcript] = []
        self._routes = routes
        self._neighbours = neighbours
        self._numbers = itertools.count()
        self._is_stopped = asyncio.Event()
        self.ended = asyncio.Event()  # stopped, and no request is active

    async def run(self) -> None:
        """Offer the load until it is stopped, then wait for what is active."""
        async with asyncio.TaskGroup() as group:
            for number in range(STREAMS):
                group.create_task(self._repeat_stream(self._neighbours[number % len(self._neighbours)]))
            due_at = time.monotonic()
            for route in itertools.cycle(self._routes):
                due_at += 1 / REQUESTS_PER_S
                if await self._is_stopped_within(due_at - time.monotonic()):
                    break
                group.create_task(self._send(route, REQUEST_TOKENS, self.requests))
        self.ended.set()

    def stop(self) -> None:
        self._is_stopped.set()

    async def _repeat_stream(self, neighbour: Driver) -> None:
        while not self._is_stopped.is_set():
            transcript = await self._send(neighbour, STREAM_TOKENS, self.streams)
            if transcript.code != "OK" and await self._is_stopped_within(STREAM_PAUSE_S):
                return

    async def _send(self, driver: Driver, tokens: int, transcripts: list[Transcript]) -> Transcript:
        number = next(self._numbers)
        options = Options(
            max_output_tokens=tokens,
            ignore_eos=True,
            temperature=0.0,
            timeout=REQUEST_TIMEOUT_S,
            request_id=f"honest-{number}",
        )
        transcript = Transcript(number, time.time())
        transcripts.append(transcript)
        try:
            async with asyncio.timeout(2 * REQUEST_TIMEOUT_S):
                await driver.send(BenchRequest(prompt=PROMPT, options=options, number=number), transcript)
        except Exception as error:  # noqa: BLE001  # an answer that the driver cannot read is a failed request
            transcript.end(time.time(), type(error).__name__, "UNAVAILABLE")
        return transcript

    async def _is_stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._is_stopped.wait()
        except TimeoutError:
            return self._is_stopped.is_set()
        return True


@asynccontextmanager
async def honest_load(mesh: LocalMesh) -> AsyncIterator[HonestLoad]:
    """Offer the load beside the block: directly to the edge under attack, and through its Envoy."""
    plan, key = mesh.plan, mesh.api_key
    async with AsyncExitStack() as stack:
        routes = [
            await stack.enter_async_context(open_driver(api, [address], key, clock=time.time, retries=retries))
            for api, address, retries in (
                ("grpc", plan.grpc, RetryPolicy()),
                ("completions", plan.proxy, RetryPolicy()),
                ("completions", plan.http, RetryPolicy()),
            )
        ]
        plain = [
            GrpcDriver([await stack.enter_async_context(PlainClient(plan.proxy, key))], time.time)
            for _ in range(STREAM_CONNECTIONS)
        ]
        load = HonestLoad([*routes, plain[0]], plain)
        async with background(load.run()):
            yield load
