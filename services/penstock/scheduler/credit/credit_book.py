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
from penstock.scheduler.credit.express_slots import ExpressSlots
from penstock.scheduler.credit.shard_state import ShardState

MAX_IDLE_CREDIT_TICKETS = 64  # most credit that a shard holds while nothing waits; more than arrives in one round trip
LARGE_TICKET_FACTOR = 2.0  # times the mean
TICKET_SIZE_GAIN = 0.02  # weight of the last ticket: about the last fifty count
MAX_LEAD_TOKEN_SHARE = (
    0.5  # of the tokens of a head that finds no room, by which other shards' heads may come to be ahead of it
)
FILL_TURNS = (
    8  # turns in which several shards fill what is free: many tickets at once while much is free, then one by one
)


class FreeCapacity(NamedTuple):
    """What the workers of a model can take now."""

    leases: int  # tickets
    tokens: int  # free on all workers
    max_ticket_tokens: int  # tokens of one ticket
    open_workers: int = 0  # workers that have room
    max_supported_tokens: int = 0  # tokens of the largest ticket that could run on any of them, were it empty
    slots: int = 0  # of all workers, free or not

    def packable_tokens(self, ticket_tokens: float) -> int:
        """Return how many tokens find a place in whatever order they come, in tickets of at most `size`.

        A ticket finds none only where each worker's free tokens are fewer than its own, so no more than `size` are
        ever left unused on each. Tickets that together are no more than `largest` always fit on the roomiest.
        """
        return max(self.max_ticket_tokens, round(self.tokens - ticket_tokens * self.open_workers))

    def without_express_slots(self, express_slots: int, ticket_tokens: float) -> "FreeCapacity":
        """Return what is left of it to tickets that are not urgent, and of at most `size` tokens."""
        room, tokens = (
            (self.leases - express_slots, self.packable_tokens(ticket_tokens))
            if self.leases > express_slots
            else (0, 0)
        )
        return FreeCapacity(
            room, tokens, self.max_ticket_tokens, self.open_workers, self.max_supported_tokens, self.slots
        )


class CreditGrant(NamedTuple):
    """Credit to be given; none at all renews the bound on sizes."""

    queue: str
    tickets: int = 0
    tokens: int = 0
    return_unused: bool = False  # and all that is not used at once comes back
    is_unbounded: bool = False  # for tickets of any size
    express_tickets: int = 0  # tickets beyond those, which go first in their class

    def unbounded_for(self, shard: ShardState) -> "CreditGrant":
        """Lift the bounds, so that the shard's head is tried."""
        size = shard.head.tokens or shard.head.waiting_tokens
        return self._replace(tokens=max(self.tokens, shard.missing_tokens(size)), is_unbounded=True)


