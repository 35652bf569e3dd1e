"""Generation: one answer as the caller reads it, over all attempts."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from types import TracebackType
from typing import Protocol, Self
from uuid import uuid4

from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import DeadlineExceeded, PenstockError, Unavailable
from penstock.client.progress import Event, Progress, TokenChunk
from penstock.client.request import set_timeout
from penstock.client.retries import CONNECTION_LOST, RetryBudget
from penstock.v1.inference_pb2 import Accepted, Finished, GenerateRequest


class Transport(Protocol):
    """Carries attempts of requests to an edge."""

    def attempt(self, request: GenerateRequest, connect_timeout: float) -> AsyncGenerator[Event, None]:
        """Yield the events of one attempt up to `finished`. Raises PenstockError. Closing it early cancels the request.

        `connect_timeout` limits the wait for a connection in seconds; the request's timeout limits the rest.
        """


class Generation:
    """One answer, iterated as token chunks. The first iteration sends the request.

    Leaving its block early cancels the request on the worker. Without a block, a generation that is not read to its end
    is cancelled when it is garbage-collected.
    """

    def __init__(self, transport: Transport, request: GenerateRequest, budget: RetryBudget) -> None:
        self._transport = transport
        self._budget = budget
        self._timeout = seconds_of(request.timeout) if request.HasField("timeout") else None
        self._progress = Progress(_repeatable(request))
        self._chunks = self._read_chunks()
        self.attempted_at: list[float] = []  # monotonic s of the start of each attempt

    def __repr__(self) -> str:
        return f"<Generation attempt {self.attempts} {self._progress}>"

    @property
    def attempts(self) -> int:
        return len(self.attempted_at)

    @property
    def is_accepted(self) -> bool:
        """Whether an edge has accepted the request."""
        return self._progress.accepted is not None

    @property
    def accepted(self) -> Accepted:
        """The values that the edge accepted. Available from the first chunk on; before that raises RuntimeError."""
        if self._progress.accepted is None:
            raise RuntimeError("no edge has accepted the request yet; read the answer first")
        return self._progress.accepted

    @property
    def finished(self) -> Finished:
        """End and usage of the answer. The usage of a resumed answer is that of its last attempt."""
        if self._progress.finished is None:
            raise RuntimeError("the answer is not finished; read it to its end first")
        return self._progress.finished

    @property
    def text(self) -> str:
        """All text received so far."""
        return self._progress.text

    @property
    def token_ids(self) -> list[int]:
        """All token ids received so far."""
        return list(self._progress.token_ids)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._chunks.aclose()

    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        return self._chunks

    async def read(self) -> str:
        """Read to the end and return the whole text."""
        async for _ in self._chunks:
            pass
        return self.text

    async def _read_chunks(self) -> AsyncGenerator[TokenChunk, None]:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            self.attempted_at.append(time.monotonic())
            request, timeout = self._next_request(deadline)
            try:
                async with aclosing(self._transport.attempt(request, timeout)) as events:
                    async for event in events:
                        if chunk := self._progress.apply(event):
                            yield chunk
                if self._progress.finished:
                    self._budget.on_success()
                    return
                raise Unavailable("the edge ended the answer without finishing it", reason=CONNECTION_LOST)
            except PenstockError as error:
                await self._wait_before_retry(error, deadline)

    def _next_request(self, deadline: float | None) -> tuple[GenerateRequest, float]:
        """Return the request of the next attempt with the remaining time, and the timeout of its connection."""
        request, timeout = self._progress.next_request(), self._budget.policy.connect_timeout
        if deadline is not None:
            left = deadline - time.monotonic()
            set_timeout(request, left)
            timeout = min(timeout, left)
        return request, timeout

    async def _wait_before_retry(self, error: PenstockError, deadline: float | None) -> None:
        """Wait for the next attempt. Raises `error` if there is none."""
        wait = self._budget.delay(error, self.attempts, random.random())  # noqa: S311  # jitter, not security
        if wait is None:
            raise error
        if deadline is not None and time.monotonic() + wait >= deadline:
            text = f"no time is left for another attempt after: {error.message}"
            raise DeadlineExceeded(text) from error
        await asyncio.sleep(wait)


def _repeatable(request: GenerateRequest) -> GenerateRequest:
    """Return the request with an id and a seed of its answer, which all attempts have.

    An edge that lives goes on with an attempt whose connection was lost, and may charge its prompt, before the client
    has read the id and the seed that the edge would choose.
    """
    named = GenerateRequest()
    named.CopyFrom(request)
    named.answer_id = uuid4().hex
    if not named.sampling.HasField("seed"):
        named.sampling.seed = random.getrandbits(64)  # not security
    return named
