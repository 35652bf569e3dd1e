"""Guest: a request of another region, whose tokens and end are sent to its home edge."""

import math
from typing import Protocol

from penstock.chassis.durations import set_seconds
from penstock.chassis.errors import Overloaded, PenstockError, Unavailable
from penstock.edge.lifecycle.active_request import ActiveRequest
from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.effects import AcknowledgeCancel, Emit, Settle
from penstock.edge.lifecycle.memory import MemoryBudget
from penstock.edge.lifecycle.sinks import ResponseBuffer
from penstock.mesh.v1.region_pb2 import GuestRejected, GuestStarted, RegionServiceRunResponse
from penstock.mesh.v1.worker_pb2 import RunCancelled, RunFailed, RunFinished, RunTimes
from penstock.v1.inference_pb2 import Accepted, Finished


class HomeStream(Protocol):
    """The stream to the home edge of a guest."""

    def send(self, frame: RegionServiceRunResponse) -> None: ...

    def add_tokens(self, handle: int, delta: Emit) -> None:
        """Send tokens with those of other guests."""

    def end(self, handle: int, frame: RegionServiceRunResponse) -> None:
        """Send the end of a guest, after its tokens."""


class GuestRun:
    """Sink of one guest. Its end is sent once the run has stopped, when it is known what it has used."""

    def __init__(self, handle: int, stream: HomeStream, memory: MemoryBudget) -> None:
        self.buffer = ResponseBuffer(memory)  # stays empty: the tokens are in the frames of the stream
        self.is_started = False  # the queue has admitted it
        self._handle = handle
        self._stream = stream
        self._ending: Finished | PenstockError | AcknowledgeCancel | None = None

    def send_accepted(self, accepted: Accepted) -> None:  # the home edge knows its contents
        if not self.is_started:
            self.is_started = True
            self._stream.send(RegionServiceRunResponse(started=GuestStarted(handle=self._handle)))

    def send_delta(self, delta: Emit) -> int:
        self._stream.add_tokens(self._handle, delta)
        return 0

    def send_finished(self, finished: Finished) -> None:
        self._ending = finished

    def send_failed(self, error: PenstockError) -> None:
        self._ending = error
        if not self.is_started:
            self._stream.end(self._handle, rejected_frame(self._handle, error))

    def send_cancelled(self, acknowledgement: AcknowledgeCancel) -> bool:
        self._ending = acknowledgement
        return True

    def end(self, context: RequestContext, settlement: Settle, now: float) -> None:
        """Send the end of a guest that was started or cancelled. `settlement`: the tokens that it has used here."""
        times = _times_of(context.request, settlement, now)
        match self._ending:
            case Finished(reason=reason):
                finished = RunFinished(
                    handle=self._handle,
                    reason=reason,
                    output_tokens=settlement.output_tokens,
                    cached_prompt_tokens=settlement.cached_tokens,
                    times=times,
                )
                self._stream.end(self._handle, RegionServiceRunResponse(finished=finished))
            case AcknowledgeCancel(kv_blocks_freed=freed):
                cancelled = RunCancelled(
                    handle=self._handle, output_tokens=settlement.output_tokens, kv_blocks_freed=freed, times=times
                )
                self._stream.end(self._handle, RegionServiceRunResponse(cancelled=cancelled))
            case PenstockError() as error if self.is_started:
                self._stream.end(self._handle, failed_frame(self._handle, error))


def rejected_frame(handle: int, error: PenstockError) -> RegionServiceRunResponse:
    rejected = GuestRejected(handle=handle)
    error.write_to(rejected.failure)
    return RegionServiceRunResponse(rejected=rejected)


def failed_frame(handle: int, error: PenstockError) -> RegionServiceRunResponse:
    """A started guest that is evicted, or late, goes on at home, where it is not new: UNAVAILABLE says so."""
    if isinstance(error, Overloaded):
        error = Unavailable(error.message, reason=error.reason, retry_after=error.retry_after)
    failed = RunFailed(handle=handle)
    error.write_to(failed.failure)
    return RegionServiceRunResponse(failed=failed)


def _times_of(request: ActiveRequest, settlement: Settle, now: float) -> RunTimes:
    """Return the times of all runs here as those of one. The prefill is above 0 if the prompt is charged."""
    times, attempt = RunTimes(), request.latest_attempt
    if attempt is None:
        return times
    leased_at = min(attempt.leased_at, request.first_token_at)  # NaN compares as false
    first = now if math.isnan(request.first_token_at) else request.first_token_at
    set_seconds(times.wait, leased_at - request.arrived_at)
    if settlement.prompt_tokens:
        set_seconds(times.prefill, max(1e-9, first - leased_at))
        set_seconds(times.decode, 0.0 if math.isnan(request.last_token_at) else request.last_token_at - first)
    return times
