"""Response sinks: the receivers of a response, with a buffer of the output that the client has not read yet."""

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Protocol

from penstock.chassis.errors import PenstockError, error_from_failure, failure_from
from penstock.edge.lifecycle.effects import AcknowledgeCancel, Emit
from penstock.edge.lifecycle.memory import MemoryBudget
from penstock.edge.output.answer import PLAIN, OutputFormat
from penstock.edge.request.limit_headers import Headers
from penstock.edge.text.token_text import DescribeToken, no_text
from penstock.v1 import inference_pb2 as pb
from penstock.v1.inference_pb2 import Accepted, Delta, Finished

MAX_LOOSE_DELTAS = 16  # of one buffer; a delta takes about 300 bytes as an object and 5 to 20 in an array
BYTES_PER_ID = 4
BYTES_PER_LOGPROB = 8


class ResponseBuffer:
    """Deltas that are merged into one when they are taken. The request runner enforces the limit of `size_bytes`.

    A client that is more than `MAX_LOOSE_DELTAS` behind is slow: its deltas are packed into arrays, which are counted
    in `memory` until they are taken or discarded.
    """

    def __init__(self, memory: MemoryBudget) -> None:
        self.size_bytes = 0  # approximate for deltas that are not packed
        self.packed_bytes = 0  # counted in `memory`
        self.error: PenstockError | None = None  # set if output was discarded
        self._memory = memory
        self._deltas: list[Emit] = []  # after those in the arrays
        self._first_index = 0  # of `_token_ids`
        self._reset_arrays()

    def __bool__(self) -> bool:
        return self.size_bytes > 0

    def add(self, delta: Emit) -> int:
        """Return the unread bytes, `delta` included."""
        if len(self._deltas) >= MAX_LOOSE_DELTAS:
            self._pack()
        self._deltas.append(delta)
        self.size_bytes = size = self.size_bytes + BYTES_PER_ID * len(delta.token_ids) + len(delta.text)
        return size

    def pop(self) -> Emit:
        """Return all deltas as one. Text without a token is kept for the next call.

        A client that resumes with all tokens receives that text again. It can drop the text only if it is a delta of
        its own.
        """
        if self.packed_bytes:
            return self._pop_packed()
        if len(self._deltas) == 1:
            self.size_bytes = 0
            return self._deltas.pop()
        deltas, self._deltas, self.size_bytes = self._deltas, [], 0
        if len(deltas) > 1 and not deltas[-1].token_ids:
            self.add(deltas.pop())
        if len(deltas) == 1:
            return deltas[0]
        merged = Emit(
            "".join(delta.text for delta in deltas),
            [token_id for delta in deltas for token_id in delta.token_ids],
            deltas[0].first_index,
            [logprob for delta in deltas for logprob in delta.logprobs],
        )
        if not deltas[0].top_token_ids:
            return merged
        return merged._replace(
            top_token_ids=[token_id for delta in deltas for token_id in delta.top_token_ids],
            top_logprobs=[logprob for delta in deltas for logprob in delta.top_logprobs],
        )

    def discard(self, error: PenstockError) -> None:
        """Drop the unread output. The client receives `error` instead of the rest of its answer."""
        self.error = error
        self.clear()

    def clear(self) -> None:
        """Drop the unread output of a reader that is gone."""
        if self.packed_bytes:
            self._memory.remove_unread(self, self.packed_bytes)
            self._reset_arrays()
        self._deltas, self.size_bytes, self.packed_bytes = [], 0, 0

    def _reset_arrays(self) -> None:
        self._text, self._token_ids, self._logprobs = bytearray(), array("I"), array("d")  # the text as UTF-8
        self._top_token_ids, self._top_logprobs = array("I"), array("d")

    def _pack(self) -> None:
        if not self.packed_bytes:
            self._first_index = self._deltas[0].first_index
        for text, token_ids, _, logprobs, top_token_ids, top_logprobs in self._deltas:
            self._text += text.encode()
            self._token_ids.extend(token_ids)
            self._logprobs.extend(logprobs)
            self._top_token_ids.extend(top_token_ids)
            self._top_logprobs.extend(top_logprobs)
        self._deltas.clear()
        id_count = len(self._token_ids) + len(self._top_token_ids)
        logprob_count = len(self._logprobs) + len(self._top_logprobs)
        packed = len(self._text) + BYTES_PER_ID * id_count + BYTES_PER_LOGPROB * logprob_count
        self._memory.add_unread(self, packed - self.packed_bytes)
        self.size_bytes = self.packed_bytes = packed

    def _pop_packed(self) -> Emit:
        last = self._deltas.pop() if self._deltas and not self._deltas[-1].token_ids else None
        self._pack()
        merged = Emit(
            self._text.decode(),
            self._token_ids.tolist(),
            self._first_index,
            self._logprobs.tolist(),
            self._top_token_ids.tolist(),
            self._top_logprobs.tolist(),
        )
        self.clear()
        if last:
            self.add(last)
        return merged


