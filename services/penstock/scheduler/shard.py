"""What a scheduler knows of one queue shard, for one model."""

from dataclasses import dataclass, field

from penstock.mesh.v1.queue_pb2 import Head

PROBE_AFTER = 2  # ticks or refusals over one and the same head


@dataclass(slots=True)
class Shard:
    """Its best waiting ticket, and the credit it holds. Frames are under way both ways, so all of it may be stale."""

    held: int = 0  # credit given and neither used nor handed back
    tokens: int = 0  # that this credit may still be used for
    told: int = 0  # largest ticket that may be offered, as last said
    head: Head = field(default_factory=Head)
    lifts: dict[int, float] = field(default_factory=dict)  # to be added to virtual tokens, by class, while it waits
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

    @property
    def is_settled(self) -> bool:
        """Nothing is under way that would change what it has to say."""
        return not (self.held or self.is_asked or self.is_stale)

    def is_to_be_probed(self, ever: int) -> bool:
        """Its head may be too large for every worker, which only an offer tells it; the largest can run `ever`."""
        may_be_too_large = self.head.tokens > ever or not self.head.tokens
        return may_be_too_large and self.refusals >= PROBE_AFTER and not self.is_probed

    @property
    def urgency(self) -> tuple[int, float, int]:
        return self.head.priority, self.virtual_tokens, self.head.enqueue_unix_nano

    @property
    def virtual_tokens(self) -> float:
        return self.head.virtual_tokens + self.lifts.get(self.head.priority, 0.0)

    def offered(self, tokens: int) -> None:
        self.held = max(0, self.held - 1)
        self.tokens = max(0, self.tokens - tokens)
        self.is_stale = True

    def voided(self) -> None:
        self.held = self.tokens = 0

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
        if not head.waiting:
            self.lifts.clear()
        elif head.priority not in self.lifts:
            self.lifts[head.priority] = max(0.0, virtual_time - head.virtual_tokens)
        self.is_stale = self.is_stuck = False
        if self.urgency != before:
            self.refusals, self.is_probed = 0, False

    def stir(self) -> None:
        """Capacity or time has changed: what did not fit may fit now."""
        self.is_stuck = False
