"""What it costs to be refused whatever decides it: empty handlers that say no, in a process of their own.

By a call of its own, in one frame of a stream that stands, and by HTTP; one after the other, as refusals come.
"""

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc
import httpx
import psutil
import uvicorn
import uvloop

from penstock.chassis.channels import channel
from penstock.chassis.server import SERVER_OPTIONS

SERVICE, CALL, STREAM = "penstock.Floor", "Refuse", "Converse"
REFUSED = httpx.codes.SERVICE_UNAVAILABLE
CALLS = 500
EVERY = 0.005  # s between calls

Refuse = Callable[[], Awaitable[object]]


class Floor(NamedTuple):
    cpu: float  # s of a refusal, of the server alone
    waits: Sequence[float]  # s until each answer


async def measured_floors(calls: int = CALLS) -> dict[str, Floor]:
    """Return the floors of the ways to ask, by their names."""
    async with _server() as (ports, process), channel(f"127.0.0.1:{ports[0]}") as to_server:
        call: Any = to_server.unary_stream(f"/{SERVICE}/{CALL}")
        stream: Any = to_server.stream_stream(f"/{SERVICE}/{STREAM}")()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports[1]}") as http:
            ways: dict[str, Refuse] = {
                "session": lambda: _told(stream),
                "call": lambda: _aborted(call),
                "HTTP": lambda: http.post("/", content=b""),
            }
            floors = {name: await _measured(refuse, process, calls) for name, refuse in ways.items()}
        stream.cancel()
        return floors


async def _measured(refuse: Refuse, process: psutil.Process, calls: int) -> Floor:
    await refuse()
    before, waits = _cpu(process), []
    for _ in range(calls):
        began = time.monotonic()
        await refuse()
        waits.append(time.monotonic() - began)
        await asyncio.sleep(EVERY)
    return Floor((_cpu(process) - before) / calls, waits)


async def _told(stream: Any) -> None:
    await stream.write(b"")
    await stream.read()


async def _aborted(call: Any) -> None:
    try:
        await call(b"").read()
    except grpc.aio.AioRpcError:
        return
    raise AssertionError("an empty handler answered")


@asynccontextmanager
async def _server() -> AsyncIterator[tuple[list[int], psutil.Process]]:
    argv = (sys.executable, "-m", __name__)
    child = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    try:
        yield [int(port) for port in (await child.stdout.readline()).split()], psutil.Process(child.pid)
    finally:
        child.kill()
        await child.wait()


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _abort(_: bytes, context: Any) -> None:
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no")


async def _converse(_: Any, context: Any) -> None:
    while await context.read() is not grpc.aio.EOF:
        await context.write(b"")


async def _answer(_scope: Any, _receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": REFUSED, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _serve() -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    handlers: dict[str, Any] = {
        CALL: grpc.unary_stream_rpc_method_handler(_abort),
        STREAM: grpc.stream_stream_rpc_method_handler(_converse),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    config = uvicorn.Config(_answer, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False)
    listener = socket.create_server(("127.0.0.1", 0))
    print(port, listener.getsockname()[1], flush=True)  # noqa: T201 - read by the parent process
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    uvloop.run(_serve())
