"""Limits of the auth fallback, reservations without a response, and reservations that auth has not recorded."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.chassis.durations import nanos_since
from penstock.edge.auth_fallback.identity_cache import KeyGrant
from penstock.edge.lifecycle.effects import Settle
from penstock.mesh.partitions import partition_of
from penstock.mesh.v1.admission_pb2 import AdmitRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class AuthFallbackLimits:
    outage_after: float = 1.0  # s without a response of auth until the edge decides
    max_duration: float = 60.0  # s of an outage in which cached identities are admitted; at 0 none is
    identity_ttl: float = 600.0  # s for which an identity is cached after auth last admitted it
    max_identities: int = 10_000  # cached
    max_deferred: int = 20_000  # admitted requests that auth has not recorded yet


class SentReservation(NamedTuple):
    """A `reserve` frame without a response."""

    frame: AdmitRequest
    partition: int
    address: str  # of the replica that received it last


class PendingReservations:
    """`reserve` frames without a response, by ticket.

    If a request ends before the response, its frame is sent again, so that auth names the reservation to settle. Above
    `max_entries` the oldest frames are dropped; auth holds their reservations until they expire.
    """

    def __init__(self, *, max_entries: int) -> None:
        self._max_entries = max_entries
        self._sent: OrderedDict[str, SentReservation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sent)

    def __contains__(self, ticket_id: str) -> bool:
        return ticket_id in self._sent

    def get(self, ticket_id: str) -> SentReservation | None:
        return self._sent.get(ticket_id)

    def add(self, ticket_id: str, sent: SentReservation) -> None:
        self._sent[ticket_id] = sent
        self._sent.move_to_end(ticket_id)
        if len(self._sent) > self._max_entries:
            self._sent.popitem(last=False)

    def update(self, ticket_id: str, sent: SentReservation) -> None:
        """Replace an entry in its place."""
        self._sent[ticket_id] = sent

    def remove(self, ticket_id: str) -> None:
        self._sent.pop(ticket_id, None)

    def orphaned(self, is_owned: Callable[[str], bool]) -> list[tuple[str, SentReservation]]:
        """Return ticket and frame of each request that has ended."""
        return [(ticket_id, sent) for ticket_id, sent in self._sent.items() if not is_owned(ticket_id)]


@dataclass(slots=True, eq=False)
class DeferredReservation:
    tenant_id: str
    tokens: int  # taken from the grants of tenant and key
    grant: KeyGrant
    admitted_at: float  # s
    frame: AdmitRequest = field(repr=False)  # sent again until auth answers
    settlement: Settle | None = None  # None while the request is active
    on_recorded: Callable[[str], None] | None = None  # receives the reservation id; the settlement is still held then
    on_settled: Callable[[], None] | None = None  # called once auth has recorded the settlement, or never will
    rejections: int = 0  # of its grant

    def frame_at(self, now: float) -> AdmitRequest:
        """Return the frame to send now."""
        self.frame.reserve.fallback_admission.age_nanos = nanos_since(self.admitted_at, now)
        return self.frame

    @property
    def partition(self) -> int:
        return partition_of(self.tenant_id)

    @property
    def caller(self) -> dict[str, str]:
        """Tenant and key id for logs."""
        return {"tenant": self.tenant_id, "key_id": self.frame.reserve.fallback_admission.key_id}


class DeferredReservations:
    """Reservations of admitted requests that auth has not recorded, by ticket. Auth's response removes an entry."""

    def __init__(self, *, max_entries: int) -> None:
        self._max_entries = max_entries
        self._entries: dict[str, DeferredReservation] = {}
        self._tokens: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, ticket_id: str) -> bool:
        return ticket_id in self._entries

    @property
    def is_full(self) -> bool:
        return len(self._entries) >= self._max_entries

    @property
    def ticket_ids(self) -> set[str]:
        return set(self._entries)

    def get(self, ticket_id: str) -> DeferredReservation | None:
        return self._entries.get(ticket_id)

    def entries(self, ticket_ids: Container[str]) -> list[DeferredReservation]:
        """Return the reservations of these tickets that are still deferred, in order of their admission."""
        return [entry for ticket_id, entry in self._entries.items() if ticket_id in ticket_ids]

    def tokens_of(self, tenant_id: str) -> int:
        """Return the tokens that the tenant holds or has used and that auth has not recorded."""
        return self._tokens[tenant_id]

    def add(self, ticket_id: str, entry: DeferredReservation) -> None:
        self._entries[ticket_id] = entry
        self._tokens[entry.tenant_id] += entry.tokens

    def settle(self, ticket_id: str, settlement: Settle) -> tuple[DeferredReservation, int]:
        """Record the settlement of a request. Returns its entry and the number of unused tokens."""
        entry = self._entries[ticket_id]
        used = settlement.prompt_tokens + settlement.output_tokens
        unused = entry.tokens - used
        entry.settlement = settlement
        entry.tokens -= unused
        entry.frame.reserve.fallback_admission.used_tokens = used
        self._tokens[entry.tenant_id] -= unused
        return entry, unused

    def count_rejection(self, ticket_id: str) -> int:
        """Count a rejection of the grant of a reservation. Returns the number so far."""
        entry = self._entries[ticket_id]
        entry.rejections += 1
        return entry.rejections

    def pop(self, ticket_id: str) -> DeferredReservation | None:
        """Remove and return the reservation of a ticket. None if it is not deferred."""
        entry = self._entries.pop(ticket_id, None)
        if entry:
            self._tokens[entry.tenant_id] -= entry.tokens
            if not self._tokens[entry.tenant_id]:
                del self._tokens[entry.tenant_id]
        return entry
