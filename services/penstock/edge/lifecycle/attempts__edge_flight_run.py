"""One lease and what its worker says of the time it took."""

import math
from collections.abc import Sequence

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
