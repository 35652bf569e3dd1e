"""How many tickets which shard may offer. Knows no clock, no worker and no stream.

While nothing waits, every shard holds credit for all free capacity, or half of it at least, so that an idle request
costs one round trip between queue and scheduler; two shards using the same credit is settled by a decline. While one
shard waits, it gets credit for what is free. While several wait, none holds any: free capacity is offered to the most
urgent head, and what finds no ticket there comes back and goes to the next. That keeps the order over all shards.
A few slots are kept for tickets that go first in their class: every shard holds credit for those at any time.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from penstock.mesh.v1.queue_pb2 import Head
from penstock.scheduler.reserve import Reserve
from penstock.scheduler.shard import Shard

STANDING = 64  # most credit that a shard holds while nothing waits; more than arrives in one round trip
LARGER = 2.0  # times the mean
MEMORY = 0.02  # weight of the last ticket: about the last fifty count
LEAD = 0.5  # of the tokens of a head that finds no room, by which other shards' heads may come to be ahead of it
STEPS = 8  # turns in which several shards fill what is free: many tickets at once while much is free, then one by one


class Space(NamedTuple):
    """What the workers of a model can take now."""

    room: int  # tickets
    tokens: int  # free on all workers
    largest: int  # tokens of one ticket
    open: int = 0  # workers that have room
    ever: int = 0  # tokens of the largest ticket that could run on any of them, were it empty
    slots: int = 0  # of all workers, free or not

    def packed(self, size: float) -> int:
        """Return how many tokens find a place in whatever order they come, in tickets of at most `size`.

        A ticket finds none only where each worker's free tokens are fewer than its own, so no more than `size` are
        ever left unused on each. Tickets that together are no more than `largest` always fit on the roomiest.
        """
        return max(self.largest, round(self.tokens - size * self.open))

    def without(self, kept: int, size: float) -> "Space":
        """Return what is left of it to tickets that are not urgent, and of at most `size` tokens."""
        room, tokens = (self.room - kept, self.packed(size)) if self.room > kept else (0, 0)
        return Space(room, tokens, self.largest, self.open, self.ever, self.slots)


class Grant(NamedTuple):
    """Credit to be given; none at all renews the bound on sizes."""

    queue: str
    tickets: int = 0
    tokens: int = 0
    once: bool = False  # and all that is not used at once comes back
    is_unbounded: bool = False  # for tickets of any size
    urgent: int = 0  # tickets beyond those, which go first in their class

    def lifted(self, shard: Shard) -> "Grant":
        """Lift the bounds, so that the shard's head is tried."""
        size = shard.head.tokens or shard.head.waiting_tokens
        return self._replace(tokens=max(self.tokens, shard.lacks(size)), is_unbounded=True)


