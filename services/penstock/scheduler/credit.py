"""How many tickets which shard may offer. Knows no clock, no worker and no stream.

While nothing waits, every shard holds credit for all free capacity, so that an idle request costs one round trip
between queue and scheduler; two shards using the same credit is settled by a decline. While one shard waits, it gets
credit for what is free. While several wait, none holds any: free capacity is offered to the most urgent head, and
what finds no ticket there comes back and goes to the next. That keeps the order over all shards.
"""

from collections.abc import Iterable
from typing import NamedTuple

from penstock.mesh.v1.queue_pb2 import Head
from penstock.scheduler.shard import Shard

STANDING = 64  # most credit that a shard holds while nothing waits; more than arrives in one round trip
STEPS = 8  # turns in which several shards fill what is free: many tickets at once while much is free, then one by one


class Grant(NamedTuple):
    """Credit to be given; none at all renews the bound on sizes."""

    queue: str
    tickets: int = 0
    once: bool = False  # and all that is not used at once comes back
    is_unbounded: bool = False  # for tickets of any size


class CreditBook:
    """The credit of one model over all shards."""

    def __init__(self, queues: Iterable[str] = ()) -> None:
        self.shards = {queue: Shard() for queue in queues}

    def __repr__(self) -> str:
        waiting = sum(shard.head.waiting for shard in self.shards.values())
        return f"<CreditBook {self.held} held by {len(self.shards)} shards, {waiting} waiting>"

    @property
    def held(self) -> int:
        return sum(shard.held for shard in self.shards.values())

    @property
    def waits(self) -> bool:
        return any(shard.waits for shard in self.shards.values())

    def joined(self, queue: str) -> None:
        self.shards[queue] = Shard()

    def lost(self, queue: str) -> None:
        self.shards.pop(queue, None)

    def reset(self) -> None:
        """No worker serves the model any more, or the first does: shards tell their heads and get credit anew."""
        self.shards = {queue: Shard() for queue in self.shards}

    def offered(self, queue: str) -> None:
        self.shards[queue].offered()

    def returned(self, queue: str, tickets: int) -> None:
        self.shards[queue].returned(tickets)

    def voided(self, queue: str) -> None:
        """A shard that hears NO_CAPACITY drops what it holds: it is more than there was room for."""
        self.shards[queue].held = 0
        self.shards[queue].is_asked = False

    def head(self, queue: str, head: Head) -> None:
        self.shards[queue].hear(head)

    def stir(self) -> None:
        for shard in self.shards.values():
            shard.stir()

    def tick(self) -> None:
        """Count for how long credit has lain beside waiting tickets."""
        for shard in self.shards.values():
            shard.stir()
            if shard.waits and shard.held and not shard.is_asked:
                shard.refusals += 1

    def grants(self, room: int, largest: int) -> list[Grant]:
        """Give credit for `room` more tickets of at most `largest` tokens; what is returned counts as held from now."""
        waiting = [queue for queue, shard in self.shards.items() if shard.waits]
        if not waiting:
            found = self._standing(room)
        elif len(waiting) == 1:
            found = self._for_one(waiting[0], room)
        else:
            found = self._in_turn(waiting, room)
        return [self._note(grant, largest) for grant in [*found, *self._renewals(found, largest)]]

    def _standing(self, room: int) -> list[Grant]:
        wanted = min(room, STANDING)
        return [
            Grant(queue, wanted - shard.held)
            for queue, shard in self.shards.items()
            if shard.held < wanted and not shard.is_asked
        ]

    def _for_one(self, queue: str, room: int) -> list[Grant]:
        shard = self.shards[queue]
        is_scarce = room <= shard.head.waiting
        found = self._recalls(other for other in self.shards if other != queue) if is_scarce else []
        tickets = min(room - shard.held, shard.unserved)
        if tickets > 0 and not shard.is_asked:
            found.append(Grant(queue, tickets))
        return found

    def _in_turn(self, waiting: list[str], room: int) -> list[Grant]:
        found = self._recalls(self.shards)
        ready = [queue for queue in waiting if not self.shards[queue].is_stuck]
        if room <= 0 or not ready or not all(self.shards[queue].is_settled for queue in waiting):
            return found
        if room >= sum(self.shards[queue].head.waiting for queue in ready):
            return [*found, *(self._turn(queue, room) for queue in ready)]
        best = min(ready, key=lambda queue: self.shards[queue].urgency)
        return [*found, self._turn(best, max(1, room // STEPS))]

    def _turn(self, queue: str, most: int) -> Grant:
        shard = self.shards[queue]
        return Grant(queue, min(shard.head.waiting, most), once=True, is_unbounded=shard.is_to_be_probed)

    def _recalls(self, queues: Iterable[str]) -> list[Grant]:
        return [
            Grant(queue, once=True) for queue in queues if self.shards[queue].held and not self.shards[queue].is_asked
        ]

    def _renewals(self, found: list[Grant], largest: int) -> list[Grant]:
        """Renew the bound of what lies unused where larger tickets fit by now, or lift it once to try the head."""
        told = {grant.queue for grant in found}
        idle = [
            (queue, shard)
            for queue, shard in self.shards.items()
            if shard.held and shard.waits and not shard.is_asked and queue not in told
        ]
        return [
            Grant(queue, is_unbounded=shard.is_to_be_probed)
            for queue, shard in idle
            if shard.told < largest or shard.is_to_be_probed
        ]

    def _note(self, grant: Grant, largest: int) -> Grant:
        shard = self.shards[grant.queue]
        shard.held += grant.tickets
        shard.told = largest
        shard.is_asked = shard.is_asked or grant.once
        shard.is_probed = shard.is_probed or grant.is_unbounded
        return grant
