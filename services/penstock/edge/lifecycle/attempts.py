"""One lease and what its worker says of the time it took."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from google.protobuf.duration_pb2 import Duration

from penstock.edge.lifecycle.timeline import MeasuredStage, Timeline
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.mesh.v1.worker_pb2 import RunTimes


class Attempt:
    """A lease that this edge took up; `base` is how many output tokens there were before."""

    def __init__(self, lease: Lease, emitted_before: int, now: float) -> None:
        self.lease = lease
        self.emitted_before = emitted_before
        self._leased_at = now
        self.has_prefilled = False

    @property
    def ttl(self) -> float:
        """Seconds that START may take from now; a lease without one does not lapse."""
        return _seconds(self.lease.ttl) or math.inf

    def record_lost(self, timeline: Timeline, now: float) -> None:
        timeline.add_measured_stages(now, self._stages_before_start(), ("worker", "lost run"))

    def record_finished(self, timeline: Timeline, times: RunTimes, last_token_at: float, now: float) -> None:
        self.has_prefilled = _seconds(times.prefill) > 0
        worked = [("wait", times.wait), ("prefill", times.prefill), ("decode", times.decode)]
        after = [MeasuredStage("worker", name, _seconds(length)) for name, length in worked]
        last = last_token_at if last_token_at >= self._leased_at else now  # else this run made none
        timeline.add_measured_stages(last, self._stages_before_start(), ("network", "dispatch"), after)
        timeline.add_stage("edge", "finish", now)

    def _stages_before_start(self) -> Sequence[MeasuredStage]:
        wait, placement = _seconds(self.lease.queue_wait), _seconds(self.lease.placement_time)
        return [MeasuredStage("queue", "wait", wait), MeasuredStage("scheduler", "placement", placement)]


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


MAX_AVOIDED_WORKERS = 16  # workers, the contract's bound


@dataclass(slots=True)
class FailedAttempts:
    """A stream that broke proves nothing against its worker: it may have been the network. So whoever lost a run is
    avoided for as long as somebody else can have the request, and no longer.
    """

    upstream_timeout: float  # s mid-answer without any worker
    avoided_workers: list[str] = field(default_factory=list)  # instance ids
    count: int = 0  # runs that an engine had, or may have had
    consecutive_rejections: int = 0  # in a row, by workers whose engines never had the run
    _wait_until: float = 0.0

    def record(self, worker_id: str, now: float, *, died: bool, never_ran: bool = False) -> None:
        """A run is lost; `died`: not by its worker's own word."""
        self._wait_until = now + self.upstream_timeout
        self.count += not never_ran
        self.consecutive_rejections = self.consecutive_rejections + 1 if never_ran else 0
        if died and worker_id not in self.avoided_workers and len(self.avoided_workers) < MAX_AVOIDED_WORKERS:
            self.avoided_workers.append(worker_id)

    def clear_avoided(self) -> bool:
        """Nobody else can have the request: avoid nobody any more. False where nobody was."""
        had_any = bool(self.avoided_workers)
        self.avoided_workers.clear()
        return had_any

    def can_wait(self, until: float) -> bool:
        """Half an answer is worth waiting for: its worker may be starting again at this moment."""
        return until < self._wait_until