class CreditBook:
    """The credit of one model over all shards."""

    def __init__(self, queues: Iterable[str] = (), reserve_share: float = 0.0) -> None:
        self.reserve = Reserve(reserve_share)
        self.shards = {queue: Shard() for queue in queues}
        # Start-time fair queueing's clock, by class: the virtual tokens of the head that was served last.
        self.virtual_time: dict[int, float] = {}
        self._idle = set(self.shards)  # that have not waited since nobody did
        self.large = 0.0  # tokens that few tickets exceed

    def __repr__(self) -> str:
        waiting = sum(shard.head.waiting for shard in self.shards.values())
        return f"<CreditBook {self.held} held by {len(self.shards)} shards, {waiting} waiting>"

    @property
    def held(self) -> int:
        return sum(shard.held for shard in self.shards.values())

    @property
    def waits(self) -> bool:
        return any(shard.waits for shard in self.shards.values())

    @property
    def only_waiting(self) -> str | None:
        """Return the shard that waits, where no other does."""
        waiting = [queue for queue, shard in self.shards.items() if shard.waits]
        return waiting[0] if len(waiting) == 1 else None

    def elsewhere(self, queue: str) -> dict[int, float]:
        """Return the virtual time of each class over the other shards: the larger of what was served and what waits."""
        others = [shard for each, shard in self.shards.items() if each != queue]
        waiting: dict[int, float] = {}
        for shard in others:
            if shard.waits and not shard.goes_first:
                priority = shard.head.priority
                waiting[priority] = min(waiting.get(priority, math.inf), shard.virtual_tokens)
        classes = waiting.keys() | {priority for shard in others for priority in shard.served}
        return {
            priority: max(waiting.get(priority, 0.0), *(shard.served.get(priority, 0.0) for shard in others))
            for priority in classes
        }

    def joined(self, queue: str) -> None:
        self.shards[queue] = Shard()

    def lost(self, queue: str) -> None:
        self.shards.pop(queue, None)
        self._idle.discard(queue)

    def reset(self) -> None:
        """No worker serves the model any more, or the first does: shards tell their heads and get credit anew."""
        self.shards = {queue: Shard(served=shard.served) for queue, shard in self.shards.items()}

    def offered(self, queue: str, tokens: int, *, is_urgent: bool = False, on_urgent_credit: bool = False) -> None:
        self.large += (LARGER * tokens - self.large) * MEMORY
        self.reserve.note(is_urgent=is_urgent)
        self.shards[queue].offered(tokens, on_urgent_credit=on_urgent_credit)

    def returned(self, queue: str, tickets: int) -> None:
        self.shards[queue].returned(tickets)

    def voided(self, queue: str) -> None:
        """A shard that hears NO_CAPACITY drops what it holds: it is more than there was room for."""
        self.shards[queue].voided()

    def head(self, queue: str, head: Head) -> None:
        if not self.waits:
            self._idle = set(self.shards)
        shard = self.shards[queue]
        shard.hear(head, self.virtual_time.get(head.priority, 0.0))
        if queue in self._idle and shard.waits and not shard.goes_first:
            self._idle.discard(queue)
            self._begin(head.priority, shard.virtual_tokens)

    def _begin(self, priority: int, virtual_tokens: float) -> None:
        """Let nobody owe what it was served before anybody waited: each shard's clock ran by its own load then."""
        if virtual_tokens > self.virtual_time.get(priority, 0.0):
            self.virtual_time[priority] = virtual_tokens
            for shard in self.shards.values():
                if shard.waits and shard.head.priority == priority:
                    shard.lift(virtual_tokens)

    def stir(self) -> None:
        for shard in self.shards.values():
            shard.stir()

    def tick(self) -> None:
        """Count for how long credit has lain beside waiting tickets."""
        for shard in self.shards.values():
            shard.stir()
            if shard.waits and shard.held and not shard.is_asked:
                shard.refusals += 1

    def grants(self, space: Space) -> list[Grant]:
        """Give credit for what there is space for; what is returned counts as held from now."""
        kept = self.reserve.of(space.slots)
        urgent = self._urgent(min(kept, space.room), space.largest)
        space = space.without(kept, self.large)
        waiting = [queue for queue, shard in self.shards.items() if shard.waits]
        if not waiting:
            found = self._standing(space)
        elif len(waiting) == 1:
            found = self._for_one(waiting[0], space)
        else:
            found = self._in_turn(waiting, space)
        return [self._note(grant, space.largest) for grant in [*found, *self._renewals(found, space), *urgent]]

    def _urgent(self, room: int, largest: int) -> list[Grant]:
        """Have every shard hold what is kept; where urgent tickets wait, the first of them, and no other shard."""
        if room <= 0 and not any(shard.urgent for shard in self.shards.values()):
            return []
        shards = {queue: shard for queue, shard in self.shards.items() if shard.waits and shard.goes_first}
        if shards:
            first = min(shards, key=lambda queue: shards[queue].urgency)
            shards = {first: shards[first]}
        return [
            Grant(queue, urgent=max(0, room - shard.urgent))
            for queue, shard in (shards or self.shards).items()
            if shard.urgent < room or (shard.urgent and shards and shard.told < largest)
        ]

    def _standing(self, space: Space) -> list[Grant]:
        """Fill up what is half used: a frame for each ticket would cost more than the round trip that it may save."""
        wanted = min(space.room, STANDING)
        return [
            Grant(queue, wanted - shard.held, shard.lacks(space.tokens))
            for queue, shard in self.shards.items()
            if shard.held < wanted and not shard.is_asked and shard.runs_low(wanted, space.tokens, space.largest)
        ]

    def _for_one(self, queue: str, space: Space) -> list[Grant]:
        shard = self.shards[queue]
        is_scarce = space.room <= shard.head.waiting or space.tokens <= shard.head.waiting_tokens
        found = self._recalls(other for other in self.shards if other != queue) if is_scarce else []
        tickets = max(0, min(space.room - shard.held, shard.unserved))
        tokens = shard.lacks(space.tokens if tickets else min(space.tokens, shard.head.waiting_tokens))
        if (tickets or tokens) and not shard.is_asked:
            found.append(Grant(queue, tickets, tokens))
        return found

    def _in_turn(self, waiting: list[str], space: Space) -> list[Grant]:
        found = self._recalls(self.shards)
        ready = self._ready(waiting, space.ever)
        if space.room <= 0 or not ready or not all(self.shards[queue].is_settled for queue in waiting):
            return found
        heads = [self.shards[queue].head for queue in ready]
        if space.room >= sum(head.waiting for head in heads) and space.tokens >= sum(h.waiting_tokens for h in heads):
            return [*found, *(self._turn(queue, space.room, space) for queue in ready)]
        best = min(ready, key=lambda queue: self.shards[queue].urgency)
        return [*found, self._turn(best, max(1, space.room // STEPS), space)]

    def _ready(self, waiting: list[str], ever: int) -> list[str]:
        stuck = [self.shards[queue] for queue in waiting if self.shards[queue].is_stuck]
        others = [queue for queue in waiting if not self.shards[queue].is_stuck]
        return [queue for queue in others if not any(each.bars(self.shards[queue], LEAD, ever) for each in stuck)]

    def _turn(self, queue: str, most: int, space: Space) -> Grant:
        shard = self.shards[queue]
        tickets = min(shard.head.waiting, most)
        grant = Grant(queue, tickets, shard.lacks(space.tokens), once=True)
        return grant.lifted(shard) if shard.is_to_be_probed(space.ever) else grant

    def _recalls(self, queues: Iterable[str]) -> list[Grant]:
        return [
            Grant(queue, once=True) for queue in queues if self.shards[queue].held and not self.shards[queue].is_asked
        ]

    def _renewals(self, found: list[Grant], space: Space) -> list[Grant]:
        """Renew the bounds of what lies unused where more fits by now, or lift them once to try the head."""
        idle = [
            (queue, shard)
            for queue, shard in self.shards.items()
            if shard.held and shard.waits and not shard.is_asked and not any(grant.queue == queue for grant in found)
        ]
        if not idle:
            return []
        probed = [Grant(queue).lifted(shard) for queue, shard in idle if shard.is_to_be_probed(space.ever)]
        tried = {grant.queue for grant in probed}
        renewed = [
            Grant(queue, 0, shard.lacks(space.tokens))
            for queue, shard in idle
            if shard.told < space.largest and queue not in tried
        ]
        return [*probed, *renewed]

    def _note(self, grant: Grant, largest: int) -> Grant:
        shard = self.shards[grant.queue]
        shard.held += grant.tickets
        shard.urgent += grant.urgent
        if grant.tickets and shard.waits and not shard.goes_first:
            self._note_served(shard, shard.head.priority)
        shard.tokens += grant.tokens
        shard.told = largest
        shard.is_asked = shard.is_asked or grant.once
        shard.is_probed = shard.is_probed or grant.is_unbounded
        return grant

    def _note_served(self, shard: Shard, priority: int) -> None:
        for passed in (self.virtual_time, shard.served):
            passed[priority] = max(passed.get(priority, 0.0), shard.virtual_tokens)
