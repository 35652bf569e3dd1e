"""Response sinks: the receivers of a response, with a buffer of the output that the client has not read yet."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from penstock.chassis.errors import PenstockError
from penstock.edge.lifecycle.effects import AcknowledgeCancel, Emit
from penstock.v1 import inference_pb2 as pb
from penstock.v1.inference_pb2 import Accepted, Delta, Finished


class ResponseBuffer:
    """Deltas that are merged into one when they are taken. The request runner enforces the limit of `size_bytes`."""

    def __init__(self) -> None:
        self._deltas: list[Emit] = []
        self.size_bytes = 0  # approximate

    def __bool__(self) -> bool:
        return self.size_bytes > 0

    def add(self, delta: Emit) -> None:
        self._deltas.append(delta)
        self.size_bytes += 4 * len(delta.token_ids) + len(delta.text)

    def pop(self) -> Emit:
        """Return all deltas as one. Text without a token is kept for the next call.

        A client that resumes with all tokens receives that text again. It can drop the text only if it is a delta of
        its own.
        """
        deltas, self._deltas, self.size_bytes = self._deltas, [], 0
        if len(deltas) > 1 and not deltas[-1].token_ids:
            self.add(deltas.pop())
        if len(deltas) == 1:
            return deltas[0]
        return Emit(
            "".join(delta.text for delta in deltas),
            [token_id for delta in deltas for token_id in delta.token_ids],
            deltas[0].first_index,
            [logprob for delta in deltas for logprob in delta.logprobs],
        )


class ResponseSink(Protocol):
    """Receives the response of one request. Its methods never wait."""

    @property
    def unread_bytes(self) -> int:
        """Bytes that the client has not read yet."""

    def send_accepted(self, accepted: Accepted) -> None: ...

    def send_delta(self, delta: Emit) -> None: ...

    def send_finished(self, finished: Finished) -> None: ...

    def send_failed(self, error: PenstockError) -> None: ...

    def send_cancelled(self, acknowledgement: AcknowledgeCancel) -> None: ...


class ResponseStream:
    """A response that one reader iterates. Deltas that arrive while the reader is busy are merged.

    `cancel` cancels the request at once, before the reader's task has unwound.
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

    def send_delta(self, delta: Emit) -> None:
        self._buffer.add(delta)
        self._ready.set()

    def send_finished(self, finished: Finished) -> None:
        self._end(finished)

    def send_failed(self, error: PenstockError) -> None:
        self._end(error)

    def send_cancelled(self, acknowledgement: AcknowledgeCancel) -> None:
        """Does nothing: a reader that has cancelled reads no further event."""

    def _end(self, ending: Finished | PenstockError) -> None:
        self._ending = ending
        self._ready.set()

    def __aiter__(self) -> "ResponseStream":
        return self

    async def __anext__(self) -> Accepted | Delta | Finished:
        """Return the next event. Raises the error of the request after all events before it."""
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


def delta_of(delta: Emit) -> Delta:
    return Delta(text=delta.text, token_ids=delta.token_ids, first_index=delta.first_index, logprobs=delta.logprobs)


class SessionStream(Protocol):
    """The interface of a session's stream for the sinks of its requests."""

    def send(self, frame: pb.SessionResponse) -> None: ...

    def on_output(self, sink: "SessionSink") -> None: ...

    def on_request_over(self, sink: "SessionSink") -> None: ...


class SessionSink:
    """Collects deltas for the session's next step frame. Other events are sent at once, after earlier deltas."""

    def __init__(self, stream: SessionStream, handle: int) -> None:
        self.handle = handle
        self.buffer = ResponseBuffer()
        self._stream = stream

    @property
    def unread_bytes(self) -> int:
        return self.buffer.size_bytes

    def send_accepted(self, accepted: pb.Accepted) -> None:
        self._stream.send(pb.SessionResponse(accepted=pb.SessionAccepted(handle=self.handle, accepted=accepted)))

    def send_delta(self, delta: Emit) -> None:
        self.buffer.add(delta)
        self._stream.on_output(self)

    def send_finished(self, finished: pb.Finished) -> None:
        self._end(pb.SessionResponse(finished=pb.SessionFinished(handle=self.handle, finished=finished)))

    def send_failed(self, error: PenstockError) -> None:
        self._end(failed_frame(self.handle, error))

    def send_cancelled(self, acknowledgement: AcknowledgeCancel) -> None:
        cancelled = pb.SessionCancelled(
            handle=self.handle,
            output_tokens=acknowledgement.output_tokens,
            kv_blocks_freed=acknowledgement.kv_blocks_freed,
        )
        self._end(pb.SessionResponse(cancelled=cancelled))

    def _end(self, frame: pb.SessionResponse) -> None:
        while self.buffer:
            self._stream.send(step_frame([self]))
        self._stream.on_request_over(self)
        self._stream.send(frame)


def failed_frame(handle: int, error: PenstockError) -> pb.SessionResponse:
    frame = pb.SessionResponse()
    frame.failed.handle = handle
    error.write_to(frame.failed.failure)
    return frame


def step_frame(sinks: list[SessionSink]) -> pb.SessionResponse:
    """Move the buffered output of all `sinks` into one frame of parallel arrays."""
    step = pb.SessionStep()
    deltas = [sink.buffer.pop() for sink in sinks]
    step.handles.extend([sink.handle for sink in sinks])
    step.texts.extend([delta.text for delta in deltas])
    step.first_indexes.extend([delta.first_index for delta in deltas])
    step.counts.extend([len(delta.token_ids) for delta in deltas])
    has_logprobs = any(delta.logprobs for delta in deltas)
    for delta in deltas:
        step.token_ids.extend(delta.token_ids)
        if has_logprobs:
            step.logprobs.extend(delta.logprobs or [0.0] * len(delta.token_ids))
    return pb.SessionResponse(step=step)
