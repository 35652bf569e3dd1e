"""The right to spend tokens on one request, and what became of it."""

from dataclasses import dataclass, field

from penstock.auth.bucket import Stretch

LOST = "lost"  # outcome of a reservation whose edge never came back, or that lapsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one request wants to reserve, for a tenant that is known by now."""

    request_id: str
    tenant_id: str
    key_id: str
    edge_id: str  # instance of the edge that has the request
    model: str
    prompt_tokens: int
    max_output_tokens: int

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.max_output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    reservation_id: str
    ask: Ask
    reserved_at: float  # s
    expires_at: float  # s
    stretch: Stretch | None = field(default=None, compare=False, repr=False)  # None: took nothing, or before a restart


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """The end of a reservation: one row of the ledger."""

    reservation: Reservation
    prompt_tokens: int
    output_tokens: int
    outcome: str  # stop, length, cancelled, shed, failed or lost
    settled_at: float  # s
    is_correction: bool = False  # takes the place of the row that said lost
