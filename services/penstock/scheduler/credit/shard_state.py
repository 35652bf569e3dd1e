"""What a scheduler knows of one queue shard, for one model."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.mesh.v1.queue_pb2 import Head

PROBE_AFTER_REFUSALS = 2  # ticks or refusals over one and the same head


class VirtualTimeOffset(NamedTuple):
    """What is added to a shard's virtual tokens here, until the shard has lifted them itself."""

    tokens: float
    lifted_by_shard: float  # as its head said at that time


@dataclass(slots=True)
class ShardState:
    """Its best waiting ticket, and the credit it holds. Frames are under way both ways, so all of it may be stale."""

    held_tickets: int = 0  # credit given and neither used nor handed back
    held_tokens: int = 0  # that this credit may still be used for
    held_express_tickets: int = 0  # credit for what goes first alone, likewise
    sent_max_ticket_tokens: int = 0  # largest ticket that may be offered, as last said
    head: Head = field(default_factory=Head)
    offsets: dict[int, VirtualTimeOffset] = field(default_factory=dict)  # by class, while it waits
    served_virtual_tokens: dict[int, float] = field(
        default_factory=dict
    )  # virtual tokens of the head that was served last, by class
    is_return_pending: bool = False  # to hand back what it holds; the answer is on its way
    is_stale: bool = False  # has offered since its head was heard
    is_stuck: bool = False  # has tickets waiting, and handed credit back all the same
    unused_credit_count: int = 0  # of credit, over the present head
    is_probed: bool = False  # the present head could be offered whatever its size

    @property
    def has_waiting(self) -> bool:
        return self.head.waiting > 0

    @property
    def unserved_tickets(self) -> int:
        """Waiting tickets that no credit is on its way for."""
        return max(0, self.head.waiting - self.held_tickets)

    def missing_tokens(self, tokens: int) -> int:
        """Tokens to be added for it to have so many."""
        return max(0, tokens - self.held_tokens)

    def is_low(self, tickets: int, tokens: int, max_ticket_tokens: int) -> bool:
        """Whether it holds no more than half of what it could hold, or knows of no more than half of the room."""
        return (
            2 * self.held_tickets <= tickets
            or 2 * self.held_tokens <= tokens
            or 2 * self.sent_max_ticket_tokens <= max_ticket_tokens
        )

    @property
    def is_settled(self) -> bool:
        """Nothing is under way that would change what it has to say."""
        return not (self.held_tickets or self.is_return_pending or self.is_stale)

    def is_probe_due(self, max_supported_tokens: int) -> bool:
        """Its head may be too large for every worker, which only an offer tells it; the largest can run `ever`."""
        may_be_too_large = self.head.tokens > max_supported_tokens or not self.head.tokens
        return may_be_too_large and self.unused_credit_count >= PROBE_AFTER_REFUSALS and not self.is_probed

    def blocks(self, other: "ShardState", lead: float, max_supported_tokens: int) -> bool:
        """Whether another shard has to wait until this one's head, which found no room, finds some.

        Else tickets that fit would keep large ones from ever finding it. What no worker here may ever run bars nobody:
        with more tokens than the `ever` of the largest worker, or resumed, perhaps because its worker here was lost.
        """
        head = self.head
        if (
            not 0 < head.tokens <= max_supported_tokens
            or self.has_expedited_head
            or head.priority != other.head.priority
        ):
            return False
        return other.virtual_tokens > self.virtual_tokens + lead * head.tokens

    @property
    def has_expedited_head(self) -> bool:
        """Whether its head goes first in its class, and is ahead of any tenant's virtual tokens."""
        return self.head.resumes or self.head.express

    @property
    def sort_key(self) -> tuple[int, float, int]:
        return self.head.priority, self.virtual_tokens, self.head.enqueue_unix_nano

    @property
    def virtual_tokens(self) -> float:
        head = self.head
        if self.has_expedited_head:
            return -math.inf
        lift = self.offsets.get(head.priority)
        if lift is None:
            return head.virtual_tokens
        return head.virtual_tokens + max(0.0, lift.tokens - (head.lifted_tokens - lift.lifted_by_shard))

    def on_offer(self, tokens: int, *, uses_express_credit: bool = False) -> None:
        if uses_express_credit:
            self.held_express_tickets = max(0, self.held_express_tickets - 1)
        else:
            self.held_tickets = max(0, self.held_tickets - 1)
            self.held_tokens = max(0, self.held_tokens - tokens)
        self.is_stale = True

    def on_credit_voided(self) -> None:
        self.held_tickets = self.held_tokens = self.held_express_tickets = 0

    def on_credit_returned(self, tickets: int) -> None:
        """Nothing is left to a shard that was asked, as it got nothing since."""
        self.held_tickets = 0 if self.is_return_pending else max(0, self.held_tickets - tickets)
        self.held_tokens = self.held_tokens if self.held_tickets else 0
        self.is_return_pending = False
        if tickets and self.has_waiting:
            self.is_stuck = True
            self.unused_credit_count += 1

    def on_head(self, head: Head, virtual_time: float) -> None:
        """Who waits again, or for the first time, has neither credit nor debt: it is lifted to the class's time."""
        before, self.head = self.sort_key, head
        # A head is of the most urgent class that waits: those more urgent do not.
        self.offsets = {each: lift for each, lift in self.offsets.items() if head.waiting and each >= head.priority}
        if head.waiting and not self.has_expedited_head and head.priority not in self.offsets:
            self.offsets[head.priority] = VirtualTimeOffset(
                max(0.0, virtual_time - head.virtual_tokens), head.lifted_tokens
            )
        self.is_stale = self.is_stuck = False
        if self.sort_key != before:
            self.unused_credit_count, self.is_probed = 0, False

    def offset_virtual_time(self, virtual_tokens: float) -> None:
        """Have its head stand no lower than this, while it waits."""
        lift = self.offsets.get(self.head.priority)
        if lift and self.virtual_tokens < virtual_tokens:
            lifted_since = self.head.lifted_tokens - lift.lifted_by_shard
            lifted = virtual_tokens - self.head.virtual_tokens
            self.offsets[self.head.priority] = VirtualTimeOffset(lifted + lifted_since, lift.lifted_by_shard)

    def on_capacity_changed(self) -> None:
        """Capacity or time has changed: what did not fit may fit now."""
        self.is_stuck = False
