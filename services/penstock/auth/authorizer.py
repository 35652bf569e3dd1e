"""Who asks and what they may spend: keys and accounts behind one counter. No I/O; `now` comes in."""

from dataclasses import dataclass, field

from penstock.auth.identity.keys import Key, KeyRing, cache_salt
from penstock.auth.quota.reservation import Reservation, ReservationRequest
from penstock.auth.quota.reservation_table import ReservationTable
from penstock.chassis.errors import InvalidArgument
from penstock.mesh.v1.admission_pb2 import Credential, Identity, Reserve
from penstock.v1.inference_pb2 import PRIORITY_UNSPECIFIED, Priority


@dataclass
class Authorizer:
    keys: KeyRing
    reservations: ReservationTable
    mesh_secret: bytes = field(repr=False)
    fallback_share: float = 0.0  # of what a tenant's limits leave, for all edges together
    fallback_tokens: int = 0  # for a tenant whose limits are not on tokens, at each edge
    _salts: dict[str, bytes] = field(default_factory=dict, repr=False)

    def identify(
        self,
        credential: Credential,
        now: float,
        requested: "Priority.ValueType" = PRIORITY_UNSPECIFIED,
    ) -> Identity:
        """Raises Unauthenticated or PermissionDenied."""
        return self._identity(self._authenticate(credential, now), requested)

    def reserve(
        self, frame: Reserve, edge_id: str, reservation_id: str, now: float
    ) -> tuple[Identity, Reservation, bool]:
        """Identity, reservation, and whether the reservation is new: asking again gives the one there is.

        Raises Unauthenticated, PermissionDenied, InvalidArgument or QuotaExceeded. What an edge vouches for is booked
        even when the key has ended since or the limits are reached: that it may be spent was granted before.
        """
        if not frame.request_id:
            raise InvalidArgument("a reservation is asked for under a request id", field="reserve.request_id")
        is_granted = frame.HasField("fallback_admission")
        key = (
            self.keys.by_id(frame.fallback_admission.key_id)
            if is_granted
            else self._authenticate(frame.credential, now)
        )
        identity = self._identity(key, frame.priority)
        if found := self.reservations.find(key.tenant_id, frame.request_id):
            return identity, found, False
        wanted = ReservationRequest(
            request_id=frame.request_id,
            tenant_id=key.tenant_id,
            key_id=key.key_id,
            edge_id=edge_id,
            model=frame.model,
            prompt_tokens=frame.prompt_tokens,
            max_output_tokens=frame.max_output_tokens,
            answer_id=frame.answer_id,
            emitted_tokens=frame.emitted_tokens,
            fingerprint=frame.answer_fingerprint,
        )
        return identity, self.reservations.reserve(wanted, reservation_id, now, is_deferred=is_granted), True

    def caller(self, frame: Reserve) -> Key | None:
        """Return the key that a refused request came with, usable or not; None where its secret was not shown."""
        if not frame.HasField("fallback_admission"):
            return self.keys.owner(frame.credential.bearer)
        return (
            self.keys.by_id(frame.fallback_admission.key_id) if frame.fallback_admission.key_id in self.keys else None
        )

    def fallback_grant(self, tenant_id: str, edges: int, now: float) -> int:
        """Tokens that each of `edges` may let in for a tenant while nobody can ask here."""
        account = self.reservations.quota(tenant_id)
        left = account.tokens_left(now) if account else 0
        return self.fallback_tokens if left is None else int(left * self.fallback_share / max(1, edges))

    def _authenticate(self, credential: Credential, now: float) -> Key:
        return self.keys.identify(credential.bearer, loopback=credential.loopback, now=now)

    def _identity(self, key: Key, requested: "Priority.ValueType") -> Identity:
        account = self.reservations.quota(key.tenant_id)
        assert account, "a key is made for a tenant that exists, and tenants are never removed"
        return Identity(
            tenant_id=key.tenant_id,
            priority=account.tenant.effective_priority(requested),
            weight=account.tenant.weight,
            cache_salt=self._cache_salt(key.tenant_id),
            key_id=key.key_id,
        )

    def _cache_salt(self, tenant_id: str) -> bytes:
        if tenant_id not in self._salts:
            self._salts[tenant_id] = cache_salt(self.mesh_secret, tenant_id)
        return self._salts[tenant_id]
