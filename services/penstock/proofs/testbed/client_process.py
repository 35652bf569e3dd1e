"""A process of clients, and the few words in which it is told to have them come and leave.

In processes of their own, clients that leave at once wait for a core at most, and not for one another. The words are
lines of JSON: first a `Place`, then for each crowd a `Call`, answered by `HERE` once all have come, a line to have
them leave, and the answer to that, a `Report`.
"""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
import uvloop

from penstock.chassis.lifecycle import background, freeze_gc
from penstock.proofs.requests import request_catalog
from penstock.proofs.testbed.cancelling_clients import (
    CancellableRequest,
    CancelledClient,
    ClientTransports,
    open_transports,
)

READY_LINE = b'"here"\n'
CATALOG_SIZE = 16
TIMER_INTERVAL_S = 0.01  # s
EXIT_TIMEOUT_S = 5.0  # s, for a process that has heard the end to go by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProcessConfig:
    """Where the clients ask, and for what."""

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
    arrival_period_s: float  # s, over which they come
    cancel_period_s: float  # s, over which they leave; 0: all at once


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReport:
    clients: list[CancelledClient]
    timer_lags_s: list[float]  # s by which a timer was late, again and again while clients came

    @classmethod
    def from_json(cls, line: bytes) -> "CancelReport":
        found = orjson.loads(line)
        return cls(clients=[CancelledClient(**each) for each in found["clients"]], timer_lags_s=found["timer_lags_s"])


async def serve(config: ClientProcessConfig) -> None:
    """Do what the lines on the standard input say, to their end."""
    async with open_transports(config.grpc_addresses, config.http_addresses, config.api_key) as doors:
        while line := await _read_line():
            report = await _run_round(doors, config, CancelRound(**line))
            _write_line(orjson.dumps(report) + b"\n")


async def _run_round(transports: ClientTransports, config: ClientProcessConfig, round_: CancelRound) -> CancelReport:
    rng = random.Random(f"{config.seed}-{round_.name}")
    wishes = request_catalog(CATALOG_SIZE, config.max_output_tokens, config.seed)
    late: list[float] = []
    async with asyncio.TaskGroup() as group:
        crowd = []
        async with background(_measure_timer_lag(late)):
            for number in range(round_.clients):
                await asyncio.sleep(rng.uniform(0, 2) * round_.arrival_period_s / round_.clients)
                crowd.append(
                    CancellableRequest(
                        transports, round_.transport, rng.choice(wishes), f"{round_.name}-{number}", group
                    )
                )
        _write_line(READY_LINE)
        await _read_line()
        for visit in crowd:
            if round_.cancel_period_s:
                await asyncio.sleep(rng.uniform(0, 2) * round_.cancel_period_s / round_.clients)
            await visit.cancel()
    return CancelReport(clients=[await visit.result() for visit in crowd], timer_lags_s=late)


async def _measure_timer_lag(lags: list[float]) -> None:
    while True:
        due = time.monotonic() + TIMER_INTERVAL_S
        await asyncio.sleep(TIMER_INTERVAL_S)
        lags.append(time.monotonic() - due)


async def _read_line() -> Any:
    """One line from whoever started this process; nothing at its end."""
    line = await asyncio.to_thread(sys.stdin.buffer.readline)
    return orjson.loads(line) if line else None


def _write_line(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


class ClientProcess:
    """One such process, as who started it sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def start_round(self, round_: CancelRound) -> None:
        """Return once all are there, and have asked."""
        await self.send(round_)
        if await self._receive() != READY_LINE:
            raise RuntimeError("the clients' process said something else than that they are there")

    async def cancel_all(self) -> CancelReport:
        await self.send(None)
        return CancelReport.from_json(await self._receive())

    async def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def send(self, message: object) -> None:
        assert self._process.stdin
        self._process.stdin.write(orjson.dumps(message) + b"\n")
        await self._process.stdin.drain()

    async def _receive(self) -> bytes:
        assert self._process.stdout
        if line := await self._process.stdout.readline():
            return line
        raise RuntimeError("the clients' process ended; what it wrote to standard error says why")


@asynccontextmanager
async def open_client_process(config: ClientProcessConfig) -> AsyncIterator[ClientProcess]:
    """Have a process of clients for as long as the block runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    crowd = ClientProcess(process)
    try:
        await crowd.send(config)
        yield crowd
    finally:
        await crowd.close()


if __name__ == "__main__":
    freeze_gc()
    uvloop.run(serve(ClientProcessConfig(**orjson.loads(sys.stdin.buffer.readline()))))
