"""How many tickets which shard may offer. Knows no clock, no worker and no stream.

While nothing waits, every shard holds credit for all free capacity, so that an idle request costs one round trip
between queue and scheduler; two shards using the same credit is settled by a decline. While tickets wait, credit
is given for free capacity alone, to the shard whose head is most urgent: that keeps the order over all shards.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.mesh.v1.queue_pb2 import Head

STANDING = 64  # most credit that a shard holds while nothing waits; more than arrives in one round trip


class Grant(NamedTuple):
    """Credit to be given."""

    queue: str
    tickets: int


@dataclass(slots=True)
class Shard:
    """What is known of one shard for one model."""

    held: int = 0  # credit given and neither used nor returned
    head: Head = field(default_factory=Head)

    @property
    def unserved(self) -> int:
        """Waiting tickets that no credit is on its way for."""
        return max(0, self.head.waiting - self.held)

    @property
    def urgency(self) -> tuple[int, float, int]:
        return self.head.priority, self.head.virtual_tokens, self.head.enqueue_unix_nano


class CreditBook:
    """The credit of one model over all shards."""

    def __init__(self) -> None:
        self.shards: dict[str, Shard] = {}

    @property
    def held(self) -> int:
        return sum(shard.held for shard in self.shards.values())

    def joined(self, queue: str) -> None:
        self.shards[queue] = Shard()

    def lost(self, queue: str) -> None:
        self.shards.pop(queue, None)

    def used(self, queue: str) -> None:
        shard = self.shards[queue]
        shard.held = max(0, shard.held - 1)

    def returned(self, queue: str, tickets: int) -> None:
        shard = self.shards[queue]
        shard.held = max(0, shard.held - tickets)

    def head(self, queue: str, head: Head) -> None:
        self.shards[queue].head = head

    def grants(self, room: int) -> list[Grant]:
        """Give credit for `room` more tickets; what is returned counts as held from now on."""
        waiting = [queue for queue, shard in self.shards.items() if shard.head.waiting]
        found = self._for_waiting(waiting, room) if waiting else self._standing(room)
        for queue, tickets in found:
            self.shards[queue].held += tickets
        return found

    def _standing(self, room: int) -> list[Grant]:
        wanted = min(room, STANDING)
        return [Grant(queue, wanted - shard.held) for queue, shard in self.shards.items() if shard.held < wanted]

    def _for_waiting(self, waiting: list[str], room: int) -> list[Grant]:
        free = room - sum(self.shards[queue].held for queue in waiting)
        unserved = [queue for queue in waiting if self.shards[queue].unserved]
        if free <= 0 or not unserved:
            return []
        best = min(unserved, key=lambda queue: self.shards[queue].urgency)
        # Beside other shards one at a time: whose turn is next, only the shard's next head tells.
        return [Grant(best, min(free, self.shards[best].unserved) if len(unserved) == 1 else 1)]
