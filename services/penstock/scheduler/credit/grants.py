"""Credit grants: the credit that the shards of one model get next, from the free capacity of its workers.

While no ticket waits, every shard holds credit for all free capacity, or for at least half of it, so that a request
costs one round trip between queue and scheduler. If two shards use the same capacity, the scheduler declines one offer.
While one shard has waiting tickets, it gets credit for the free capacity. While several shards have waiting tickets,
none holds credit: free capacity is offered to the most urgent head, and credit that finds no ticket there is returned
and goes to the next head. Tickets are therefore dispatched in one order over all shards.
A few slots are kept free for express tickets: every shard holds credit for these slots at any time.
Credit that batch tickets would use leaves headroom: a shard whose best ticket is of the class batch, or that has none
waiting, gets no credit for it, and a shard with a better one gets no more of it than it has tickets of that class.
"""

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from penstock.scheduler.credit.credit_book import LARGE_TICKET_FACTOR, CreditBook
from penstock.scheduler.credit.shard_state import ShardState
from penstock.v1.inference_pb2 import Priority

MAX_IDLE_CREDIT_TICKETS = 64  # tickets of credit per shard while none waits; more than arrive in one round trip
# Share of the tokens of a head that does not fit, by which the heads of other shards may be ahead of it.
MAX_LEAD_TOKEN_SHARE = 0.5
# Turns in which several shards fill the free capacity: many tickets per turn while much is free, then one per turn.
FILL_TURNS = 8


class FreeCapacity(NamedTuple):
    """The capacity that the workers of a model can take now."""

    leases: int  # leases that the workers can take
    tokens: int  # free tokens of all workers
    max_ticket_tokens: int  # tokens of the largest ticket that a worker can take now
    open_workers: int = 0  # workers that can take a lease
    max_supported_tokens: int = 0  # tokens of the largest ticket that an empty worker can run
    slots: int = 0  # slots of all workers, free or not
    batch_leases: float = inf  # leases that the workers can take of batch tickets; inf: all
    headroom: int = 0  # slots that batch tickets leave free

    def packable_tokens(self, ticket_tokens: float) -> int:
        """Return the tokens that fit in any order, in tickets of at most `ticket_tokens` each.

        A ticket does not fit only if every worker has fewer free tokens than the ticket needs. At most `ticket_tokens`
        tokens per worker therefore stay unused. Tickets that together need at most `max_ticket_tokens` always fit on
        the worker with the most free tokens.
        """
        return max(self.max_ticket_tokens, round(self.tokens - ticket_tokens * self.open_workers))

    def without_express_slots(self, express_slots: int, ticket_tokens: float) -> "FreeCapacity":
        """Return the capacity that is left to other tickets, of at most `ticket_tokens` tokens each."""
        if self.leases <= express_slots:
            return self._replace(leases=0, tokens=0)
        return self._replace(leases=self.leases - express_slots, tokens=self.packable_tokens(ticket_tokens))

    def without_headroom(self, ticket_tokens: float) -> "FreeCapacity":
        """Return the capacity that batch tickets may take beside the headroom, which is for tickets of this size."""
        leases = int(min(self.leases, self.batch_leases))
        if not self.headroom:
            return self._replace(leases=leases)
        tokens = max(0, round(self.tokens - self.headroom * ticket_tokens)) if leases else 0
        return self._replace(leases=leases, tokens=tokens)


class CreditGrant(NamedTuple):
    """Credit for one shard. A grant without tickets and tokens renews the limit on ticket sizes."""

    queue: str
    tickets: int = 0
    tokens: int = 0
    return_unused: bool = False  # the shard returns all credit that it does not use at once
    is_unbounded: bool = False  # tickets of any size may be offered
    express_tickets: int = 0  # express tickets, in addition to `tickets`

    def unbounded_for(self, shard: ShardState) -> "CreditGrant":
        """Return the grant without a limit on sizes, so that the shard offers its head."""
        size = shard.head.tokens or shard.head.waiting_tokens
        return self._replace(tokens=max(self.tokens, shard.missing_tokens(size)), is_unbounded=True)


def plan_grants(book: CreditBook, free: FreeCapacity) -> list[CreditGrant]:
    """Return the grants that use the free capacity. The book counts them as held."""
    kept = book.express_slots.slots_to_keep(free.slots)
    express = _express_grants(book, min(kept, free.leases), free.max_ticket_tokens)
    free = free.without_express_slots(kept, book.large_ticket_tokens)
    for_batch = free.without_headroom(book.large_ticket_tokens / LARGE_TICKET_FACTOR)
    waiting = [queue for queue, shard in book.shards.items() if shard.has_waiting]
    if not waiting:
        found = _idle_grants(book, for_batch)
    elif len(waiting) == 1:
        found = _grants_for_one(book, waiting[0], _usable(book.shards[waiting[0]], free, for_batch))
    else:
        found = _grants_in_turn(book, waiting, free, for_batch)
    return [
        _record_grant(book, grant, free.max_ticket_tokens)
        for grant in [*found, *_renewals(book, found, free), *express]
    ]


def _usable(shard: ShardState, free: FreeCapacity, for_batch: FreeCapacity) -> FreeCapacity:
    """Return the capacity that the waiting tickets of a shard may take."""
    head = shard.head
    if head.priority == Priority.PRIORITY_BATCH:
        return for_batch
    tickets = shard.class_backlog.tickets or head.waiting
    return free._replace(leases=min(free.leases, max(for_batch.leases, tickets)))


