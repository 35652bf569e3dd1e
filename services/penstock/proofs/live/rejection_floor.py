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
from penstock.chassis.server.server import SERVER_OPTIONS

SERVICE_NAME, UNARY_METHOD, STREAM_METHOD = "penstock.Floor", "Refuse", "Converse"
REJECTED_STATUS = httpx.codes.SERVICE_UNAVAILABLE
CALLS_PER_DRIVER = 500
CALL_INTERVAL_S = 0.005  # s between calls

RejectFn = Callable[[], Awaitable[object]]


class RejectionFloor(NamedTuple):
    cpu_s: float  # s of a refusal, of the server alone
    latencies_s: Sequence[float]  # s until each answer


async def measure_floors(calls: int = CALLS_PER_DRIVER) -> dict[str, RejectionFloor]:
    """Return the floors of the ways to ask, by their names."""
    async with _rejecting_server() as (ports, process), channel(f"127.0.0.1:{ports[0]}") as to_server:
        call: Any = to_server.unary_stream(f"/{SERVICE_NAME}/{UNARY_METHOD}")
        stream: Any = to_server.stream_stream(f"/{SERVICE_NAME}/{STREAM_METHOD}")()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports[1]}") as http:
            ways: dict[str, RejectFn] = {
                "session": lambda: _reject_on_stream(stream),
                "call": lambda: _reject_call(call),
                "HTTP": lambda: http.post("/", content=b""),
            }
            floors = {name: await _measure(refuse, process, calls) for name, refuse in ways.items()}
        stream.cancel()
        return floors


async def _measure(reject: RejectFn, process: psutil.Process, calls: int) -> RejectionFloor:
    await reject()
    before, waits = _cpu(process), []
    for _ in range(calls):
        began = time.monotonic()
        await reject()
        waits.append(time.monotonic() - began)
        await asyncio.sleep(CALL_INTERVAL_S)
    return RejectionFloor((_cpu(process) - before) / calls, waits)


async def _reject_on_stream(stream: Any) -> None:
    await stream.write(b"")
    await stream.read()


async def _reject_call(call: Any) -> None:
    try:
        await call(b"").read()
    except grpc.aio.AioRpcError:
        return
    raise AssertionError("an empty handler answered")


@asynccontextmanager
async def _rejecting_server() -> AsyncIterator[tuple[list[int], psutil.Process]]:
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


async def _abort_call(_: bytes, context: Any) -> None:
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no")


async def _reject_each_message(_: Any, context: Any) -> None:
    while await context.read() is not grpc.aio.EOF:
        await context.write(b"")


async def _http_app(_scope: Any, _receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": REJECTED_STATUS, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _serve() -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    handlers: dict[str, Any] = {
        UNARY_METHOD: grpc.unary_stream_rpc_method_handler(_abort_call),
        STREAM_METHOD: grpc.stream_stream_rpc_method_handler(_reject_each_message),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE_NAME, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    config = uvicorn.Config(_http_app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False)
    listener = socket.create_server(("127.0.0.1", 0))
    print(port, listener.getsockname()[1], flush=True)  # noqa: T201 - read by the parent process
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    uvloop.run(_serve())
