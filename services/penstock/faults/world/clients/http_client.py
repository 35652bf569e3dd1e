"""HTTP client of a world: calls the edges over the simulated network."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import grpc
import orjson

from penstock.faults.world.http_door import METHOD, HttpRequest

ANSWER_TIMEOUT_S = 12.0  # s that a client waits for the next part of an answer, before it calls another edge
OK = 200

Json = dict[str, Any]


class CallFailed(Exception):
    """A call was answered with an error."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status} {body.decode()}")
        self.status = status


class Edges:
    """The edges of a world, each behind a channel of its own."""

    def __init__(self, targets: Sequence[str]) -> None:
        self._channels: list[Any] = [grpc.aio.insecure_channel(each) for each in targets]

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def whole(self, number: int, request: HttpRequest) -> bytes:
        """Return the body. Raises CallFailed, ConnectionError and TimeoutError."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return b"".join([part async for part in self._body(number, request)])

    async def stream(self, number: int, request: HttpRequest) -> AsyncGenerator[Json, None]:
        """Yield the events of a stream. Raises as `whole`."""
        buffered = b""
        async with aclosing(self._body(number, request)) as parts:
            while True:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    part = await anext(parts, None)
                if part is None:
                    return
                *events, buffered = (buffered + part).split(b"\n\n")
                for event in events:
                    _, is_event, data = event.partition(b"data: ")
                    if is_event:
                        yield orjson.loads(data)

    async def _body(self, number: int, request: HttpRequest) -> AsyncGenerator[bytes, None]:
        async with aclosing(http_call(self._channels[number % len(self._channels)], request)) as frames:
            status = int(await anext(frames, b"0"))
            if status == 0:
                raise ConnectionError("the call ended without a status")
            if status != OK:
                raise CallFailed(status, b"".join([part async for part in frames]))
            async for part in frames:
                yield part


async def http_call(channel: Any, request: HttpRequest) -> AsyncGenerator[bytes, None]:
    """Send a request; yield its status and the parts of its body. Raises ConnectionError if the connection is lost."""
    call = channel.unary_stream(METHOD, HttpRequest.pack, bytes)(request)
    try:
        async for frame in call:
            yield frame
    except grpc.aio.AioRpcError as error:
        raise ConnectionError(str(error.details())) from None
    finally:
        call.cancel()
