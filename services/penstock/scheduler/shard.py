"""What a scheduler knows of one queue shard, for one model."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.mesh.v1.queue_pb2 import Head

PROBE_AFTER = 2  # ticks or refusals over one and the same head


class Lift(NamedTuple):
    """What is added to a shard's virtual tokens here, until the shard has lifted them itself."""

    tokens: float
    lifted_there: float  # as its head said at that time


@dataclass(slots=True)
class Shard:
    """Its best waiting ticket, and the credit it holds. Frames are under way both ways, so all of it may be stale."""

    held: int = 0  # credit given and neither used nor handed back
    tokens: int = 0  # that this credit may still be used for
    urgent: int = 0  # credit for what goes first alone, likewise
    told: int = 0  # largest ticket that may be offered, as last said
    head: Head = field(default_factory=Head)
    lifts: dict[int, Lift] = field(default_factory=dict)  # by class, while it waits
    served: dict[int, float] = field(default_factory=dict)  # virtual tokens of the head that was served last, by class
    is_asked: bool = False  # to hand back what it holds; the answer is on its way
    is_stale: bool = False  # has offered since its head was heard
    is_stuck: bool = False  # has tickets waiting, and handed credit back all the same
    refusals: int = 0  # of credit, over the present head
    is_probed: bool = False  # the present head could be offered whatever its size

    @property
    def waits(self) -> bool:
        return self.head.waiting > 0

    @property
    def unserved(self) -> int:
        """Waiting tickets that no credit is on its way for."""
        return max(0, self.head.waiting - self.held)

    def lacks(self, tokens: int) -> int:
        """Tokens to be added for it to have so many."""
        return max(0, tokens - self.tokens)

    def runs_low(self, tickets: int, tokens: int, largest: int) -> bool:
        """Whether it holds no more than half of what it could hold, or knows of no more than half of the room."""
        return 2 * self.held <= tickets or 2 * self.tokens <= tokens or 2 * self.told <= largest

    @property
    def is_settled(self) -> bool:
        """Nothing is under way that would change what it has to say."""
        return not (self.held or self.is_asked or self.is_stale)

    def is_to_be_probed(self, ever: int) -> bool:
        """Its head may be too large for every worker, which only an offer tells it; the largest can run `ever`."""
        may_be_too_large = self.head.tokens > ever or not self.head.tokens
        return may_be_too_large and self.refusals >= PROBE_AFTER and not self.is_probed

    def bars(self, other: "Shard", lead: float, ever: int) -> bool:
        """Whether another shard has to wait until this one's head, which found no room, finds some.

        Else tickets that fit would keep large ones from ever finding it. What no worker here may ever run bars nobody:
        with more tokens than the `ever` of the largest worker, or resumed, perhaps because its worker here was lost.
        """
        head = self.head
        if not 0 < head.tokens <= ever or self.goes_first or head.priority != other.head.priority:
            return False
        return other.virtual_tokens > self.virtual_tokens + lead * head.tokens

    @property
    def goes_first(self) -> bool:
        """Whether its head goes first in its class, and is ahead of any tenant's virtual tokens."""
        return self.head.resumes or self.head.urgent

    @property
    def urgency(self) -> tuple[int, float, int]:
        return self.head.priority, self.virtual_tokens, self.head.enqueue_unix_nano

    @property
    def virtual_tokens(self) -> float:
        head = self.head
        if self.goes_first:
            return -math.inf
        lift = self.lifts.get(head.priority)
        if lift is None:
            return head.virtual_tokens
        return head.virtual_tokens + max(0.0, lift.tokens - (head.lifted_tokens - lift.lifted_there))

    def offered(self, tokens: int, *, on_urgent_credit: bool = False) -> None:
        if on_urgent_credit:
            self.urgent = max(0, self.urgent - 1)
        else:
            self.held = max(0, self.held - 1)
            self.tokens = max(0, self.tokens - tokens)
        self.is_stale = True

    def voided(self) -> None:
        self.held = self.tokens = self.urgent = 0

    def returned(self, tickets: int) -> None:
        """Nothing is left to a shard that was asked, as it got nothing since."""
        self.held = 0 if self.is_asked else max(0, self.held - tickets)
        self.tokens = self.tokens if self.held else 0
        self.is_asked = False
        if tickets and self.waits:
            self.is_stuck = True
            self.refusals += 1

    def hear(self, head: Head, virtual_time: float) -> None:
        """Who waits again, or for the first time, has neither credit nor debt: it is lifted to the class's time."""
        before, self.head = self.urgency, head
        # A head is of the most urgent class that waits: those more urgent do not.
        self.lifts = {each: lift for each, lift in self.lifts.items() if head.waiting and each >= head.priority}
        if head.waiting and not self.goes_first and head.priority not in self.lifts:
            self.lifts[head.priority] = Lift(max(0.0, virtual_time - head.virtual_tokens), head.lifted_tokens)
        self.is_stale = self.is_stuck = False
        if self.urgency != before:
            self.refusals, self.is_probed = 0, False

    def lift(self, virtual_tokens: float) -> None:
        """Have its head stand no lower than this, while it waits."""
        lift = self.lifts.get(self.head.priority)
        if lift and self.virtual_tokens < virtual_tokens:
            lifted_since = self.head.lifted_tokens - lift.lifted_there
            lifted = virtual_tokens - self.head.virtual_tokens
            self.lifts[self.head.priority] = Lift(lifted + lifted_since, lift.lifted_there)

    def stir(self) -> None:
        """Capacity or time has changed: what did not fit may fit now."""
        self.is_stuck = False