def _express_grants(book: CreditBook, tickets: int, max_ticket_tokens: int) -> list[CreditGrant]:
    """Return credit for the express slots: to every shard, or to the most urgent one if express tickets wait."""
    if tickets <= 0 and not any(shard.held_express_tickets for shard in book.shards.values()):
        return []
    shards = {queue: shard for queue, shard in book.shards.items() if shard.has_waiting and shard.has_expedited_head}
    if shards:
        first = min(shards, key=lambda queue: shards[queue].sort_key)
        shards = {first: shards[first]}
    return [
        CreditGrant(queue, express_tickets=max(0, tickets - shard.held_express_tickets))
        for queue, shard in (shards or book.shards).items()
        if shard.held_express_tickets < tickets
        or (shard.held_express_tickets and shards and shard.sent_max_ticket_tokens < max_ticket_tokens)
    ]


def _idle_grants(book: CreditBook, free: FreeCapacity) -> list[CreditGrant]:
    """Return credit for shards that have used half of it: one frame per ticket would cost more than it saves."""
    wanted = min(free.leases, MAX_IDLE_CREDIT_TICKETS)
    return [
        CreditGrant(queue, wanted - shard.held_tickets, shard.missing_tokens(free.tokens))
        for queue, shard in book.shards.items()
        if shard.held_tickets < wanted
        and not shard.is_return_pending
        and shard.is_low(wanted, free.tokens, free.max_ticket_tokens)
    ]


def _grants_for_one(book: CreditBook, queue: str, free: FreeCapacity) -> list[CreditGrant]:
    shard = book.shards[queue]
    is_scarce = free.leases <= shard.head.waiting or free.tokens <= shard.head.waiting_tokens
    found = _return_requests(book, (other for other in book.shards if other != queue)) if is_scarce else []
    tickets = max(0, min(free.leases - shard.held_tickets, shard.unserved_tickets))
    tokens = shard.missing_tokens(free.tokens if tickets else min(free.tokens, shard.head.waiting_tokens))
    if (tickets or tokens) and not shard.is_return_pending:
        found.append(CreditGrant(queue, tickets, tokens))
    return found


def _grants_in_turn(
    book: CreditBook, waiting: list[str], free: FreeCapacity, for_batch: FreeCapacity
) -> list[CreditGrant]:
    found = _return_requests(book, book.shards)
    ready = _unblocked(book, waiting, free.max_supported_tokens)
    usable = {queue: _usable(book.shards[queue], free, for_batch) for queue in ready}
    ready = [queue for queue in ready if usable[queue].leases > 0]
    if not ready or not all(book.shards[queue].is_settled for queue in waiting):
        return found
    heads = [book.shards[queue].head for queue in ready]
    if for_batch.leases >= sum(head.waiting for head in heads) and for_batch.tokens >= sum(
        head.waiting_tokens for head in heads
    ):
        return [*found, *(_turn_grant(book, queue, free.leases, free) for queue in ready)]
    best = min(ready, key=lambda queue: book.shards[queue].sort_key)
    room = usable[best]
    return [*found, _turn_grant(book, best, max(1, room.leases // FILL_TURNS), room)]


def _unblocked(book: CreditBook, waiting: list[str], max_supported_tokens: int) -> list[str]:
    stuck = [book.shards[queue] for queue in waiting if book.shards[queue].is_stuck]
    others = [queue for queue in waiting if not book.shards[queue].is_stuck]
    return [
        queue
        for queue in others
        if not any(each.blocks(book.shards[queue], MAX_LEAD_TOKEN_SHARE, max_supported_tokens) for each in stuck)
    ]


def _turn_grant(book: CreditBook, queue: str, max_tickets: int, free: FreeCapacity) -> CreditGrant:
    shard = book.shards[queue]
    tickets = min(shard.head.waiting, max_tickets)
    grant = CreditGrant(queue, tickets, shard.missing_tokens(free.tokens), return_unused=True)
    return grant.unbounded_for(shard) if shard.is_probe_due(free.max_supported_tokens) else grant


def _return_requests(book: CreditBook, queues: Iterable[str]) -> list[CreditGrant]:
    return [
        CreditGrant(queue, return_unused=True)
        for queue in queues
        if book.shards[queue].held_tickets and not book.shards[queue].is_return_pending
    ]


def _renewals(book: CreditBook, found: list[CreditGrant], free: FreeCapacity) -> list[CreditGrant]:
    """Return grants that raise the size limits of unused credit to what fits now, or lift them to try the head."""
    idle = [
        (queue, shard)
        for queue, shard in book.shards.items()
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


def _record_grant(book: CreditBook, grant: CreditGrant, max_ticket_tokens: int) -> CreditGrant:
    shard = book.shards[grant.queue]
    shard.held_tickets += grant.tickets
    shard.held_express_tickets += grant.express_tickets
    if grant.tickets and shard.has_waiting and not shard.has_expedited_head:
        book.record_served(shard, shard.head.priority)
    shard.held_tokens += grant.tokens
    shard.sent_max_ticket_tokens = max_ticket_tokens
    shard.is_return_pending = shard.is_return_pending or grant.return_unused
    shard.is_probed = shard.is_probed or grant.is_unbounded
    return grant