class ResponseSink(Protocol):
    """Receives the response of one request. Its methods never wait."""

    @property
    def buffer(self) -> ResponseBuffer:
        """Output that the client has not read yet."""

    def send_accepted(self, accepted: Accepted) -> None: ...

    def send_delta(self, delta: Emit) -> int:
        """Return the bytes that the client has not read yet, `delta` included."""

    def send_finished(self, finished: Finished) -> None: ...

    def send_failed(self, error: PenstockError) -> None: ...

    def send_cancelled(self, acknowledgement: AcknowledgeCancel) -> bool:
        """Returns whether the client waits for the acknowledgement."""
        ...


class ResponseStream:
    """A response that one reader iterates. Deltas that arrive while the reader is busy are merged.

    `cancel` cancels the request at once, before the reader's task has unwound. `limit_headers` returns what
    auth has told about the caller's limits. Once the response is accepted, `output_format` returns how its text is
    divided, and `describe_token` the text of a token.

    `write_through` is called for a delta that arrives while the reader waits and nothing is unread. If it returns True,
    it has sent the delta, and the reader does not receive it: a switch to its task would cost as much as the token.
    """

    def __init__(self, memory: MemoryBudget) -> None:
        self.cancel: Callable[[], None] = lambda: None
        self.limit_headers: Callable[[], Headers] = tuple
        self.output_format: Callable[[], OutputFormat] = lambda: PLAIN
        self.describe_token: DescribeToken = no_text
        self.write_through: Callable[[Emit], bool] | None = None
        self.buffer = ResponseBuffer(memory)
        self._accepted: deque[Accepted] = deque()
        self._ending: Finished | PenstockError | None = None
        self._is_over = False  # the reader has received the ending
        self._waiter: asyncio.Future[None] | None = None  # of the reader, while there is nothing for it

    def send_accepted(self, accepted: Accepted) -> None:
        self._accepted.append(accepted)
        self._wake()

    def send_delta(self, delta: Emit) -> int:
        if self._waiter and self.write_through:
            try:
                if self.write_through(delta):
                    return 0
            except Exception as error:  # noqa: BLE001  # logged by `failure_from`; it must not end its worker's stream
                self._end(error_from_failure(failure_from(error)))
        self._wake()
        return self.buffer.add(delta)

    def send_finished(self, finished: Finished) -> None:
        self._end(finished)

    def send_failed(self, error: PenstockError) -> None:
        self._end(error)

    def send_cancelled(self, acknowledgement: AcknowledgeCancel) -> bool:
        return False  # a reader that has cancelled reads no further event

    def close(self) -> None:
        """Release the output that the reader has not taken, and will not take."""
        self.buffer.clear()

    def _end(self, ending: Finished | PenstockError) -> None:
        self._ending = ending
        self._wake()

    def _wake(self) -> None:
        if self._waiter:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None

    def __aiter__(self) -> "ResponseStream":
        return self

    async def __anext__(self) -> Accepted | Delta | Finished:
        """Return the next event. Raises the error of the request after all events before it."""
        while True:
            if self._accepted:
                return self._accepted.popleft()
            if self.buffer.error:
                raise self.buffer.error
            if self.buffer:
                return delta_of(self.buffer.pop())
            if isinstance(self._ending, PenstockError):
                raise self._ending
            if self._is_over:
                raise StopAsyncIteration
            if self._ending:
                self._is_over = True
                return self._ending
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None


def delta_of(emit: Emit) -> Delta:
    delta = Delta(text=emit.text, token_ids=emit.token_ids, first_index=emit.first_index, logprobs=emit.logprobs)
    if emit.top_token_ids:
        delta.top_token_ids.extend(emit.top_token_ids)
        delta.top_logprobs.extend(emit.top_logprobs)
    return delta


