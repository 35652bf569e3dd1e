"""Attempts of a request: one lease that the edge started on a worker, and the count of failed ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from google.protobuf.duration_pb2 import Duration

from penstock.edge.lifecycle.timeline import MeasuredStage, Timeline
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.mesh.v1.worker_pb2 import RunTimes


class LostRun(NamedTuple):
    """A run that ended without an answer and that the next attempt continues. Times are Unix s."""

    attempt: int
    worker_id: str
    lease_id: str
    leased_at: float
    lost_at: float  # when the edge learned of it
    output_tokens: int  # that the edge received from it


class Attempt:
    """One lease that this edge uses; `emitted_before` is the number of output tokens of earlier attempts."""

    def __init__(self, lease: Lease, emitted_before: int, now: float) -> None:
        self.lease = lease
        self.emitted_before = emitted_before
        self.leased_at = now
        self.has_prefilled = False

    @property
    def ttl(self) -> float:
        """Seconds within which the start frame must be sent. Infinite if the lease has no time to live."""
        return _seconds(self.lease.ttl) or math.inf

    def record_lost(self, timeline: Timeline, output_tokens: int, now: float) -> LostRun:
        """`output_tokens`: of the request so far."""
        generated = output_tokens - self.emitted_before
        timeline.add_measured_stages(now, self._stages_before_start(), ("worker", "lost run"))
        return LostRun(
            self.lease.attempt, self.lease.worker_id, self.lease.lease_id, self.leased_at, now, max(0, generated)
        )

    def record_finished(self, timeline: Timeline, times: RunTimes, last_token_at: float, now: float) -> None:
        self.has_prefilled = _seconds(times.prefill) > 0
        worked = [("wait", times.wait), ("prefill", times.prefill), ("decode", times.decode)]
        after = [MeasuredStage("worker", name, _seconds(length)) for name, length in worked]
        last = last_token_at if last_token_at >= self.leased_at else now  # otherwise this run generated no token
        timeline.add_measured_stages(last, self._stages_before_start(), ("network", "dispatch"), after)
        timeline.add_stage("edge", "finish", now)

    def _stages_before_start(self) -> Sequence[MeasuredStage]:
        wait, placement = _seconds(self.lease.queue_wait), _seconds(self.lease.placement_time)
        return [MeasuredStage("queue", "wait", wait), MeasuredStage("scheduler", "placement", placement)]


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


MAX_AVOIDED_WORKERS = 16  # the limit of `Ticket.avoid_workers`


@dataclass(slots=True)
class FailedAttempts:
    """Counts lost runs, and lists the workers that the next attempts avoid.

    A broken stream does not prove a fault of its worker, because the network may have failed. The worker is therefore
    avoided only while another worker can run the request.
    """

    upstream_timeout: float  # s to wait in the middle of an answer without any worker
    avoided_workers: list[str] = field(default_factory=list)  # instance ids
    count: int = 0  # runs that an engine had, or may have had
    consecutive_rejections: int = 0  # in a row, by workers whose engines never had the run
    _wait_until: float = 0.0

    def record(
        self, worker_id: str, now: float, *, died: bool, never_ran: bool = False, is_preempted: bool = False
    ) -> None:
        """Record a lost run. `died`: the worker did not report the end itself, so it is avoided from now on.

        `is_preempted`: a scheduler ended the run for another ticket, which it does a bounded number of times.
        """
        self._wait_until = now + self.upstream_timeout
        self.count += not (never_ran or is_preempted)
        self.consecutive_rejections = self.consecutive_rejections + 1 if never_ran else 0
        if died and worker_id not in self.avoided_workers and len(self.avoided_workers) < MAX_AVOIDED_WORKERS:
            self.avoided_workers.append(worker_id)

    def clear_avoided(self) -> bool:
        """Allow all workers again. Returns whether any was avoided."""
        had_any = bool(self.avoided_workers)
        self.avoided_workers.clear()
        return had_any

    def can_wait(self, until: float) -> bool:
        """Return whether a partial answer may still wait at time `until`, since its worker may be restarting."""
        return until < self._wait_until
