"""The authorizer: authenticates callers, reserves tokens and computes fallback grants. No I/O; `now` is an argument."""

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.auth.identity.authenticator import Authenticator
from penstock.auth.identity.keys import Key, KeyRing, cache_salt
from penstock.auth.identity.subject import key_of_subject
from penstock.auth.identity.tenant import DEFAULT_TENANT
from penstock.auth.quota.grant import Grant, GrantInvalid, GrantIssuer
from penstock.auth.quota.grant_uses import GrantUses
from penstock.auth.quota.reservation import Charge, Reservation, ReservationRequest
from penstock.auth.quota.reservation_table import ReservationTable
from penstock.auth.quota.tenant_quota import TenantQuota
from penstock.chassis.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied
from penstock.mesh.v1.admission_pb2 import Credential, FallbackAdmission, Identity, Reserve, Settle
from penstock.v1.inference_pb2 import PRIORITY_UNSPECIFIED, Priority

MAX_GRANT = 2**32 - 1  # tokens; `admitted.fallback_tokens` is a uint32


class RemovedTenant(NamedTuple):
    quota: TenantQuota
    keys: list[Key]


@dataclass
class Authorizer:
    """Keys and reservations of all tenants."""

    keys: KeyRing
    authenticator: Authenticator
    reservations: ReservationTable
    grants: GrantIssuer
    grant_uses: GrantUses
    mesh_secret: bytes = field(repr=False)
    fallback_share: float = 0.0  # share of a tenant's remaining tokens that all edges together may admit without auth
    fallback_tokens: int = 0  # tokens per edge for a tenant without a token limit
    accept_ungranted_fallback: bool = False  # whether edges of the release before grants may name any key
    _salts: dict[str, bytes] = field(default_factory=dict, repr=False)

    def identify(
        self,
        credential: Credential,
        now: float,
        requested: "Priority.ValueType" = PRIORITY_UNSPECIFIED,
        *,
        edge_id: str = "",  # empty: a proxy asks
    ) -> Identity:
        """Return the identity of a caller. Raises the errors of `Authenticator.authenticate`."""
        return self._identity(self.authenticator.authenticate(credential, now, edge_id=edge_id), requested)

    def reserve(
        self, frame: Reserve, edge_id: str, reservation_id: str, now: float
    ) -> tuple[Identity, Reservation, bool]:
        """Return the identity, the reservation, and whether it is new. A repeated request returns the existing one.

        Raises Unauthenticated, PermissionDenied, InvalidArgument or QuotaExceeded. A fallback admission is reserved
        even if the key has expired or a limit is reached, because the edge has admitted it under a grant. Without a
        grant of auth for this edge and key, and beyond the tokens of the grant, it raises GrantInvalid.
        """
        if not frame.request_id:
            raise InvalidArgument("a reservation needs a request id", field="reserve.request_id")
        is_fallback, grant = frame.HasField("fallback_admission"), None
        if is_fallback:
            key, grant = self._vouched_key(frame.fallback_admission, edge_id, now)
        else:
            key = self.authenticator.authenticate(frame.credential, now, edge_id=edge_id)
        identity = self._identity(key, frame.priority)
        if key.models is not None and frame.model not in key.models:
            text = f"the token of {key.key_id} does not allow the model {frame.model!r}"
            raise PermissionDenied(text, reason="MODEL_FORBIDDEN")
        if existing := self.reservations.find(key.tenant_id, frame.request_id):
            if grant:
                self.grant_uses.reduce(grant, existing.reservation_id, _counted_tokens(frame))
            return identity, existing, False
        if grant:
            self.grant_uses.record(grant, frame.request_id, reservation_id, _counted_tokens(frame))
        request = ReservationRequest(
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
        return identity, self.reservations.reserve(request, reservation_id, now, is_deferred=is_fallback), True

    def cancel(self, reservation: Reservation) -> None:
        """Remove a reservation that could not be persisted."""
        self.reservations.cancel(reservation)
        self.grant_uses.cancel(reservation.reservation_id)

    def settle(self, frame: Settle, now: float) -> Charge | None:
        """Settle a reservation. Return its charge; None if it was settled already or its tenant was deleted.

        A fallback admission is charged at most for the tokens that its grant has left.
        """
        prompt, output = frame.prompt_tokens, frame.output_tokens
        if self.grant_uses.find(frame.reservation_id):
            allowed = self.grant_uses.settle(frame.reservation_id, prompt + output)
            prompt, output = min(prompt, allowed), min(output, allowed - min(prompt, allowed))
        return self.reservations.settle(
            frame.reservation_id,
            prompt,
            output,
            frame.outcome,
            now,
            cached_tokens=frame.cached_tokens,
            worker=frame.worker,
        )

    def caller(self, frame: Reserve) -> Key | None:
        """Return the key of a rejected request, usable or not; None if its secret was not presented."""
        if not frame.HasField("fallback_admission"):
            return self.keys.owner(frame.credential.bearer)
        return (
            self.keys.by_id(frame.fallback_admission.key_id) if frame.fallback_admission.key_id in self.keys else None
        )

    def remove_tenant(self, tenant_id: str) -> "RemovedTenant":
        """Remove a tenant with its keys. Raises NotFound / TENANT_UNKNOWN or FailedPrecondition."""
        quota = self.reservations.quota(tenant_id)
        if quota is None:
            raise NotFound(f"there is no tenant {tenant_id!r}; see `penstock tenants list`", reason="TENANT_UNKNOWN")
        if tenant_id == DEFAULT_TENANT:
            text = "the tenant `default` cannot be deleted; revoke its keys"
            raise FailedPrecondition(text, reason="TENANT_REQUIRED")
        if quota.concurrent_requests:
            text = f"tenant {tenant_id} has {quota.concurrent_requests} active requests; revoke its keys and wait"
            raise FailedPrecondition(text, reason="TENANT_BUSY")
        keys = self.keys.of_tenant(tenant_id)
        for key in keys:
            self.keys.remove(key.key_id)
        self._salts.pop(tenant_id, None)
        return RemovedTenant(self.reservations.remove_tenant(tenant_id), keys)

    def restore_tenant(self, removed: "RemovedTenant") -> None:
        """Undo `remove_tenant`, as it could not be persisted."""
        self.reservations.put_quota(removed.quota)
        for key in removed.keys:
            self.keys.put(key)

    def fallback_grant(self, tenant_id: str, edges: int, now: float) -> int:
        """Return the tokens that each of `edges` edges may admit for a tenant while auth is unreachable."""
        quota = self.reservations.quota(tenant_id)
        left = quota.tokens_left(now) if quota else 0
        granted = self.fallback_tokens if left is None else int(left * self.fallback_share / max(1, edges))
        return min(granted, MAX_GRANT)

    def _vouched_key(self, admission: FallbackAdmission, edge_id: str, now: float) -> tuple[Key, Grant | None]:
        """Return the key of a fallback admission, and its grant. Raises GrantInvalid or Unauthenticated / KEY_UNKNOWN.

        A false grant says nothing of the key. A key that an edge may name without a grant is a guess if it is unknown.
        """
        if admission.grant:
            grant = self.grants.verify(admission.grant, edge_id, admission.key_id, admission.age_nanos / 1e9, now)
            return key_of_subject(admission.key_id) or self.keys.by_id(admission.key_id), grant
        if not self.accept_ungranted_fallback:
            text = f"edge {edge_id!r} sent no grant for key {admission.key_id!r}; upgrade the edge, or see"
            raise GrantInvalid(f"{text} PENSTOCK_AUTH_ACCEPT_UNGRANTED_FALLBACK")
        self.authenticator.check_limit("", edge_id, now)
        if admission.key_id not in self.keys:
            self.authenticator.record_failure("", edge_id, now)
        return self.keys.by_id(admission.key_id), None

    def _identity(self, key: Key, requested: "Priority.ValueType") -> Identity:
        quota = self.reservations.quota(key.tenant_id)
        if quota is None:  # of a token; a key belongs to an existing tenant, and is removed with it
            text = f"there is no tenant {key.tenant_id!r}; an operator creates it with `penstock tenants put`"
            raise PermissionDenied(text, reason="TENANT_UNKNOWN")
        return Identity(
            tenant_id=key.tenant_id,
            priority=max(key.priority, quota.tenant.effective_priority(requested)),
            weight=quota.tenant.weight,
            cache_salt=self._cache_salt(key.tenant_id),
            key_id=key.key_id,
        )

    def _cache_salt(self, tenant_id: str) -> bytes:
        if tenant_id not in self._salts:
            self._salts[tenant_id] = cache_salt(self.mesh_secret, tenant_id)
        return self._salts[tenant_id]


def _counted_tokens(frame: Reserve) -> int:
    """Return the tokens of a fallback admission that count against its grant."""
    reserved, admission = frame.prompt_tokens + frame.max_output_tokens, frame.fallback_admission
    return min(reserved, admission.used_tokens) if admission.HasField("used_tokens") else reserved
