"""Express slots: slots of a model that are kept free, so that an express ticket does not wait for a slot.

Their number follows from the share of express tickets among recent tickets. It needs no clock.
"""

from dataclasses import dataclass
from math import ceil, log

MAX_MISS_PROBABILITY = 0.001  # probability that an express ticket finds no free slot
EXPRESS_SHARE_GAIN = 0.02  # weight of the latest ticket: about the latest fifty count
MAX_TICKETS_SINCE_EXPRESS = 1_000  # tickets after the latest express ticket; then no slot is kept


@dataclass(slots=True)
class ExpressSlots:
    """Number of express slots of one model over all its workers.

    An express ticket takes an express slot on arrival, and the next slot that is released becomes an express slot
    again. This is a queue with one server: the released slots serve the express tickets. If a share `u` of all tickets
    is express, more than n of them are in the queue with probability u ** (n + 1) (M/M/1).
    """

    max_share: float  # largest share of all slots that is kept free
    express_share: float = 0.0  # share of recent tickets that were express
    tickets_since_express: int = MAX_TICKETS_SINCE_EXPRESS

    def record(self, *, is_express: bool) -> None:
        self.express_share += (is_express - self.express_share) * EXPRESS_SHARE_GAIN
        self.tickets_since_express = 0 if is_express else min(MAX_TICKETS_SINCE_EXPRESS, self.tickets_since_express + 1)

    def slots_to_keep(self, slots: int) -> int:
        """Return the number of express slots if there are `slots` slots."""
        if self.tickets_since_express >= MAX_TICKETS_SINCE_EXPRESS:
            return 0
        wanted = (
            ceil(log(MAX_MISS_PROBABILITY) / log(min(self.express_share, 0.9))) - 1 if self.express_share > 0 else 1
        )
        return min(int(self.max_share * slots), max(1, wanted))
