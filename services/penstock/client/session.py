"""Session: many requests on one stream to an edge, with a new stream if that edge drains or is lost."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Unpack
from uuid import uuid4

from penstock.chassis.errors import Cancelled, PenstockError, PermissionDenied, Unavailable
from penstock.client.calls import traced
from penstock.client.endpoints import Endpoint, Endpoints, Metadata
from penstock.client.progress import Event
from penstock.client.request import Options, Prompt, generate_request
from penstock.client.response import Generation
from penstock.client.retries import RetryBudget
from penstock.client.stream import DRAINING, EdgeStream, connection_lost
from penstock.v1.inference_pb2 import GenerateRequest

EDGE_SEARCH_TIMEOUT_S = 60.0  # of one search for a connected edge; then the next search begins
# First and longest delay after a stream that was not connected; jitter takes up to half of it.
RECONNECT_BACKOFF_S = (0.05, 1.0)
# Errors of one edge and not of the request, beside DRAINING: another edge may succeed.
SWITCH_EDGE_REASONS = frozenset({"AUTH_LOST", "QUEUE_LOST"})


class Session:
    """Sends requests over one stream at a time. Exists while the client's `session()` block runs.

    An edge that drains or has lost an upstream receives no further requests, and neither does a failover target when a
    home target is up. New requests go to another edge, while running requests complete on the first stream.
    """

    def __init__(self, endpoints: Endpoints, metadata: Metadata, budget: RetryBudget, traceparent: str = "") -> None:
        self._endpoints = endpoints
        self._metadata = traced(metadata, traceparent)
        self._traceparent = traceparent  # of requests that have none of their own
        self._budget = budget
        self._instance_id = f"client-{uuid4().hex[:8]}"
        self._streams: list[EdgeStream] = []
        self._current: EdgeStream | None = None  # accepts new requests
        self._rejection: PenstockError | None = None  # of the last stream, if its edge does not accept the caller
        self._changed = asyncio.Event()
        self._is_closed = False

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Generation:
        request = generate_request(prompt, **options)
        request.traceparent = request.traceparent or self._traceparent
        return Generation(self, request, self._budget)

    async def complete(self, prompt: Prompt, **options: Unpack[Options]) -> str:
        async with self.generate(prompt, **options) as generation:
            return await generation.read()

    async def run(self) -> None:
        """Keep a stream connected to an edge that accepts requests, until cancelled."""
        wait = RECONNECT_BACKOFF_S[0]
        async with asyncio.TaskGroup() as group:
            while not self._is_closed:
                endpoint, began_at = await self._next_endpoint(), time.monotonic()
                stream = EdgeStream(endpoint, self._metadata, self._instance_id, self._on_change)
                self._streams.append(stream)
                group.create_task(self._run_stream(stream))
                returning = group.create_task(self._return_home(stream)) if endpoint.is_failover else None
                await stream.wait_retired()
                is_returning = returning is not None and not returning.cancel()  # as a home target is up
                is_refused = stream.rejection is not None and self._endpoints.can_leave(endpoint, stream.rejection)
                self._set_rejection(None if is_refused else stream.rejection)
                if not (is_returning or is_refused):
                    self._endpoints.mark_failed(endpoint, began_at)
                wait = RECONNECT_BACKOFF_S[0] if stream.was_connected else min(2 * wait, RECONNECT_BACKOFF_S[1])
                if not stream.was_connected:
                    await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311  # jitter, not security

    async def end(self) -> None:
        """Cancel running requests and end all streams."""
        self.close()
        for stream in list(self._streams):
            await stream.end(_closed())

    def close(self) -> None:
        """Cancel running requests and reject new ones."""
        self._is_closed = True
        self._changed.set()  # wakes requests that wait for an edge
        for stream in self._streams:
            stream.fail(_closed())

    async def attempt(self, request: GenerateRequest, connect_timeout: float) -> AsyncGenerator[Event, None]:
        """Run one attempt.

        A DRAINING rejection moves it to another edge, and a refusal of the edge's region to one of another region,
        without counting as an attempt.
        """
        deadline, wait = time.monotonic() + connect_timeout, 0.0
        while True:
            stream = await self._wait_accepting_stream(deadline, connect_timeout)
            try:
                async with aclosing(stream.attempt(request)) as events:
                    async for event in events:
                        yield event
            except PermissionDenied as error:
                if not self._endpoints.can_leave(stream.endpoint, error):
                    raise
                stream.retire()
            except Unavailable as error:
                if error.reason == DRAINING or (
                    error.reason in SWITCH_EDGE_REASONS and self._endpoints.has_healthy_other()
                ):
                    stream.retire()
                if error.reason != DRAINING or time.monotonic() + wait >= deadline:
                    raise
                await asyncio.sleep(wait)  # 0 s at first, because another edge may be connected
                wait = error.retry_after or RECONNECT_BACKOFF_S[0]
            else:
                return

    async def _wait_accepting_stream(self, deadline: float, timeout: float) -> EdgeStream:
        """Return a stream that accepts requests.

        Raises Unavailable / CONNECTION_LOST at `deadline`, or at once the error of an edge that rejects the caller.
        """
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - time.monotonic()):
                while not (self._is_closed or self._current):
                    if self._rejection:
                        raise self._rejection.with_traceback(None)
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise connection_lost(f"no edge within {timeout:.1f} s") from None
        if self._is_closed or not self._current:
            raise _closed()
        return self._current

    async def _next_endpoint(self) -> Endpoint:
        while True:
            with suppress(Unavailable):
                return await self._endpoints.next_connected(EDGE_SEARCH_TIMEOUT_S)

    async def _return_home(self, stream: EdgeStream) -> None:
        """Retire a stream to a failover target when a home target is up. Its requests complete there."""
        await self._endpoints.wait_home()
        stream.retire()

    async def _run_stream(self, stream: EdgeStream) -> None:
        try:
            await stream.run()
        finally:
            self._streams.remove(stream)

    def _set_rejection(self, rejection: PenstockError | None) -> None:
        self._rejection = rejection
        if rejection:
            self._changed.set()

    def _on_change(self, stream: EdgeStream) -> None:
        if stream.is_accepting:
            self._current, self._rejection = stream, None
        elif self._current is stream:
            self._current = None
        self._changed.set()


def _closed() -> PenstockError:
    return Cancelled("the session is closed; its block was left")
