"""Measures the rejection floor: the least cost of a rejection, by empty handlers in their own process.

The handlers reject a gRPC call, a message on an open stream and an HTTP request, one at a time.
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
import uvicorn
import uvloop

from penstock.bench.run import process_cpu_s
from penstock.chassis.channels import channel
from penstock.chassis.server.server import SERVER_OPTIONS

SERVICE_NAME, UNARY_METHOD, STREAM_METHOD = "penstock.Floor", "Reject", "RejectEach"
REJECTED_STATUS = httpx.codes.SERVICE_UNAVAILABLE
CALLS_PER_DRIVER = 500
CALL_INTERVAL_S = 0.005  # s

RejectFn = Callable[[], Awaitable[object]]


class RejectionFloor(NamedTuple):
    cpu_s: float  # s of the server for one rejection
    latencies_s: Sequence[float]  # s until each rejection


async def measure_floors(calls: int = CALLS_PER_DRIVER) -> dict[str, RejectionFloor]:
    """Return the floor of each API by its name."""
    async with _rejecting_server() as (ports, pid), channel(f"127.0.0.1:{ports[0]}") as to_server:
        call: Any = to_server.unary_stream(f"/{SERVICE_NAME}/{UNARY_METHOD}")
        stream: Any = to_server.stream_stream(f"/{SERVICE_NAME}/{STREAM_METHOD}")()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports[1]}") as http:
            rejections: dict[str, RejectFn] = {
                "session": lambda: _reject_on_stream(stream),
                "grpc": lambda: _reject_call(call),
                "completions": lambda: http.post("/", content=b""),
            }
            floors = {api: await _measure(reject, pid, calls) for api, reject in rejections.items()}
        stream.cancel()
        return floors


async def _measure(reject: RejectFn, pid: int, calls: int) -> RejectionFloor:
    await reject()
    cpu_before, latencies = process_cpu_s(pid), []
    for _ in range(calls):
        started_at = time.monotonic()
        await reject()
        latencies.append(time.monotonic() - started_at)
        await asyncio.sleep(CALL_INTERVAL_S)
    return RejectionFloor((process_cpu_s(pid) - cpu_before) / calls, latencies)


async def _reject_on_stream(stream: Any) -> None:
    await stream.write(b"")
    await stream.read()


async def _reject_call(call: Any) -> None:
    try:
        await call(b"").read()
    except grpc.aio.AioRpcError:
        return
    raise AssertionError("the empty handler accepted a call")


@asynccontextmanager
async def _rejecting_server() -> AsyncIterator[tuple[list[int], int]]:
    """Yield the gRPC and HTTP ports, and the process id."""
    argv = (sys.executable, "-m", __name__)
    child = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    try:
        yield [int(port) for port in (await child.stdout.readline()).split()], child.pid
    finally:
        child.kill()
        await child.wait()


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
