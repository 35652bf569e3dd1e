"""One attempt at one request, whatever carries it."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from types import TracebackType
from typing import Protocol, Self

from penstock.chassis.errors import DeadlineExceeded, PenstockError, Unavailable
from penstock.client.progress import Event, Progress, TokenChunk
from penstock.client.request import set_timeout
from penstock.client.retries import CONNECTION_LOST, RetryBudget
from penstock.v1.inference_pb2 import Accepted, Finished, GenerateRequest


class Transport(Protocol):
    def attempt(self, request: GenerateRequest, connect_timeout: float) -> AsyncGenerator[Event, None]:
        """Yield what the edge says, up to `finished`; raises PenstockError. Closing it early cancels the request.

        patience: s, for a connection; the request's own timeout bounds the rest.
        """


class Generation:
    """Iterate it for pieces. Nothing is asked before that; leaving the block early cancels, down to the GPU.

    Without a block, an answer that is not read to its end is cancelled once nothing refers to it any more.
    """

    def __init__(self, transport: Transport, request: GenerateRequest, budget: RetryBudget) -> None:
        self._transport = transport
        self._budget = budget
        self._timeout = request.timeout.ToTimedelta().total_seconds() if request.HasField("timeout") else None
        self._progress = Progress(request)
        self._chunks = self._read_chunks()
        self.attempts = 0

    def __repr__(self) -> str:
        return f"<Answer attempt {self.attempts} {self._progress}>"

    @property
    def is_accepted(self) -> bool:
        """Whether an edge has taken the request in."""
        return self._progress.accepted is not None

    @property
    def accepted(self) -> Accepted:
        """What the edge took in; there from the first piece on."""
        if self._progress.accepted is None:
            raise RuntimeError("no edge has taken the request in yet; read the answer first")
        return self._progress.accepted

    @property
    def finished(self) -> Finished:
        """How it ended, and what it cost; of an answer that was resumed, what its last attempt has cost."""
        if self._progress.finished is None:
            raise RuntimeError("the answer is not finished; read it to its end first")
        return self._progress.finished

    @property
    def text(self) -> str:
        """All text so far."""
        return self._progress.text

    @property
    def token_ids(self) -> list[int]:
        """All tokens so far."""
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
            self.attempts += 1
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
        """The request of the next attempt, with the time that is left."""
        request, timeout = self._progress.next_request(), self._budget.policy.connect_timeout
        if deadline is not None:
            left = deadline - time.monotonic()
            set_timeout(request, left)
            timeout = min(timeout, left)
        return request, timeout

    async def _wait_before_retry(self, error: PenstockError, deadline: float | None) -> None:
        """Wait for the next attempt, or raise `error` where there is to be none."""
        wait = self._budget.delay(error, self.attempts, random.random())  # noqa: S311  # spreads, guards nothing
        if wait is None:
            raise error
        if deadline is not None and time.monotonic() + wait >= deadline:
            text = f"no time is left for another attempt after: {error.message}"
            raise DeadlineExceeded(text) from error
        await asyncio.sleep(wait)
