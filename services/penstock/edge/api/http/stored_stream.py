"""Streams a stored response to one reader, from any event on."""

import asyncio

from penstock.edge.api.http.exchange import Exchange
from penstock.edge.api.openai.common import ApiRequest, NumberedSerializer
from penstock.edge.api.openai.responses.stored import accepted_of, end_of, serializer_of
from penstock.edge.lifecycle.effects import Emit
from penstock.edge.stored.stream import ResponseOutput

FROM_START = -1
EVENT_END = b"\n\n"


class StoredStreamWriter:
    """Writes the events of a response, one for each token with text.

    Their numbers depend on the tokens alone, not on when they arrive, so that a reader can go on at another edge. While
    the reader waits for the next token, it is written where it arrives.
    """

    def __init__(
        self,
        exchange: Exchange,
        request: ApiRequest,
        created_at: int,
        output: ResponseOutput,
        *,
        starting_after: int = FROM_START,
    ) -> None:
        """`starting_after`: number of the last event that the reader has."""
        self._exchange = exchange
        self._request = request
        self._created_at = created_at
        self._output = output
        self._starting_after = starting_after
        self._written = 0  # tokens
        self._serializer: NumberedSerializer | None = None
        self._waiter: asyncio.Future[None] | None = None  # while there is nothing to write

    async def run(self) -> None:
        output, exchange = self._output, self._exchange
        output.listeners.append(self._on_change)
        try:
            while output.accepted is None and output.status is None:
                await self._change()
            self._serializer = serializer = serializer_of(self._request, self._created_at, output)
            opening = serializer.begin(accepted_of(self._request, output))
            await exchange.begin(self._unread(opening, 0), serializer.fail)
            while True:
                while self._written < len(output.log):
                    if frame := self._next_frame(serializer):
                        await exchange.write(frame)
                if output.status is not None:
                    break
                await self._change()
        finally:
            output.listeners.remove(self._on_change)
        first = serializer.next_number
        rest = serializer.delta(Emit(output.rest, (), len(output.log), ())) if output.rest else b""
        await exchange.end(self._unread(rest + end_of(serializer, output, output.status), first, keeps_last=True))

    def _next_frame(self, serializer: NumberedSerializer) -> bytes:
        first = serializer.next_number
        frame = serializer.delta(self._output.log[self._written])
        self._written += 1
        return self._unread(frame, first)

    def _unread(self, frame: bytes, first_number: int, *, keeps_last: bool = False) -> bytes:
        """Return the events of a frame that the reader does not have.

        `keeps_last`: in any case the last event, the end of the response. A reader may have more tokens than were
        stored when the response was cancelled, and must learn of the end.
        """
        known = self._starting_after + 1 - first_number
        if known <= 0:
            return frame
        events = frame.split(EVENT_END)
        return EVENT_END.join(events[min(known, len(events) - 2) if keeps_last else known :])

    async def _change(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _on_change(self) -> None:
        if self._waiter is None or self._waiter.done():
            return
        if self._serializer and self._exchange.can_write and self._output.status is None:
            while self._written < len(self._output.log):
                if frame := self._next_frame(self._serializer):
                    self._exchange.write_now(frame)
        else:
            self._waiter.set_result(None)
