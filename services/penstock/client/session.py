"""Many requests on few streams: the cheapest way to stream, per token, and it goes on when its edge does not."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Unpack
from uuid import uuid4

from penstock.chassis.errors import Cancelled, PenstockError, Unavailable
from penstock.client.answer import Answer
from penstock.client.calls import Metadata
from penstock.client.endpoints import Endpoint, Endpoints
from penstock.client.progress import Event
from penstock.client.request import Options, Prompt, generate_request
from penstock.client.retries import RetryBudget
from penstock.client.stream import DRAINING, EdgeStream, lost
from penstock.v1.inference_pb2 import GenerateRequest

SEARCH = 60.0  # s; for a connected edge, until the search begins anew
BACKOFF = (0.05, 1.0)  # s; between streams that no edge greeted, drawn from the upper half
# What an edge says of itself and not of the request, beside that it drains: another may do better.
MOVE_ON = frozenset({"AUTH_LOST", "QUEUE_LOST"})


class Session:
    """`generate` as the client has it, all on one stream at a time. Runs while the client's `session()` block does.

    An edge that drains, or has lost a tier, gets no more requests: the next go to another edge, while those that run
    on the first stream end there.
    """

    def __init__(self, endpoints: Endpoints, metadata: Metadata, budget: RetryBudget) -> None:
        self._endpoints = endpoints
        self._metadata = metadata
        self._budget = budget
        self._instance_id = f"client-{uuid4().hex[:8]}"
        self._streams: list[EdgeStream] = []
        self._current: EdgeStream | None = None  # takes what is asked next
        self._changed = asyncio.Event()
        self._is_closed = False

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Answer:
        return Answer(self, generate_request(prompt, **options), self._budget)

    async def complete(self, prompt: Prompt, **options: Unpack[Options]) -> str:
        async with self.generate(prompt, **options) as answer:
            return await answer.read()

    async def run(self) -> None:
        """Keep a stream to an edge that takes requests, until cancelled."""
        wait = BACKOFF[0]
        async with asyncio.TaskGroup() as group:
            while not self._is_closed:
                stream = EdgeStream(await self._connected(), self._metadata, self._instance_id, self._on_change)
                self._streams.append(stream)
                group.create_task(self._hold(stream))
                await stream.ceased()
                self._endpoints.failed(stream.endpoint)
                wait = BACKOFF[0] if stream.was_up else min(2 * wait, BACKOFF[1])
                if not stream.was_up:
                    await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311  # spreads, guards nothing

    async def end(self) -> None:
        """Say that nothing more comes; what still runs is cancelled with its stream."""
        self.close()
        for stream in list(self._streams):
            await stream.end(_closed())

    def close(self) -> None:
        """End what runs and take no more."""
        self._is_closed = True
        self._changed.set()  # whoever waits for an edge is to hear of it too
        for stream in self._streams:
            stream.fail(_closed())

    async def attempt(self, request: GenerateRequest, patience: float) -> AsyncGenerator[Event, None]:
        """As any transport. That an edge drains is no answer to a request, and finding another no attempt at it."""
        give_up_at, wait = time.monotonic() + patience, 0.0
        while True:
            stream = await self._taking(give_up_at, patience)
            try:
                async with aclosing(stream.attempt(request)) as events:
                    async for event in events:
                        yield event
            except Unavailable as error:
                if error.reason == DRAINING or (error.reason in MOVE_ON and self._endpoints.has_other()):
                    stream.retire()
                if error.reason != DRAINING or time.monotonic() + wait >= give_up_at:
                    raise
                await asyncio.sleep(wait)  # not the first time: there may be another edge
                wait = error.retry_after or BACKOFF[0]
            else:
                return

    async def _taking(self, give_up_at: float, patience: float) -> EdgeStream:
        """Wait for a stream that takes requests; raises CONNECTION_LOST when there is none for too long."""
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + give_up_at - time.monotonic()):
                while not (self._is_closed or self._current):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise lost(f"no edge within {patience:.1f} s") from None
        if self._is_closed or not self._current:
            raise _closed()
        return self._current

    async def _connected(self) -> Endpoint:
        while True:
            with suppress(Unavailable):
                return await self._endpoints.connected(SEARCH)

    async def _hold(self, stream: EdgeStream) -> None:
        try:
            await stream.run()
        finally:
            self._streams.remove(stream)

    def _on_change(self, stream: EdgeStream) -> None:
        if stream.is_taking:
            self._current = stream
        elif self._current is stream:
            self._current = None
        self._changed.set()


def _closed() -> PenstockError:
    return Cancelled("the session is closed; its block was left")
