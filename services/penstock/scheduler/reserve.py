"""How many slots are kept for urgent tickets, so that one that comes finds a slot and waits for none to fall free.

Knows no clock: what counts is how many tickets of late were urgent.
"""

from dataclasses import dataclass
from math import ceil, log

MISSED = 0.001  # of urgent tickets, which may find none
MEMORY = 0.02  # weight of the last ticket: about the last fifty count
KEPT_FOR = 1_000  # tickets after the last urgent one; where none comes, none is kept


@dataclass(slots=True)
class Reserve:
    """Of one model over all its workers.

    Urgent tickets go first, so they take one of the kept slots as they come, and a slot that falls free is kept again
    before others have any: a queue of one server, whose arrivals are the urgent among the tickets that come for each
    slot that falls free. With a share `u` of them, more than n wait with probability u ** (n + 1) (M/M/1).
    """

    share: float  # of all slots, the most that is kept
    urgent: float = 0.0  # share of tickets of late
    since: int = KEPT_FOR  # tickets since the last urgent one

    def note(self, *, is_urgent: bool) -> None:
        self.urgent += (is_urgent - self.urgent) * MEMORY
        self.since = 0 if is_urgent else min(KEPT_FOR, self.since + 1)

    def of(self, slots: int) -> int:
        """Return how many of so many slots are kept."""
        if self.since >= KEPT_FOR:
            return 0
        wanted = ceil(log(MISSED) / log(min(self.urgent, 0.9))) - 1 if self.urgent > 0 else 1
        return min(int(self.share * slots), max(1, wanted))