class CreditBook:
    """The credit of one model over all shards."""

    def __init__(self, queues: Iterable[str] = (), express_slot_share: float = 0.0) -> None:
        self.express_slots = ExpressSlots(express_slot_share)
        self.shards = {queue: ShardState() for queue in queues}
        # Start-time fair queueing's clock, by class: the virtual tokens of the head that was served last.
        self.virtual_time: dict[int, float] = {}
        self._not_waited_since_idle = set(self.shards)  # that have not waited since nobody did
        self.large_ticket_tokens = 0.0  # tokens that few tickets exceed

    def __repr__(self) -> str:
        waiting = sum(shard.head.waiting for shard in self.shards.values())
        return f"<CreditBook {self.held_tickets} held by {len(self.shards)} shards, {waiting} waiting>"

    @property
    def held_tickets(self) -> int:
        return sum(shard.held_tickets for shard in self.shards.values())

    @property
    def has_waiting(self) -> bool:
        return any(shard.has_waiting for shard in self.shards.values())

    @property
    def sole_waiting_shard(self) -> str | None:
        """Return the shard that waits, where no other does."""
        waiting = [queue for queue, shard in self.shards.items() if shard.has_waiting]
        return waiting[0] if len(waiting) == 1 else None

    def remote_virtual_time(self, queue: str) -> dict[int, float]:
        """Return the virtual time of each class over the other shards: the larger of what was served and what waits."""
        others = [shard for each, shard in self.shards.items() if each != queue]
        waiting: dict[int, float] = {}
        for shard in others:
            if shard.has_waiting and not shard.has_expedited_head:
                priority = shard.head.priority
                waiting[priority] = min(waiting.get(priority, math.inf), shard.virtual_tokens)
        classes = waiting.keys() | {priority for shard in others for priority in shard.served_virtual_tokens}
        return {
            priority: max(
                waiting.get(priority, 0.0), *(shard.served_virtual_tokens.get(priority, 0.0) for shard in others)
            )
            for priority in classes
        }

    def on_queue_connected(self, queue: str) -> None:
        self.shards[queue] = ShardState()

    def on_queue_disconnected(self, queue: str) -> None:
        self.shards.pop(queue, None)
        self._not_waited_since_idle.discard(queue)

    def reset(self) -> None:
        """No worker serves the model any more, or the first does: shards tell their heads and get credit anew."""
        self.shards = {
            queue: ShardState(served_virtual_tokens=shard.served_virtual_tokens) for queue, shard in self.shards.items()
        }

    def on_offer(self, queue: str, tokens: int, *, is_express: bool = False, uses_express_credit: bool = False) -> None:
        self.large_ticket_tokens += (LARGE_TICKET_FACTOR * tokens - self.large_ticket_tokens) * TICKET_SIZE_GAIN
        self.express_slots.record(is_express=is_express)
        self.shards[queue].on_offer(tokens, uses_express_credit=uses_express_credit)

    def on_credit_returned(self, queue: str, tickets: int) -> None:
        self.shards[queue].on_credit_returned(tickets)

    def on_credit_voided(self, queue: str) -> None:
        """A shard that hears NO_CAPACITY drops what it holds: it is more than there was room for."""
        self.shards[queue].on_credit_voided()

    def on_head(self, queue: str, head: Head) -> None:
        if not self.has_waiting:
            self._not_waited_since_idle = set(self.shards)
        shard = self.shards[queue]
        shard.on_head(head, self.virtual_time.get(head.priority, 0.0))
        if queue in self._not_waited_since_idle and shard.has_waiting and not shard.has_expedited_head:
            self._not_waited_since_idle.discard(queue)
            self._raise_virtual_time(head.priority, shard.virtual_tokens)

    def _raise_virtual_time(self, priority: int, virtual_tokens: float) -> None:
        """Let nobody owe what it was served before anybody waited: each shard's clock ran by its own load then."""
        if virtual_tokens > self.virtual_time.get(priority, 0.0):
            self.virtual_time[priority] = virtual_tokens
            for shard in self.shards.values():
                if shard.has_waiting and shard.head.priority == priority:
                    shard.offset_virtual_time(virtual_tokens)

    def on_capacity_changed(self) -> None:
        for shard in self.shards.values():
            shard.on_capacity_changed()

    def tick(self) -> None:
        """Count for how long credit has lain beside waiting tickets."""
        for shard in self.shards.values():
            shard.on_capacity_changed()
            if shard.has_waiting and shard.held_tickets and not shard.is_return_pending:
                shard.unused_credit_count += 1

    def grants(self, free: FreeCapacity) -> list[CreditGrant]:
        """Give credit for what there is space for; what is returned counts as held from now."""
        kept = self.express_slots.slots_to_keep(free.slots)
        urgent = self._express_grants(min(kept, free.leases), free.max_ticket_tokens)
        free = free.without_express_slots(kept, self.large_ticket_tokens)
        waiting = [queue for queue, shard in self.shards.items() if shard.has_waiting]
        if not waiting:
            found = self._idle_grants(free)
        elif len(waiting) == 1:
            found = self._grants_for_one(waiting[0], free)
        else:
            found = self._grants_in_turn(waiting, free)
        return [
            self._record_grant(grant, free.max_ticket_tokens)
            for grant in [*found, *self._renewals(found, free), *urgent]
        ]

    def _express_grants(self, tickets: int, max_ticket_tokens: int) -> list[CreditGrant]:
        """Have every shard hold what is kept; where urgent tickets wait, the first of them, and no other shard."""
        if tickets <= 0 and not any(shard.held_express_tickets for shard in self.shards.values()):
            return []
        shards = {
            queue: shard for queue, shard in self.shards.items() if shard.has_waiting and shard.has_expedited_head
        }
        if shards:
            first = min(shards, key=lambda queue: shards[queue].sort_key)
            shards = {first: shards[first]}
        return [
            CreditGrant(queue, express_tickets=max(0, tickets - shard.held_express_tickets))
            for queue, shard in (shards or self.shards).items()
            if shard.held_express_tickets < tickets
            or (shard.held_express_tickets and shards and shard.sent_max_ticket_tokens < max_ticket_tokens)
        ]

    def _idle_grants(self, free: FreeCapacity) -> list[CreditGrant]:
        """Fill up what is half used: a frame for each ticket would cost more than the round trip that it may save."""
        wanted = min(free.leases, MAX_IDLE_CREDIT_TICKETS)
        return [
            CreditGrant(queue, wanted - shard.held_tickets, shard.missing_tokens(free.tokens))
            for queue, shard in self.shards.items()
            if shard.held_tickets < wanted
            and not shard.is_return_pending
            and shard.is_low(wanted, free.tokens, free.max_ticket_tokens)
        ]

    def _grants_for_one(self, queue: str, free: FreeCapacity) -> list[CreditGrant]:
        shard = self.shards[queue]
        is_scarce = free.leases <= shard.head.waiting or free.tokens <= shard.head.waiting_tokens
        found = self._return_requests(other for other in self.shards if other != queue) if is_scarce else []
        tickets = max(0, min(free.leases - shard.held_tickets, shard.unserved_tickets))
        tokens = shard.missing_tokens(free.tokens if tickets else min(free.tokens, shard.head.waiting_tokens))
        if (tickets or tokens) and not shard.is_return_pending:
            found.append(CreditGrant(queue, tickets, tokens))
        return found

    def _grants_in_turn(self, waiting: list[str], free: FreeCapacity) -> list[CreditGrant]:
        found = self._return_requests(self.shards)
        ready = self._unblocked(waiting, free.max_supported_tokens)
        if free.leases <= 0 or not ready or not all(self.shards[queue].is_settled for queue in waiting):
            return found
        heads = [self.shards[queue].head for queue in ready]
        if free.leases >= sum(head.waiting for head in heads) and free.tokens >= sum(h.waiting_tokens for h in heads):
            return [*found, *(self._turn_grant(queue, free.leases, free) for queue in ready)]
        best = min(ready, key=lambda queue: self.shards[queue].sort_key)
        return [*found, self._turn_grant(best, max(1, free.leases // FILL_TURNS), free)]

    def _unblocked(self, waiting: list[str], max_supported_tokens: int) -> list[str]:
        stuck = [self.shards[queue] for queue in waiting if self.shards[queue].is_stuck]
        others = [queue for queue in waiting if not self.shards[queue].is_stuck]
        return [
            queue
            for queue in others
            if not any(each.blocks(self.shards[queue], MAX_LEAD_TOKEN_SHARE, max_supported_tokens) for each in stuck)
        ]

    def _turn_grant(self, queue: str, max_tickets: int, free: FreeCapacity) -> CreditGrant:
        shard = self.shards[queue]
        tickets = min(shard.head.waiting, max_tickets)
        grant = CreditGrant(queue, tickets, shard.missing_tokens(free.tokens), return_unused=True)
        return grant.unbounded_for(shard) if shard.is_probe_due(free.max_supported_tokens) else grant

    def _return_requests(self, queues: Iterable[str]) -> list[CreditGrant]:
        return [
            CreditGrant(queue, return_unused=True)
            for queue in queues
            if self.shards[queue].held_tickets and not self.shards[queue].is_return_pending
        ]

    def _renewals(self, found: list[CreditGrant], free: FreeCapacity) -> list[CreditGrant]:
        """Renew the bounds of what lies unused where more fits by now, or lift them once to try the head."""
        idle = [
            (queue, shard)
            for queue, shard in self.shards.items()
            if shard.held_tickets
            and shard.has_waiting
            and not shard.is_return_pending
            and not any(grant.queue == queue for grant in found)
        ]
        if not idle:
            return []
        probed = [
            CreditGrant(queue).unbounded_for(shard)
            for queue, shard in idle
            if shard.is_probe_due(free.max_supported_tokens)
        ]
        tried = {grant.queue for grant in probed}
        renewed = [
            CreditGrant(queue, 0, shard.missing_tokens(free.tokens))
            for queue, shard in idle
            if shard.sent_max_ticket_tokens < free.max_ticket_tokens and queue not in tried
        ]
        return [*probed, *renewed]

    def _record_grant(self, grant: CreditGrant, max_ticket_tokens: int) -> CreditGrant:
        shard = self.shards[grant.queue]
        shard.held_tickets += grant.tickets
        shard.held_express_tickets += grant.express_tickets
        if grant.tickets and shard.has_waiting and not shard.has_expedited_head:
            self._record_served(shard, shard.head.priority)
        shard.held_tokens += grant.tokens
        shard.sent_max_ticket_tokens = max_ticket_tokens
        shard.is_return_pending = shard.is_return_pending or grant.return_unused
        shard.is_probed = shard.is_probed or grant.is_unbounded
        return grant

    def _record_served(self, shard: ShardState, priority: int) -> None:
        for passed in (self.virtual_time, shard.served_virtual_tokens):
            passed[priority] = max(passed.get(priority, 0.0), shard.virtual_tokens)
