"""Credit of one model over all shards: how many tickets each shard holds credit for, and its best waiting ticket.

The book knows no clock, no worker and no stream. `plan_grants` decides the credit that shards get next.
"""

import math
from collections.abc import Iterable

from penstock.mesh.v1.queue_pb2 import Head
from penstock.scheduler.credit.express_slots import ExpressSlots
from penstock.scheduler.credit.headroom import Headroom
from penstock.scheduler.credit.shard_state import ClassBacklog, ShardState

LARGE_TICKET_FACTOR = 2.0  # times the mean size of tickets
TICKET_SIZE_GAIN = 0.02  # weight of the latest ticket in that mean: about the latest fifty count

NO_BACKLOG = ClassBacklog()


class CreditBook:
    """Credit and virtual time of one model over all shards."""

    def __init__(self, queues: Iterable[str] = (), express_slot_share: float = 0.0) -> None:
        self.express_slots = ExpressSlots(express_slot_share)
        self.headroom = Headroom()
        self.shards = {queue: ShardState() for queue in queues}
        # By class, the virtual tokens of the head that was served last (the clock of start-time fair queueing).
        self.virtual_time: dict[int, float] = {}
        self.large_ticket_tokens = 0.0  # size that few tickets exceed
        self._not_waited_since_idle = set(self.shards)  # shards without a waiting ticket since all shards had none

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
        """Return the only shard with waiting tickets; None if there are several or none."""
        waiting = [queue for queue, shard in self.shards.items() if shard.has_waiting]
        return waiting[0] if len(waiting) == 1 else None

    def remote_virtual_time(self, queue: str) -> dict[int, float]:
        """Return the virtual time of each class over the other shards.

        It is the largest virtual time served there, or the least that waits there if that is larger.
        """
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

    def remote_backlogs(self, queue: str) -> dict[int, ClassBacklog]:
        """Return the waiting tickets of the other shards by class. Of each shard, only the highest class is known."""
        found: dict[int, ClassBacklog] = {}
        for each, shard in self.shards.items():
            if each != queue and shard.has_waiting:
                priority = shard.head.priority
                found[priority] = found.get(priority, NO_BACKLOG).plus(shard.class_backlog)
        return found

    def on_queue_connected(self, queue: str) -> None:
        self.shards[queue] = ShardState()

    def on_queue_disconnected(self, queue: str) -> None:
        self.shards.pop(queue, None)
        self._not_waited_since_idle.discard(queue)

    def reset(self) -> None:
        """Discard heads and credit: the last worker of the model is lost, or the first one has attached."""
        self.shards = {
            queue: ShardState(served_virtual_tokens=shard.served_virtual_tokens) for queue, shard in self.shards.items()
        }

    def on_offer(
        self,
        queue: str,
        tokens: int,
        *,
        priority: int = 0,
        is_express: bool = False,
        uses_express_credit: bool = False,
    ) -> None:
        self.large_ticket_tokens += (LARGE_TICKET_FACTOR * tokens - self.large_ticket_tokens) * TICKET_SIZE_GAIN
        self.express_slots.record(is_express=is_express)
        self.headroom.record(priority)
        self.shards[queue].on_offer(tokens, uses_express_credit=uses_express_credit)

    def on_credit_returned(self, queue: str, tickets: int) -> None:
        self.shards[queue].on_credit_returned(tickets)

    def on_credit_voided(self, queue: str) -> None:
        """Record that a shard received NO_CAPACITY, upon which it drops the credit that it holds."""
        self.shards[queue].on_credit_voided()

    def on_head(self, queue: str, head: Head, now: float) -> None:
        if not self.has_waiting:
            self._not_waited_since_idle = set(self.shards)
        shard = self.shards[queue]
        shard.on_head(head, self.virtual_time.get(head.priority, 0.0), now)
        if queue in self._not_waited_since_idle and shard.has_waiting and not shard.has_expedited_head:
            self._not_waited_since_idle.discard(queue)
            self._raise_virtual_time(head.priority, shard.virtual_tokens)

    def _raise_virtual_time(self, priority: int, virtual_tokens: float) -> None:
        """Raise the virtual time of a class to that of a shard that starts to wait, for all shards that wait.

        Until tickets wait, each shard's virtual time advances with its own load and says nothing about fairness.
        """
        if virtual_tokens > self.virtual_time.get(priority, 0.0):
            self.virtual_time[priority] = virtual_tokens
            for shard in self.shards.values():
                if shard.has_waiting and shard.head.priority == priority:
                    shard.offset_virtual_time(virtual_tokens)

    def on_capacity_changed(self) -> None:
        for shard in self.shards.values():
            shard.on_capacity_changed()

    def tick(self) -> None:
        """Count the ticks for which shards hold credit that their waiting tickets do not use."""
        for shard in self.shards.values():
            shard.on_capacity_changed()
            if shard.has_waiting and shard.held_tickets and not shard.is_return_pending:
                shard.unused_credit_count += 1

    def record_served(self, shard: ShardState, priority: int) -> None:
        """Advance the virtual time of a class to that of a shard whose head gets credit."""
        for passed in (self.virtual_time, shard.served_virtual_tokens):
            passed[priority] = max(passed.get(priority, 0.0), shard.virtual_tokens)
