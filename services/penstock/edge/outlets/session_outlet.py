"""One request's end on a session's stream."""

from typing import Protocol

from penstock.chassis.errors import PenstockError
from penstock.edge.flight.effects import Cancelled, Emit
from penstock.edge.outlets.backlog import Backlog
from penstock.v1 import inference_pb2 as pb


class SharedStream(Protocol):
    """What a request knows of the stream it shares."""

    def say(self, frame: pb.SessionResponse) -> None: ...

    def has_piece(self, outlet: "SessionOutlet") -> None: ...

    def is_over(self, outlet: "SessionOutlet") -> None: ...


class SessionOutlet:
    """Collects pieces until the stream's next step frame; other news go at once, after the pieces before them."""

    def __init__(self, stream: SharedStream, handle: int) -> None:
        self.handle = handle
        self.backlog = Backlog()
        self._stream = stream

    @property
    def unread(self) -> int:
        return self.backlog.size

    def accepted(self, accepted: pb.Accepted) -> None:
        self._stream.say(pb.SessionResponse(accepted=pb.SessionAccepted(handle=self.handle, accepted=accepted)))

    def emit(self, piece: Emit) -> None:
        self.backlog.add(piece)
        self._stream.has_piece(self)

    def finished(self, finished: pb.Finished) -> None:
        self._end(pb.SessionResponse(finished=pb.SessionFinished(handle=self.handle, finished=finished)))

    def failed(self, error: PenstockError) -> None:
        self._end(failed_of(self.handle, error))

    def cancelled(self, receipt: Cancelled) -> None:
        told = pb.SessionCancelled(
            handle=self.handle, output_tokens=receipt.output_tokens, kv_blocks_freed=receipt.kv_blocks_freed
        )
        self._end(pb.SessionResponse(cancelled=told))

    def _end(self, frame: pb.SessionResponse) -> None:
        while self.backlog:
            self._stream.say(step_of([self]))
        self._stream.is_over(self)
        self._stream.say(frame)


def failed_of(handle: int, error: PenstockError) -> pb.SessionResponse:
    frame = pb.SessionResponse()
    frame.failed.handle = handle
    error.write(frame.failed.failure)
    return frame


def step_of(outlets: list[SessionOutlet]) -> pb.SessionResponse:
    """Take what is waiting of all `outlets` into one frame of parallel arrays."""
    step = pb.SessionStep()
    pieces = [outlet.backlog.take() for outlet in outlets]
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
