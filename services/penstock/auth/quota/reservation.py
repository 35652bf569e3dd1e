"""Reservations: the right to spend tokens on one request, and the charge that settles it."""

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.auth.quota.bucket import TakeRun
from penstock.auth.quota.prices import Price
from penstock.auth.quota.scope_quota import Hold
from penstock.v1.inference_pb2 import PRIORITY_UNSPECIFIED, Priority

OUTCOME_LOST = "lost"  # the edge did not reconnect in time, or the reservation expired
FINAL_OUTCOMES = frozenset({"stop", "length"})  # outcomes of a complete answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationRequest:
    """Tokens that one request of an authenticated tenant asks to reserve."""

    request_id: str
    tenant_id: str
    key_id: str
    edge_id: str  # instance of the edge that has the request
    model: str
    prompt_tokens: int
    max_output_tokens: int
    answer_id: str = ""  # answer that the request continues; empty: it begins one
    emitted_tokens: int = 0  # tokens of the answer that the client claims to have received before
    fingerprint: bytes = field(default=b"", repr=False)  # of all inputs that determine the answer
    priority: "Priority.ValueType" = PRIORITY_UNSPECIFIED  # granted class; unspecified: of a release that kept none
    is_delegated: bool = False  # the mesh itself repeats its answer, for a caller that is not there

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.max_output_tokens

    @property
    def max_chargeable_output_tokens(self) -> int:
        """Most output tokens that can be charged. A continuation may also be charged for tokens emitted before it."""
        return self.max_output_tokens + (self.emitted_tokens if self.answer_id else 0)

    @property
    def max_chargeable_tokens(self) -> int:
        return self.prompt_tokens + self.max_chargeable_output_tokens


class Metering(NamedTuple):
    """What a reservation holds of prices, scopes and budgets."""

    reserved_nanos: int | None = 0  # most that the request can cost; None: unknown, as it was lost before a restart
    price: Price | None = None  # None: none, or before a restart
    holds: tuple[Hold, ...] = ()  # of the scopes that count it
    shadow_refusals: tuple[str, ...] = ()  # limits in shadow mode that it exceeded


NOT_METERED = Metering()  # of a tenant without scopes, while there are no prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Tokens that are reserved for one request. It ends in exactly one charge."""

    reservation_id: str
    request: ReservationRequest
    reserved_at: float  # s
    expires_at: float  # s
    take_run: TakeRun | None = field(
        default=None, compare=False, repr=False
    )  # None: no token limit, or taken before a restart
    metering: Metering = field(default=NOT_METERED, compare=False, repr=False)

    @property
    def reserved_nanos(self) -> int | None:
        """Most that the request can cost; None: unknown, as it was lost before a restart."""
        return self.metering.reserved_nanos

    @property
    def holds(self) -> tuple[Hold, ...]:
        return self.metering.holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """The settlement of a reservation, one row of the ledger. Generated and charged tokens may differ."""

    reservation: Reservation
    prompt_tokens: int
    output_tokens: int
    made_tokens: int = 0
    outcome: str  # stop, length, cancelled, shed, failed or lost
    settled_at: float  # s
    is_correction: bool = False  # replaces the charge of a lost reservation
    cached_tokens: int = 0  # of the charged prompt tokens, those of a prefix cache
    price_nanos: int = 0  # money in 1e-9 units of the operator's currency, by the price at the reservation
    worker: str = ""  # instance id of the worker; empty: none, or unknown
    region: str = ""  # of the auth process that charged
