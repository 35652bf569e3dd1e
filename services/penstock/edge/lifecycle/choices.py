"""The choices of one response: several requests whose output one reader iterates."""

import asyncio
from collections import deque
from collections.abc import Callable

from penstock.chassis.errors import PenstockError
from penstock.edge.lifecycle.effects import AcknowledgeCancel, Emit
from penstock.edge.lifecycle.memory import MemoryBudget
from penstock.edge.lifecycle.sinks import ResponseBuffer, delta_of
from penstock.edge.output.answer import PLAIN, OutputFormat
from penstock.edge.request.limit_headers import Headers
from penstock.edge.text.token_text import DescribeToken, no_text
from penstock.v1.inference_pb2 import Accepted, Delta, Finished


class ChoiceSink:
    """Receives the output of one choice. `wake` is called for each event."""

    def __init__(self, choice: int, memory: MemoryBudget, wake: Callable[[], None]) -> None:
        self.choice = choice
        self.buffer = ResponseBuffer(memory)
        self.accepted: Accepted | None = None
        self.finished: Finished | None = None  # until the reader has taken it
        self.failure: PenstockError | None = None
        self._wake = wake

    def send_accepted(self, accepted: Accepted) -> None:
        self.accepted = accepted
        self._wake()

    def send_delta(self, delta: Emit) -> int:
        self._wake()
        return self.buffer.add(delta)

    def send_finished(self, finished: Finished) -> None:
        self.finished = finished
        self._wake()

    def send_failed(self, error: PenstockError) -> None:
        self.failure = error
        self._wake()

    def send_cancelled(self, acknowledgement: AcknowledgeCancel) -> bool:
        return False  # a reader that has cancelled reads no further event

    @property
    def error(self) -> PenstockError | None:
        return self.buffer.error or self.failure

    def pop(self) -> Delta | Finished | None:
        """Return the next event, which names the choice. None if there is none now."""
        event: Delta | Finished | None
        if self.buffer:
            event = delta_of(self.buffer.pop())
        else:
            event, self.finished = self.finished, None
        if event:
            event.choice = self.choice
        return event


class ChoiceStream:
    """A response of several choices that one reader iterates, as it iterates a `ResponseStream`.

    It begins with one `accepted`, that of the first choice, once all choices are accepted. Each choice then has its
    deltas and one `finished`. The first error of any choice ends the response.
    """

    def __init__(self, memory: MemoryBudget, choices: int) -> None:
        self.cancel: Callable[[], None] = lambda: None
        self.limit_headers: Callable[[], Headers] = tuple
        self.describe_token: DescribeToken = no_text
        self.output_format: Callable[[], OutputFormat] = lambda: PLAIN
        self.sinks = [ChoiceSink(choice, memory, self._wake) for choice in range(choices)]
        self._turns = deque(self.sinks)  # in turn, so that no choice is always read last
        self._unfinished = choices
        self._has_begun = False
        self._waiter: asyncio.Future[None] | None = None  # of the reader, while there is nothing for it

    @property
    def accepted(self) -> list[Accepted]:
        """The `accepted` of each choice, once all are accepted."""
        return [sink.accepted for sink in self.sinks if sink.accepted]

    @property
    def error(self) -> PenstockError | None:
        """The error of the first choice that has one."""
        return next((sink.error for sink in self.sinks if sink.error), None)

    def close(self) -> None:
        """Release the output that the reader has not taken, and will not take."""
        for sink in self.sinks:
            sink.buffer.clear()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> "ChoiceStream":
        return self

    async def __anext__(self) -> Accepted | Delta | Finished:
        """Return the next event. Raises the error of a choice as soon as there is one."""
        while True:
            if error := self.error:
                raise error
            if event := self._pop():
                return event
            if not self._unfinished:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _pop(self) -> Accepted | Delta | Finished | None:
        if not self._has_begun:
            first = self.sinks[0].accepted
            self._has_begun = all(sink.accepted for sink in self.sinks)
            return first if self._has_begun else None
        for _ in self.sinks:
            self._turns.rotate(-1)
            if event := self._turns[-1].pop():
                self._unfinished -= isinstance(event, Finished)
                return event
        return None
