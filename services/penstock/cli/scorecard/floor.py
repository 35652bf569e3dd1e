"""What a refused call costs whatever is done in it: an empty handler that aborts, in a process of its own."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc
import psutil
import uvloop

from penstock.chassis.channels import channel
from penstock.chassis.server import SERVER_OPTIONS

SERVICE, METHOD = "penstock.Floor", "Refuse"
CALLS = 500
EVERY = 0.005  # s between calls; refusals come one by one as well


class Floor(NamedTuple):
    cpu: float  # s of a call, of the server alone
    waits: Sequence[float]  # s until each answer


async def measured_floor(calls: int = CALLS) -> Floor:
    async with _server() as (address, process), channel(address) as to_server:
        refuse: Any = to_server.unary_stream(f"/{SERVICE}/{METHOD}")
        await _refused(refuse)
        before, waits = _cpu(process), []
        for _ in range(calls):
            waits.append(await _refused(refuse))
            await asyncio.sleep(EVERY)
        return Floor((_cpu(process) - before) / calls, waits)


async def _refused(refuse: Any) -> float:
    began = time.monotonic()
    try:
        await refuse(b"").read()
    except grpc.aio.AioRpcError:
        return time.monotonic() - began
    raise AssertionError("an empty handler answered")


@asynccontextmanager
async def _server() -> AsyncIterator[tuple[str, psutil.Process]]:
    argv = (sys.executable, "-m", __name__)
    child = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    try:
        yield f"127.0.0.1:{int(await child.stdout.readline())}", psutil.Process(child.pid)
    finally:
        child.kill()
        await child.wait()


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _abort(_: bytes, context: Any) -> None:
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no")


async def _serve() -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    handler: Any = grpc.unary_stream_rpc_method_handler(_abort)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)  # for who started it
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(_serve())
