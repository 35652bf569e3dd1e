"""One lease and what its worker says of the time it took."""

import math
from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration

from penstock.edge.flight.timeline import Part, Timeline
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.mesh.v1.worker_pb2 import RunTimes


class Run:
    """A lease that this edge took up; `base` is how many output tokens there were before."""

    def __init__(self, lease: Lease, base: int, now: float) -> None:
        self.lease = lease
        self.base = base
        self._taken_at = now
        self.has_prefilled = False

    @property
    def ttl(self) -> float:
        """Seconds that START may take from now; a lease without one does not lapse."""
        return _seconds(self.lease.ttl) or math.inf

    def lose(self, timeline: Timeline, now: float) -> None:
        timeline.split(now, self._waits(), ("worker", "lost run"))

    def close(self, timeline: Timeline, times: RunTimes, last_token_at: float, now: float) -> None:
        self.has_prefilled = _seconds(times.prefill) > 0
        worked = [("wait", times.wait), ("prefill", times.prefill), ("decode", times.decode)]
        after = [Part("worker", name, _seconds(length)) for name, length in worked]
        last = last_token_at if last_token_at >= self._taken_at else now  # else this run made none
        timeline.split(last, self._waits(), ("network", "dispatch"), after)
        timeline.lap("edge", "finish", now)

    def _waits(self) -> Sequence[Part]:
        wait, placement = _seconds(self.lease.queue_wait), _seconds(self.lease.placement)
        return [Part("queue", "wait", wait), Part("scheduler", "placement", placement)]


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
