"""Headroom: slots that tickets of the class `batch` leave free, so that other tickets do not wait for one.

Batch tickets wait at any time, so that they would take each slot that is released. A ticket of another class would then
preempt a batch lease, whose tokens are computed again. The headroom makes that rare. It needs no clock.
"""

from dataclasses import dataclass
from math import ceil, log

from penstock.v1.inference_pb2 import Priority

MAX_MISS_PROBABILITY = 0.001  # probability that a ticket of another class finds no free slot
SHARE_GAIN = 0.02  # weight of the latest ticket: about the latest fifty count
MAX_SHARE = 1 / 4  # largest share of all slots that is left free
# Tickets after the latest one of the class `batch`, or after the latest other one; then nothing is left free.
MAX_TICKETS_SINCE = 1_000


@dataclass(slots=True)
class Headroom:
    """Number of slots that batch tickets leave free at each worker of one model.

    A ticket of another class takes one of them on arrival, and the next slot that is released takes its place. If a
    share `u` of all tickets is of other classes, more than n of these are in the queue for slots with probability
    u ** (n + 1) (M/M/1). Each worker keeps at least one, so that they can use the fleet evenly.
    """

    urgent_share: float = 0.0  # share of recent tickets that were of other classes
    tickets_since_urgent: int = MAX_TICKETS_SINCE
    tickets_since_batch: int = MAX_TICKETS_SINCE

    def record(self, priority: int) -> None:
        is_batch = priority == Priority.PRIORITY_BATCH
        self.urgent_share += ((not is_batch) - self.urgent_share) * SHARE_GAIN
        self.tickets_since_batch = 0 if is_batch else min(MAX_TICKETS_SINCE, self.tickets_since_batch + 1)
        self.tickets_since_urgent = min(MAX_TICKETS_SINCE, self.tickets_since_urgent + 1) if is_batch else 0

    def slots_of_each(self, slots: int, workers: int) -> int:
        """Return the number of slots that each of `workers` workers keeps free, if they have `slots` together."""
        if MAX_TICKETS_SINCE in (self.tickets_since_urgent, self.tickets_since_batch):
            return 0
        wanted = ceil(log(MAX_MISS_PROBABILITY) / log(min(self.urgent_share, 0.9))) - 1 if self.urgent_share > 0 else 1
        return min(int(MAX_SHARE * slots / workers), max(1, wanted))
