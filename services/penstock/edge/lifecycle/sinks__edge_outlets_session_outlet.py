"""One request's end on a session's stream."""

from typing import Protocol

from penstock.chassis.errors import PenstockError
from penstock.edge.lifecycle.effects import AcknowledgeCancel, Emit
from penstock.edge.lifecycle.sinks__edge_outlets_backlog import ResponseBuffer
from penstock.v1 import inference_pb2 as pb


class SessionStream(Protocol):
    """What a request knows of the stream it shares."""

    def send(self, frame: pb.SessionResponse) -> None: ...

    def on_output(self, outlet: "SessionSink") -> None: ...

    def on_request_over(self, outlet: "SessionSink") -> None: ...


class SessionSink:
    """Collects pieces until the stream's next step frame; other news go at once, after the pieces before them."""

    def __init__(self, stream: SessionStream, handle: int) -> None:
        self.handle = handle
        self.buffer = ResponseBuffer()
        self._stream = stream

    @property
    def unread_bytes(self) -> int:
        return self.buffer.size_bytes

    def send_accepted(self, accepted: pb.Accepted) -> None:
        self._stream.send(pb.SessionResponse(accepted=pb.SessionAccepted(handle=self.handle, accepted=accepted)))

    def send_delta(self, piece: Emit) -> None:
        self.buffer.add(piece)
        self._stream.on_output(self)

    def send_finished(self, finished: pb.Finished) -> None:
        self._end(pb.SessionResponse(finished=pb.SessionFinished(handle=self.handle, finished=finished)))

    def send_failed(self, error: PenstockError) -> None:
        self._end(failed_frame(self.handle, error))

    def send_cancelled(self, receipt: AcknowledgeCancel) -> None:
        told = pb.SessionCancelled(
            handle=self.handle, output_tokens=receipt.output_tokens, kv_blocks_freed=receipt.kv_blocks_freed
        )
        self._end(pb.SessionResponse(cancelled=told))

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


def step_frame(outlets: list[SessionSink]) -> pb.SessionResponse:
    """Take what is waiting of all `outlets` into one frame of parallel arrays."""
    step = pb.SessionStep()
    pieces = [outlet.buffer.pop() for outlet in outlets]
    step.handles.extend([outlet.handle for outlet in outlets])
    step.texts.extend([piece.text for piece in pieces])
    step.first_indexes.extend([piece.first_index for piece in pieces])
    step.counts.extend([len(piece.token_ids) for piece in pieces])
    has_logprobs = any(piece.logprobs for piece in pieces)
    for piece in pieces:
        step.token_ids.extend(piece.token_ids)
        if has_logprobs:
            step.logprobs.extend(piece.logprobs or [0.0] * len(piece.token_ids))
    return pb.SessionResponse(step=step)
