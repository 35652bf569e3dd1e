"""The right to spend tokens on one request, and what became of it."""

from dataclasses import dataclass, field

from penstock.auth.quota.bucket import TakeRun

OUTCOME_LOST = "lost"  # outcome of a reservation whose edge never came back, or that lapsed
FINAL_OUTCOMES = frozenset({"stop", "length"})  # outcomes of an answer that is whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationRequest:
    """What one request wants to reserve, for a tenant that is known by now."""

    request_id: str
    tenant_id: str
    key_id: str
    edge_id: str  # instance of the edge that has the request
    model: str
    prompt_tokens: int
    max_output_tokens: int
    answer_id: str = ""  # of the answer that it continues; empty: it begins one
    emitted_tokens: int = 0  # of its answer, that came before it by its client's word
    fingerprint: bytes = field(default=b"", repr=False)  # of all that its answer is a function of

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.max_output_tokens

    @property
    def max_chargeable_output_tokens(self) -> int:
        """That can be charged: a request that continues an answer may be the only one of it that is left to pay."""
        return self.max_output_tokens + (self.emitted_tokens if self.answer_id else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    reservation_id: str
    request: ReservationRequest
    reserved_at: float  # s
    expires_at: float  # s
    take_run: TakeRun | None = field(default=None, compare=False, repr=False)  # None: took nothing, or before a restart


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """The end of a reservation: one row of the ledger. What was made and what is charged differ within an answer."""

    reservation: Reservation
    prompt_tokens: int
    output_tokens: int
    made_tokens: int = 0
    outcome: str  # stop, length, cancelled, shed, failed or lost
    settled_at: float  # s
    is_correction: bool = False  # takes the place of the row that said lost