class SessionStream(Protocol):
    """The interface of a session's stream for the sinks of its requests."""

    def send(self, frame: pb.SessionResponse) -> None: ...

    def on_output(self, sink: "SessionSink") -> None: ...

    @property
    def has_client_left(self) -> bool: ...

    def on_output_moved(self, size: int) -> None:
        """`size` bytes of unread output were moved to the outbox of the stream."""

    def on_request_over(self, sink: "SessionSink") -> None: ...


class SessionSink:
    """Collects deltas for the session's next step frame. Other events are sent at once, after earlier deltas."""

    def __init__(self, stream: SessionStream, handle: int, memory: MemoryBudget) -> None:
        self.handle = handle
        self.buffer = ResponseBuffer(memory)
        self._stream = stream

    def send_accepted(self, accepted: pb.Accepted) -> None:
        self._stream.send(pb.SessionResponse(accepted=pb.SessionAccepted(handle=self.handle, accepted=accepted)))

    def send_delta(self, delta: Emit) -> int:
        self._stream.on_output(self)
        return self.buffer.add(delta)

    def send_finished(self, finished: pb.Finished) -> None:
        if self.buffer.error:
            self.send_failed(self.buffer.error)
            return
        self._end(pb.SessionResponse(finished=pb.SessionFinished(handle=self.handle, finished=finished)))

    def send_failed(self, error: PenstockError) -> None:
        self._end(failed_frame(self.handle, error))

    def send_cancelled(self, acknowledgement: AcknowledgeCancel) -> bool:
        cancelled = pb.SessionCancelled(
            handle=self.handle,
            output_tokens=acknowledgement.output_tokens,
            kv_blocks_freed=acknowledgement.kv_blocks_freed,
        )
        self._end(pb.SessionResponse(cancelled=cancelled))
        return not self._stream.has_client_left

    def _end(self, frame: pb.SessionResponse) -> None:
        if self.buffer.packed_bytes:
            self._stream.on_output_moved(self.buffer.packed_bytes)
        while self.buffer:
            self._stream.send(step_frame([self]))
        self._stream.on_request_over(self)
        self._stream.send(frame)


class UnflushedOutput:
    """Output of ended requests in the outbox of a session. Counted until it is flushed; discarded with the session."""

    def __init__(self, memory: MemoryBudget, close: Callable[[], None]) -> None:
        self.size_bytes = 0
        self._memory = memory
        self._close = close  # closes the session

    def add(self, size: int) -> None:
        self.size_bytes += size
        self._memory.add_unread(self, size)

    def release(self) -> None:
        self._memory.remove_unread(self, self.size_bytes)
        self.size_bytes = 0

    def discard(self, error: PenstockError) -> None:
        self.release()
        self._close()


def failed_frame(handle: int, error: PenstockError) -> pb.SessionResponse:
    frame = pb.SessionResponse()
    frame.failed.handle = handle
    error.write_to(frame.failed.failure)
    return frame


def step_frame(sinks: list[SessionSink]) -> pb.SessionResponse:
    """Move the buffered output of all `sinks` into one frame of parallel arrays."""
    deltas = [sink.buffer.pop() for sink in sinks]
    texts, token_ids, first_indexes, logprobs, top_token_ids, top_logprobs = zip(*deltas, strict=True)
    frame = pb.SessionResponse()
    step = frame.step
    step.handles.extend([sink.handle for sink in sinks])
    step.texts.extend(texts)
    step.first_indexes.extend(first_indexes)
    step.counts.extend(map(len, token_ids))
    step.token_ids.extend(chain.from_iterable(token_ids))
    if any(logprobs):
        for ids, values in zip(token_ids, logprobs, strict=True):
            step.logprobs.extend(values or [0.0] * len(ids))
    if any(top_token_ids):
        step.top_counts.extend(map(_count_per_token, top_token_ids, token_ids))
        step.top_token_ids.extend(chain.from_iterable(top_token_ids))
        step.top_logprobs.extend(chain.from_iterable(top_logprobs))
    return frame


def _count_per_token(top_token_ids: Sequence[int], token_ids: Sequence[int]) -> int:
    return len(top_token_ids) // len(token_ids) if token_ids else 0
