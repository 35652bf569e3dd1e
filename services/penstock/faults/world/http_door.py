"""HTTP of a world: the edge's own ASGI application, called over the simulated network."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from penstock.chassis.lifecycle import background, current_stop
from penstock.edge.api.http.exchange import ON_DISCONNECT

METHOD = "http/request"
CLEANUP_GRACE_S = 1.0  # s that aborted calls have to end


class HttpRequest(NamedTuple):
    """One request. `target` is its path with the query."""

    method: str
    target: str
    bearer: str
    request_id: str = ""
    body: str = ""
    content_type: str = ""
    idempotency_key: str = ""

    def pack(self) -> bytes:
        return orjson.dumps([*self])

    @property
    def scope(self) -> dict[str, Any]:
        path, _, query = self.target.partition("?")
        headers = [(b"authorization", f"Bearer {self.bearer}".encode())]
        given = {
            b"x-request-id": self.request_id,
            b"content-type": self.content_type,
            b"idempotency-key": self.idempotency_key,
        }
        headers += [(name, value.encode()) for name, value in given.items() if value]
        return {
            "type": "http",
            "method": self.method,
            "path": path,
            "query_string": query.encode(),
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "state": {},
        }


@dataclass(frozen=True, slots=True)
class HttpHandler:
    """Serves requests with an ASGI application: the first frame of a response is its status, the others its body."""

    app: Any
    request_streaming: bool = False
    response_streaming: bool = True

    @staticmethod
    def request_deserializer(packed: bytes) -> HttpRequest:
        return HttpRequest(*orjson.loads(packed))

    @staticmethod
    def response_serializer(frame: bytes) -> bytes:
        return frame

    async def unary_stream(self, request: HttpRequest, context: Any) -> None:
        scope = request.scope

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": request.body.encode(), "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            await context.write(b"%d" % message["status"] if "status" in message else message["body"])

        serving = asyncio.get_running_loop().create_task(self.app(scope, receive, send))
        try:
            await asyncio.wait({serving})
        except asyncio.CancelledError:  # the client has disconnected
            scope["state"].get(ON_DISCONNECT, serving.cancel)()
            await asyncio.wait({serving})
            raise
        serving.result()


def http_opener(open_server: Callable[[], Any]) -> Callable[..., Any]:
    """Return the replacement of the edge's `serving_http`. `open_server` opens a server of the simulated network."""

    @asynccontextmanager
    async def serving_http(listen: str, app: Any, drain_grace: float, *_: Any, **__: Any) -> AsyncIterator[str]:
        """Listen until the process is asked to stop; abort calls that run after `drain_grace`, in s."""
        if not listen:
            yield ""
            return
        server = open_server()
        server.add_registered_method_handlers(*_handlers(app))
        server.add_insecure_port(listen)
        await server.start()

        async def drain() -> None:
            aborting = asyncio.get_running_loop().call_later(drain_grace, app.abort)
            await server.stop(drain_grace + CLEANUP_GRACE_S)
            aborting.cancel()

        async def drain_at_stop() -> None:
            await current_stop().requested.wait()
            await drain()

        async with background(drain_at_stop()):
            try:
                yield listen
            finally:
                await drain()

    return serving_http


def _handlers(app: Any) -> tuple[str, dict[str, HttpHandler]]:
    service, _, name = METHOD.partition("/")
    return service, {name: HttpHandler(app)}
