"""How many slots are kept for urgent tickets, so that one that comes finds a slot and waits for none to fall free.

Knows no clock: what counts is how many tickets of late were urgent.
"""

from dataclasses import dataclass
from math import ceil, log

MAX_MISS_PROBABILITY = 0.001  # of urgent tickets, which may find none
EXPRESS_SHARE_GAIN = 0.02  # weight of the last ticket: about the last fifty count
MAX_TICKETS_SINCE_EXPRESS = 1_000  # tickets after the last urgent one; where none comes, none is kept


@dataclass(slots=True)
class ExpressSlots:
    """Of one model over all its workers.

    Urgent tickets go first, so they take one of the kept slots as they come, and a slot that falls free is kept again
    before others have any: a queue of one server, whose arrivals are the urgent among the tickets that come for each
    slot that falls free. With a share `u` of them, more than n wait with probability u ** (n + 1) (M/M/1).
    """

    max_share: float  # of all slots, the most that is kept
    express_share: float = 0.0  # share of tickets of late
    tickets_since_express: int = MAX_TICKETS_SINCE_EXPRESS  # tickets since the last urgent one

    def record(self, *, is_express: bool) -> None:
        self.express_share += (is_express - self.express_share) * EXPRESS_SHARE_GAIN
        self.tickets_since_express = 0 if is_express else min(MAX_TICKETS_SINCE_EXPRESS, self.tickets_since_express + 1)

    def slots_to_keep(self, slots: int) -> int:
        """Return how many of so many slots are kept."""
        if self.tickets_since_express >= MAX_TICKETS_SINCE_EXPRESS:
            return 0
        wanted = (
            ceil(log(MAX_MISS_PROBABILITY) / log(min(self.express_share, 0.9))) - 1 if self.express_share > 0 else 1
        )
        return min(int(self.max_share * slots), max(1, wanted))
