"""A process of clients that send requests and cancel them on command.

In separate processes, clients that cancel at once wait for a core at most, and not for one another. The messages on
standard input and output are lines of JSON: first a `ClientProcessConfig`; then for each round a `CancelRound`, which
the process answers with `READY` when all clients have sent their requests, a line to cancel them, and the
`CancelReport` as the answer to that.
"""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import orjson
import uvloop

from penstock.bench.drivers.driver import Driver, open_driver
from penstock.bench.load import BenchRequest
from penstock.bench.transcript import Transcript
from penstock.chassis.garbage import freeze_gc
from penstock.chassis.lifecycle import background
from penstock.client import Options, RetryPolicy
from penstock.proofs.requests import request_catalog
from penstock.proofs.testbed.clients.line_process import LineProcess, open_line_process, read_message, write_message

TRANSPORTS = {"grpc": "grpc", "session": "session", "http": "completions"}  # API by transport
READY = "ready"
CATALOG_SIZE = 16
TIMER_INTERVAL_S = 0.01  # s


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProcessConfig:
    grpc_addresses: list[str]
    http_addresses: list[str]
    api_key: str
    max_output_tokens: int  # of an answer
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRound:
    name: str
    transport: str
    clients: int
    arrival_period_s: float  # s, over which the clients send their requests
    cancel_period_s: float  # s, over which they cancel; 0: all at once


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelledClient:
    """One client that has cancelled. Times are Unix s, by the clock of the host that the mesh runs on as well."""

    request_id: str
    transport: str
    cancelled_at: float
    cancel_sent_at: float  # when the client's own event loop had passed the cancel on
    was_active: bool
    failure_text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReport:
    clients: list[CancelledClient]
    timer_lags_s: list[float]  # s by which a timer was late, measured repeatedly while clients arrived

    @classmethod
    def from_json(cls, report: Any) -> "CancelReport":
        return cls(clients=[CancelledClient(**each) for each in report["clients"]], timer_lags_s=report["timer_lags_s"])


class CancellableRequest:
    """One client that reads its answer until it cancels."""

    def __init__(self, driver: Driver, transport: str, request: BenchRequest, group: asyncio.TaskGroup) -> None:
        self._transport = transport
        self._request = request
        self._transcript = Transcript(request.number, time.time())
        self._reading = group.create_task(self._read(driver))
        self._cancelled_at = 0.0
        self._cancel_sent_at = 0.0
        self._was_active = False

    async def cancel(self) -> None:
        """Cancel, and let the event loop send the cancel before other clients use its time."""
        self._cancelled_at, self._was_active = time.time(), not self._reading.done()
        self._reading.cancel()
        await asyncio.sleep(0)

    async def result(self) -> CancelledClient:
        await asyncio.wait([self._reading])
        transcript = self._transcript
        has_failed = transcript.code not in ("", "OK")
        return CancelledClient(
            request_id=self._request.options["request_id"],
            transport=self._transport,
            cancelled_at=self._cancelled_at,
            cancel_sent_at=self._cancel_sent_at,
            was_active=self._was_active,
            failure_text=f"{transcript.code} / {transcript.outcome}" if has_failed else "",
        )

    async def _read(self, driver: Driver) -> None:
        try:
            await driver.send(self._request, self._transcript)
        finally:
            self._cancel_sent_at = time.time()


async def serve(config: ClientProcessConfig) -> None:
    """Run the rounds that standard input names, until its end."""
    async with AsyncExitStack() as stack:
        drivers = {
            transport: await stack.enter_async_context(_open_driver(api, config))
            for transport, api in TRANSPORTS.items()
        }
        while message := await read_message():
            write_message(await _run_round(drivers, config, CancelRound(**message)))


def _open_driver(api: str, config: ClientProcessConfig) -> Any:
    addresses = config.http_addresses if api == TRANSPORTS["http"] else config.grpc_addresses
    return open_driver(api, addresses, config.api_key, retries=RetryPolicy(), sessions=len(addresses))


async def _run_round(
    drivers: Mapping[str, Driver], config: ClientProcessConfig, cancel_round: CancelRound
) -> CancelReport:
    rng = random.Random(f"{config.seed}-{cancel_round.name}")
    catalog = request_catalog(CATALOG_SIZE, config.max_output_tokens, config.seed)
    driver, count = drivers[cancel_round.transport], cancel_round.clients
    lags: list[float] = []
    async with asyncio.TaskGroup() as group:
        clients = []
        async with background(_measure_timer_lag(lags)):
            for number in range(count):
                await asyncio.sleep(rng.uniform(0, 2) * cancel_round.arrival_period_s / count)
                request = _with_id(rng.choice(catalog), f"{cancel_round.name}-{number}")
                clients.append(CancellableRequest(driver, cancel_round.transport, request, group))
        write_message(READY)
        await read_message()
        for client in clients:
            if cancel_round.cancel_period_s:
                await asyncio.sleep(rng.uniform(0, 2) * cancel_round.cancel_period_s / count)
            await client.cancel()
    return CancelReport(clients=[await client.result() for client in clients], timer_lags_s=lags)


def _with_id(request: BenchRequest, request_id: str) -> BenchRequest:
    return replace(request, options=Options(**{**request.options, "request_id": request_id}))


async def _measure_timer_lag(lags: list[float]) -> None:
    while True:
        due = time.monotonic() + TIMER_INTERVAL_S
        await asyncio.sleep(TIMER_INTERVAL_S)
        lags.append(time.monotonic() - due)


class ClientProcess:
    """A process of clients, as its parent sees it."""

    def __init__(self, process: LineProcess) -> None:
        self._process = process

    async def start_round(self, cancel_round: CancelRound) -> None:
        """Return when all clients have sent their requests."""
        await self._process.send(cancel_round)
        if await self._process.receive() != READY:
            raise RuntimeError("the client process sent another message than that it is ready")

    async def cancel_all(self) -> CancelReport:
        await self._process.send(None)
        return CancelReport.from_json(await self._process.receive())


@asynccontextmanager
async def open_client_process(config: ClientProcessConfig) -> AsyncIterator[ClientProcess]:
    """Run a client process for the duration of the block."""
    async with open_line_process(__name__) as process:
        await process.send(config)
        yield ClientProcess(process)


if __name__ == "__main__":
    freeze_gc()
    uvloop.run(serve(ClientProcessConfig(**orjson.loads(sys.stdin.buffer.readline()))))
