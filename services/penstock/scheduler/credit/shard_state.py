"""State of one queue shard at a scheduler, for one model: its head and the credit that it holds."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.chassis.durations import NANOS_PER_S
from penstock.mesh.v1.queue_pb2 import Head

PROBE_AFTER_REFUSALS = 2  # ticks or returns of unused credit with an unchanged head


class VirtualTimeOffset(NamedTuple):
    """Virtual tokens that are added to those of a shard, until the shard has lifted them itself."""

    tokens: float
    lifted_by_shard: float  # lifted tokens in the shard's head at that time


class ClassBacklog(NamedTuple):
    """The waiting tickets of one class, at one shard or at several."""

    tickets: int = 0
    prompt_tokens: float = 0.0
    tokens: float = 0.0  # prompt and output tokens
    tickets_per_virtual_token: float = 0.0  # dispatched while the virtual time advances by one token

    def plus(self, other: "ClassBacklog") -> "ClassBacklog":
        return ClassBacklog(
            self.tickets + other.tickets,
            self.prompt_tokens + other.prompt_tokens,
            self.tokens + other.tokens,
            self.tickets_per_virtual_token + other.tickets_per_virtual_token,
        )


@dataclass(slots=True)
class ShardState:
    """The head and the credit of one shard. It may be stale, because frames are under way in both directions."""

    held_tickets: int = 0  # tickets of credit that were neither used nor returned
    held_tokens: int = 0  # tokens of this credit
    held_express_tickets: int = 0  # tickets of express credit, likewise
    sent_max_ticket_tokens: int = 0  # latest size limit that was sent
    head: Head = field(default_factory=Head)
    head_enqueued_at: float = 0.0  # s of this scheduler's clock; the first enqueue of the best ticket
    offsets: dict[int, VirtualTimeOffset] = field(default_factory=dict)  # by class, while tickets wait
    served_virtual_tokens: dict[int, float] = field(default_factory=dict)  # of the head that was served last, by class
    is_return_pending: bool = False  # a request to return credit was not answered yet
    is_stale: bool = False  # offers have arrived since the latest head
    is_stuck: bool = False  # the shard returned credit although tickets wait
    unused_credit_count: int = 0  # ticks and returns for which credit was unused with the present head
    is_probed: bool = False  # the present head could be offered without a size limit

    @property
    def has_waiting(self) -> bool:
        return self.head.waiting > 0

    @property
    def class_backlog(self) -> ClassBacklog:
        """The waiting tickets of the head's class. Its tokens are estimated by its share of all waiting tickets."""
        head = self.head
        tickets, rate = min(head.class_waiting, head.waiting), head.tickets_per_virtual_token
        share = tickets / head.waiting if head.waiting else 0.0
        return ClassBacklog(
            tickets,
            share * head.waiting_prompt_tokens,
            share * head.waiting_tokens,
            rate if 0 <= rate < math.inf else 0.0,
        )

    @property
    def unserved_tickets(self) -> int:
        """Waiting tickets that are not covered by held credit."""
        return max(0, self.head.waiting - self.held_tickets)

    def missing_tokens(self, tokens: int) -> int:
        """Return the tokens to add so that the shard holds `tokens`."""
        return max(0, tokens - self.held_tokens)

    def is_low(self, tickets: int, tokens: int, max_ticket_tokens: int) -> bool:
        """Whether the shard holds at most half of the possible credit, or knows at most half of the size limit."""
        return (
            2 * self.held_tickets <= tickets
            or 2 * self.held_tokens <= tokens
            or 2 * self.sent_max_ticket_tokens <= max_ticket_tokens
        )

    @property
    def is_settled(self) -> bool:
        """No frame is under way that would change the head."""
        return not (self.held_tickets or self.is_return_pending or self.is_stale)

    def is_probe_due(self, max_supported_tokens: int) -> bool:
        """Whether to lift the size limit once: an offer shows whether the head is too large for every worker."""
        may_be_too_large = self.head.tokens > max_supported_tokens or not self.head.tokens
        return may_be_too_large and self.unused_credit_count >= PROBE_AFTER_REFUSALS and not self.is_probed

    def blocks(self, other: "ShardState", lead: float, max_supported_tokens: int) -> bool:
        """Whether another shard has to wait until this shard's head, which did not fit, can be placed.

        Otherwise smaller tickets could occupy the free capacity for ever. A head that possibly no worker here can run
        blocks no other shard: a head with more than `max_supported_tokens`, or an expedited one.
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
        """Whether the head is expedited, and therefore ahead of the virtual tokens of all tenants."""
        return self.head.resumes or self.head.express

    @property
    def sort_key(self) -> tuple[int, float, float]:
        return self.head.priority, self.virtual_tokens, self.head_enqueued_at

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
        """Record returned credit. A shard that was asked to return credit holds none, because it got none since."""
        self.held_tickets = 0 if self.is_return_pending else max(0, self.held_tickets - tickets)
        self.held_tokens = self.held_tokens if self.held_tickets else 0
        self.is_return_pending = False
        if tickets and self.has_waiting:
            self.is_stuck = True
            self.unused_credit_count += 1

    def on_head(self, head: Head, virtual_time: float, now: float) -> None:
        """Record the head. A shard that begins to wait is lifted to the virtual time of the class."""
        is_same_ticket = head.waiting and head.arrival_number and head.arrival_number == self.head.arrival_number
        before, self.head = self.sort_key, head
        if not is_same_ticket:  # otherwise the time that each frame takes would change the key
            self.head_enqueued_at = now - head.age_nanos / NANOS_PER_S
        # The head belongs to the highest waiting class, so no higher class waits.
        self.offsets = {each: lift for each, lift in self.offsets.items() if head.waiting and each >= head.priority}
        if head.waiting and not self.has_expedited_head and head.priority not in self.offsets:
            self.offsets[head.priority] = VirtualTimeOffset(
                max(0.0, virtual_time - head.virtual_tokens), head.lifted_tokens
            )
        self.is_stale = self.is_stuck = False
        if self.sort_key != before:
            self.unused_credit_count, self.is_probed = 0, False

    def offset_virtual_time(self, virtual_tokens: float) -> None:
        """Raise the head to at least these virtual tokens, while tickets wait."""
        lift = self.offsets.get(self.head.priority)
        if lift and self.virtual_tokens < virtual_tokens:
            lifted_since = self.head.lifted_tokens - lift.lifted_by_shard
            lifted = virtual_tokens - self.head.virtual_tokens
            self.offsets[self.head.priority] = VirtualTimeOffset(lifted + lifted_since, lift.lifted_by_shard)

    def on_capacity_changed(self) -> None:
        """A head that did not fit may fit now, after a change of capacity or time."""
        self.is_stuck = False
