"""How far an edge may go without auth."""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.edge.lifecycle.effects import Settle
from penstock.mesh.v1.admission_pb2 import AdmitRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class AuthFallbackLimits:
    outage_after: float = 1.0  # s of auth's silence until the edge decides by itself
    max_duration: float = 60.0  # s of an outage in which known callers are let in; after them, and at 0, nobody is
    identity_ttl: float = 600.0  # s since auth last let a caller in, until it is not known any more
    max_identities: int = 10_000  # remembered
    max_deferred: int = 20_000  # requests let in that auth does not know of yet


class PendingReservations:
    """By ticket. Asked again for nobody, each is answered with its name, under which it is given back.

    Past `most` the oldest are forgotten, which auth then holds until they lapse.
    """

    def __init__(self, *, max_entries: int) -> None:
        self._max_entries = max_entries
        self._frames: OrderedDict[str, AdmitRequest] = OrderedDict()

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, ticket_id: str, frame: AdmitRequest) -> None:
        self._frames[ticket_id] = frame
        self._frames.move_to_end(ticket_id)
        if len(self._frames) > self._max_entries:
            self._frames.popitem(last=False)

    def remove(self, ticket_id: str) -> None:
        self._frames.pop(ticket_id, None)

    def orphaned(self, is_owned: Callable[[str], bool]) -> list[AdmitRequest]:
        return [frame for ticket_id, frame in self._frames.items() if not is_owned(ticket_id)]


@dataclass(slots=True, eq=False)
class DeferredReservation:
    tenant_id: str
    tokens: int  # taken out of what was granted
    frame: AdmitRequest = field(repr=False)  # tells auth of it; said again until it is answered
    settlement: Settle | None = None  # None: it is under way


class DeferredReservations:
    """By ticket. An entry leaves when auth has named its reservation, under which it is settled like any other."""

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
    def frames(self) -> dict[str, AdmitRequest]:
        return {ticket_id: entry.frame for ticket_id, entry in self._entries.items()}

    def tokens_of(self, tenant_id: str) -> int:
        """What the tenant holds or has spent that auth does not know of."""
        return self._tokens[tenant_id]

    def add(self, ticket_id: str, entry: DeferredReservation) -> None:
        self._entries[ticket_id] = entry
        self._tokens[entry.tenant_id] += entry.tokens

    def settle(self, ticket_id: str, settlement: Settle) -> tuple[str, int]:
        """Note what was spent; returns the tenant and how many of its tokens were not needed."""
        entry = self._entries[ticket_id]
        unused = entry.tokens - settlement.prompt_tokens - settlement.output_tokens
        entry.settlement = settlement
        entry.tokens -= unused
        self._tokens[entry.tenant_id] -= unused
        return entry.tenant_id, unused

    def pop(self, ticket_id: str) -> DeferredReservation | None:
        """Take out what auth has booked; None for what was never let in like this, or is booked already."""
        entry = self._entries.pop(ticket_id, None)
        if entry:
            self._tokens[entry.tenant_id] -= entry.tokens
            if not self._tokens[entry.tenant_id]:
                del self._tokens[entry.tenant_id]
        return entry
