"""Who asks and what they may spend: keys and accounts behind one counter. No I/O; `now` comes in."""

from dataclasses import dataclass, field

from penstock.auth.accounts import Accounts
from penstock.auth.keys import Key, KeyRing
from penstock.auth.reservation import Ask, Reservation
from penstock.auth.salt import cache_salt
from penstock.chassis.errors import InvalidArgument
from penstock.mesh.v1.admission_pb2 import Credential, Identity, Reserve
from penstock.v1.inference_pb2 import PRIORITY_UNSPECIFIED, Priority


@dataclass
class Desk:
    keys: KeyRing
    accounts: Accounts
    mesh_secret: bytes = field(repr=False)
    grace_share: float = 0.0  # of what a tenant's limits leave, for all edges together
    grace_tokens: int = 0  # for a tenant whose limits are not on tokens, at each edge
    _salts: dict[str, bytes] = field(default_factory=dict, repr=False)

    def identify(
        self,
        credential: Credential,
        now: float,
        asked: "Priority.ValueType" = PRIORITY_UNSPECIFIED,
    ) -> Identity:
        """Raises Unauthenticated or PermissionDenied."""
        return self._identity(self._key(credential, now), asked)

    def reserve(
        self, ask: Reserve, edge_id: str, reservation_id: str, now: float
    ) -> tuple[Identity, Reservation, bool]:
        """Identity, reservation, and whether the reservation is new: asking again gives the one there is.

        Raises Unauthenticated, PermissionDenied, InvalidArgument or QuotaExceeded. What an edge vouches for is booked
        even when the key has ended since or the limits are reached: that it may be spent was granted before.
        """
        if not ask.request_id:
            raise InvalidArgument("a reservation is asked for under a request id", field="reserve.request_id")
        is_granted = ask.HasField("vouch")
        key = self.keys.named(ask.vouch.key_id) if is_granted else self._key(ask.credential, now)
        identity = self._identity(key, ask.priority)
        if found := self.accounts.find(key.tenant_id, ask.request_id):
            return identity, found, False
        wanted = Ask(
            request_id=ask.request_id,
            tenant_id=key.tenant_id,
            key_id=key.key_id,
            edge_id=edge_id,
            model=ask.model,
            prompt_tokens=ask.prompt_tokens,
            max_output_tokens=ask.max_output_tokens,
            answer_id=ask.answer_id,
            emitted_tokens=ask.emitted_tokens,
            fingerprint=ask.fingerprint,
        )
        return identity, self.accounts.reserve(wanted, reservation_id, now, is_granted=is_granted), True

    def caller(self, ask: Reserve) -> Key | None:
        """Return the key that a refused request came with, usable or not; None where its secret was not shown."""
        if not ask.HasField("vouch"):
            return self.keys.owner(ask.credential.bearer)
        return self.keys.named(ask.vouch.key_id) if ask.vouch.key_id in self.keys else None

    def grant(self, tenant_id: str, edges: int, now: float) -> int:
        """Tokens that each of `edges` may let in for a tenant while nobody can ask here."""
        account = self.accounts.get(tenant_id)
        left = account.tokens_left(now) if account else 0
        return self.grace_tokens if left is None else int(left * self.grace_share / max(1, edges))

    def _key(self, credential: Credential, now: float) -> Key:
        return self.keys.identify(credential.bearer, loopback=credential.loopback, now=now)

    def _identity(self, key: Key, asked: "Priority.ValueType") -> Identity:
        account = self.accounts.get(key.tenant_id)
        assert account, "a key is made for a tenant that exists, and tenants are never removed"
        return Identity(
            tenant_id=key.tenant_id,
            priority=account.tenant.class_of(asked),
            weight=account.tenant.weight,
            cache_salt=self._salt(key.tenant_id),
            key_id=key.key_id,
        )

    def _salt(self, tenant_id: str) -> bytes:
        if tenant_id not in self._salts:
            self._salts[tenant_id] = cache_salt(self.mesh_secret, tenant_id)
        return self._salts[tenant_id]
