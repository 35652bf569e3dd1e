"""A real Envoy with a real control plane in front of backends that the test controls."""

import asyncio
import contextlib
import json
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from free_ports import free_port
from penstock.routing.bootstrap import bootstrap

ENVOY = Path(sys.executable).parent / "envoy"
LINE_TIMEOUT_S = 60.0
ECHO = "/penstock.v1.Inference/"  # the proxy forwards no other service
SERVER_OPTIONS = [
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    # From 1000 calls that Python has not picked up yet, C-core cancels some at random.
    ("grpc.server.max_pending_requests", 10_000),
    ("grpc.server.max_pending_requests_hard_limit", 20_000),
]


class Backend:
    """A fake edge for gRPC and HTTP: each stream sends one message, waits for `go`, and sends another."""

    def __init__(self, name):
        self.name = name
        self.may_continue = asyncio.Event()
        self.client_disconnected = asyncio.Event()  # a client disconnected before its stream ended
        self.silent_calls = asyncio.Semaphore(0)  # one for each silent call
        self.metadata = {}  # of the last unary call
        self.writers = set()  # of HTTP connections
        self.calls = []  # paths of all calls over gRPC and HTTP, except health checks

    @asynccontextmanager
    async def running(self):
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("penstock.v1.Inference", self._methods()),)
        )
        ready = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(ready, self.server)
        await ready.set("", health_pb2.HealthCheckResponse.SERVING)
        self.grpc_port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        self.web = await asyncio.start_server(self._http, "127.0.0.1", 0)
        self.http_port = self.web.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            await self.stop()

    async def stop(self):
        self.may_continue.set()
        self.web.close()
        for writer in list(self.writers):
            writer.transport.abort()
        await self.server.stop(None)

    @property
    def edge(self):
        return f"127.0.0.1:{self.grpc_port}/127.0.0.1:{self.http_port}"

    def _methods(self):
        return {
            "Unary": grpc.unary_unary_rpc_method_handler(self._unary),
            "Stream": grpc.unary_stream_rpc_method_handler(self._stream),
            "Silent": grpc.unary_stream_rpc_method_handler(self._silent),
            "Chat": grpc.stream_stream_rpc_method_handler(self._chat),
        }

    async def _unary(self, request, context):
        self.metadata = dict(context.invocation_metadata())
        self.calls.append("Unary")
        return self.name.encode()

    async def _stream(self, request, context):
        ended = False
        try:
            yield f"{self.name} first".encode()
            await self.may_continue.wait()
            yield f"{self.name} second".encode()
            ended = True
        finally:
            if not ended:
                self.client_disconnected.set()

    async def _silent(self, request, context):
        await context.send_initial_metadata(())  # as an edge that has admitted a call
        self.silent_calls.release()
        await self.may_continue.wait()
        yield b""

    async def _chat(self, requests, context):
        async for request in requests:
            yield self.name.encode() + b" " + request

    async def _http(self, reader, writer):
        self.writers.add(writer)
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                await self._answer(request.split(b" ", 2)[1].decode(), reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    async def _answer(self, path, reader, writer):
        if path != "/health":
            self.calls.append(path)
        if path != "/v1/stream":
            body = b"ok" if path == "/health" else self.name.encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(_chunk(f"data: {self.name} first\n\n"))
        async with asyncio.TaskGroup() as group:
            disconnect = group.create_task(reader.read(1))
            go = group.create_task(self.may_continue.wait())
            await asyncio.wait([disconnect, go], return_when=asyncio.FIRST_COMPLETED)
            if disconnect.done():
                self.client_disconnected.set()
            disconnect.cancel()
            go.cancel()
        writer.write(_chunk(f"data: {self.name} second\n\n") + b"0\r\n\r\n")


def _chunk(text):
    return b"%x\r\n%s\r\n" % (len(text), text.encode())


class LoggedProcess:
    """A child process with a log on stderr, whose lines the test can await."""

    def __init__(self, child):
        self.child = child
        self.lines = []

    async def wait_for_line(self, *fragments):
        """Read to the next line with all the fragments; skipped lines are in `lines`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINE_TIMEOUT_S):
                while raw := await self.child.stderr.readline():
                    self.lines.append(raw.decode(errors="replace"))
                    if all(fragment in self.lines[-1] for fragment in fragments):
                        return self.lines[-1]
        raise AssertionError(f"{fragments} were not logged:\n" + "".join(self.lines))


@asynccontextmanager
async def logged_process(*command, env=None):
    child = await asyncio.create_subprocess_exec(
        *map(str, command),
        env={**os.environ, **(env or {})},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        limit=2**20,
    )
    try:
        yield LoggedProcess(child)
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


class EnvoyProxy:
    """One Envoy and its control plane, with the backends `edges`."""

    def __init__(self, folder, **settings):
        self.folder = folder
        self.settings = settings  # PENSTOCK_ROUTING_*
        self.authority = None  # PEM of the authority of the door's certificate; None: plaintext
        self.port, self.admin_port, self.xds_port = free_port(), free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.xds_address = f"127.0.0.1:{self.xds_port}"

    def write_edges(self, *edges):
        replacement = self.folder / "edges.new"
        replacement.write_text("\n".join(edges))
        replacement.rename(self.folder / "edges")  # the file is replaced atomically

    def control_plane(self):
        return logged_process(
            sys.executable,
            "-m",
            "penstock.routing",
            env={
                "PENSTOCK_ROUTING_LISTEN": self.xds_address,
                "PENSTOCK_ROUTING_EDGES": f"file://{self.folder}/edges",
                "PENSTOCK_ROUTING_ENVOY_LISTEN": self.address,
                "PENSTOCK_ROUTING_DISCOVERY_INTERVAL": "0.05",
                **{f"PENSTOCK_ROUTING_{name}": str(value) for name, value in self.settings.items()},
            },
        )

    @asynccontextmanager
    async def envoy(self):
        """A started Envoy that has all its resources and has checked its backends once."""
        file = self.folder / "envoy.json"
        file.write_text(json.dumps(bootstrap(self.xds_address, f"127.0.0.1:{self.admin_port}", "front-1")))
        flags = ["--concurrency", "1", "--disable-hot-restart"]
        async with logged_process(ENVOY, "-c", file, *flags) as envoy:
            await envoy.wait_for_line("all dependencies initialized. starting workers")
            async with self.channel() as probe:
                await probe.channel_ready()
            yield envoy

    @asynccontextmanager
    async def channel(self, own=0):
        """A channel; each number `own` has a separate connection."""
        backoff = [("grpc.initial_reconnect_backoff_ms", 20), ("grpc.max_reconnect_backoff_ms", 20)]
        options = [("grpc.use_local_subchannel_pool", 1), ("test.own", own), *backoff]
        if self.authority:
            credentials = grpc.ssl_channel_credentials(self.authority)
            opened = grpc.aio.secure_channel(self.address, credentials, options=options)
        else:
            opened = grpc.aio.insecure_channel(self.address, options=options)
        async with opened as channel:
            yield channel


@asynccontextmanager
async def running_front(folder, *backends, authority=None, **settings):
    """A proxy with its control plane in front of `backends`, and one channel to it as `calls`."""
    async with AsyncExitStack() as stack:
        front = EnvoyProxy(folder, **settings)
        front.authority = authority
        front.backends = [await stack.enter_async_context(backend.running()) for backend in backends]
        front.write_edges(*(backend.edge for backend in backends))
        front.plane = await stack.enter_async_context(front.control_plane())
        await front.plane.wait_for_line('"listening"')
        front.proxy = await stack.enter_async_context(front.envoy())
        front.calls = await stack.enter_async_context(front.channel())
        yield front
