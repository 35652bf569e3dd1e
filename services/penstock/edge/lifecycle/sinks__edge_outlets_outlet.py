"""The client's end of a flight."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from penstock.chassis.errors import PenstockError
from penstock.edge.lifecycle.effects import AcknowledgeCancel, Emit
from penstock.edge.lifecycle.sinks__edge_outlets_backlog import ResponseBuffer
from penstock.v1.inference_pb2 import Accepted, Delta, Finished


class ResponseSink(Protocol):
    """Takes what a flight tells its client; never waits."""

    @property
    def unread_bytes(self) -> int:
        """Bytes given and not yet taken."""

    def send_accepted(self, accepted: Accepted) -> None: ...

    def send_delta(self, piece: Emit) -> None: ...

    def send_finished(self, finished: Finished) -> None: ...

    def send_failed(self, error: PenstockError) -> None: ...

    def send_cancelled(self, receipt: AcknowledgeCancel) -> None: ...


class ResponseStream:
    """An answer as one reader iterates it: what came while the reader was busy comes as one delta.

    `leave` cancels the request at once; a reader that is left by its client may take turns of the loop to unwind.
    """

    def __init__(self) -> None:
        self.cancel: Callable[[], None] = lambda: None
        self._buffer = ResponseBuffer()
        self._accepted: deque[Accepted] = deque()
        self._ending: Finished | PenstockError | None = None
        self._ready = asyncio.Event()

    @property
    def unread_bytes(self) -> int:
        return self._buffer.size_bytes

    def send_accepted(self, accepted: Accepted) -> None:
        self._accepted.append(accepted)
        self._ready.set()

    def send_delta(self, piece: Emit) -> None:
        self._buffer.add(piece)
        self._ready.set()

    def send_finished(self, finished: Finished) -> None:
        self._end(finished)

    def send_failed(self, error: PenstockError) -> None:
        self._end(error)

    def send_cancelled(self, receipt: AcknowledgeCancel) -> None:
        """The reader left; nobody is there to be told."""

    def _end(self, ending: Finished | PenstockError) -> None:
        self._ending = ending
        self._ready.set()

    def __aiter__(self) -> "ResponseStream":
        return self

    async def __anext__(self) -> Accepted | Delta | Finished:
        """Return the next event; raises the flight's error after all that came before it."""
        await self._ready.wait()
        if self._accepted:
            event: Accepted | Delta | Finished = self._accepted.popleft()
        elif self._buffer:
            event = delta_of(self._buffer.pop())
        elif isinstance(self._ending, PenstockError):
            raise self._ending
        elif self._ending is None:
            raise StopAsyncIteration
        else:
            event, self._ending = self._ending, None
            return event  # `_ready` stays set: the next call ends the iteration
        if not (self._accepted or self._buffer or self._ending):
            self._ready.clear()
        return event


def delta_of(piece: Emit) -> Delta:
    return Delta(text=piece.text, token_ids=piece.token_ids, first_index=piece.first_index, logprobs=piece.logprobs)
