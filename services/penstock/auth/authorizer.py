"""The authorizer: authenticates callers, reserves tokens and computes fallback grants. No I/O; `now` is an argument."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from penstock.auth.identity.authenticator import Authenticator
from penstock.auth.identity.delegation import DelegationRefused
from penstock.auth.identity.keys import Key, KeyRing, cache_salt
from penstock.auth.identity.policy import allows_model, named_models
from penstock.auth.identity.residency import Residency
from penstock.auth.identity.subject import key_of_subject
from penstock.auth.identity.tenant import DEFAULT_TENANT, Tenant
from penstock.auth.partitions.owned import NotOwner, ServedPartitions
from penstock.auth.quota.grant import Grant, GrantInvalid, GrantIssuer
from penstock.auth.quota.grant_uses import GrantUses
from penstock.auth.quota.prices import Price
from penstock.auth.quota.reservation import Charge, Reservation, ReservationRequest
from penstock.auth.quota.reservation_table import ReservationTable
from penstock.auth.quota.scope_quota import KEY_SCOPE
from penstock.auth.quota.tenant_quota import TenantQuota
from penstock.auth.regions.demand import Demand
from penstock.auth.regions.share import Share, ShareRow
from penstock.auth.store.store import PutShare, StoredState
from penstock.chassis.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied
from penstock.mesh.partitions import partition_of
from penstock.mesh.regions import REGION_NOT_ALLOWED, is_region_allowed, refusal_text
from penstock.mesh.v1.admission_pb2 import Credential, FallbackAdmission, Identity, Reserve, Settle
from penstock.v1.inference_pb2 import PRIORITY_UNSPECIFIED, Priority

MAX_GRANT = 2**32 - 1  # tokens; `admitted.fallback_tokens` is a uint32


class SharedLimits(Protocol):
    """The shares of this region: `GrantedShares` of the home region, or `HeldShares`."""

    def restore(self, rows: Iterable[ShareRow]) -> None: ...

    def forget(self, is_forgotten: Callable[[str], bool]) -> None: ...

    def remove(self, tenant_id: str, scope: str) -> None: ...


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
    served: ServedPartitions = field(default_factory=ServedPartitions)
    region: str = ""  # of this process
    residency: Residency = field(default_factory=Residency)
    shares: SharedLimits | None = None  # None: limits are whole here
    _salts: dict[str, bytes] = field(default_factory=dict, repr=False)

    def identify(
        self,
        credential: Credential,
        now: float,
        requested: "Priority.ValueType" = PRIORITY_UNSPECIFIED,
        *,
        edge_id: str = "",  # empty: a proxy asks
    ) -> Identity:
        """Return the identity of a caller.

        Raises the errors of `Authenticator.authenticate`, or PermissionDenied / TENANT_UNKNOWN or REGION_NOT_ALLOWED.
        """
        key = self.authenticator.authenticate(credential, now, edge_id=edge_id)
        return self._identity(key, self._resident(key), requested)

    def delegate(self, credential: Credential, now: float, *, edge_id: str) -> tuple[Identity, bytes]:
        """Return the identity of a caller, and a delegation for its key. Raises as `identify`, or DelegationRefused."""
        if credential.delegation:
            raise DelegationRefused("a delegation cannot obtain another one; send an API key or a token")
        key = self.authenticator.authenticate(credential, now, edge_id=edge_id)
        return self._identity(key, self._resident(key)), self.authenticator.delegations.issue(key, now)

    def reserve(
        self, frame: Reserve, edge_id: str, reservation_id: str, now: float
    ) -> tuple[Identity, Reservation, bool]:
        """Return the identity, the reservation, and whether it is new. A repeated request returns the existing one.

        Raises Unauthenticated, PermissionDenied, InvalidArgument, LimitsExceeded or NotOwner. A fallback admission is
        reserved even if the key has expired, a limit or a budget is reached or the model or this region is not allowed,
        because the edge has admitted it under a grant. Without a grant of auth for this edge and key, and beyond the
        tokens of the grant, it raises GrantInvalid.
        """
        if not frame.request_id:
            raise InvalidArgument("a reservation needs a request id", field="reserve.request_id")
        is_fallback, grant = frame.HasField("fallback_admission"), None
        if is_fallback:
            key, grant = self._vouched_key(frame.fallback_admission, edge_id, now)
        else:
            key = self.authenticator.authenticate(frame.credential, now, edge_id=edge_id)
        quota = self._quota(key)
        if not is_fallback:
            self._check_region(quota.tenant)
        identity = self._identity(key, quota.tenant, frame.priority)
        if not is_fallback and (
            key.models is not None or key.policy.allowed_models or quota.tenant.policy.allowed_models
        ):
            _check_model(key, quota.tenant, frame.model)
        if not self.served.has_tenant(key.tenant_id):
            raise NotOwner(identity)
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
            priority=identity.priority,
            is_delegated=not is_fallback and bool(frame.credential.delegation),
        )
        return identity, self.reservations.reserve(request, reservation_id, now, is_deferred=is_fallback), True

    def cancel(self, reservation: Reservation) -> None:
        """Remove a reservation that could not be persisted."""
        self.reservations.cancel(reservation)
        self.grant_uses.cancel(reservation.reservation_id)

    def settle(self, frame: Settle, now: float) -> Charge | None:
        """Settle a reservation. Return its charge; None if it was settled already or its tenant was deleted.

        A fallback admission is charged at most for the tokens that its grant has left. Raises NotOwner if another
        replica may have the reservation.
        """
        if self.served.is_partitioned:
            self._check_owner(frame)
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

    def _check_owner(self, frame: Settle) -> None:
        if tenant_id := self.reservations.tenant_of(frame.reservation_id):
            is_owner = self.served.has_tenant(tenant_id)
        else:  # an edge of a release without partitions names none
            is_owner = frame.HasField("partition") and frame.partition in self.served
        if not is_owner:
            raise NotOwner

    def caller(self, frame: Reserve) -> Key | None:
        """Return the key of a rejected request, usable or not; None if its secret was not presented."""
        if not frame.HasField("fallback_admission"):
            return self.authenticator.owner(frame.credential)
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
        self.residency.remove(tenant_id)
        return RemovedTenant(self.reservations.remove_tenant(tenant_id), keys)

    def forget_shares(self, tenant_id: str) -> None:
        """Forget the shares of a tenant whose removal was persisted."""
        if self.shares:
            self.shares.forget(lambda each: each == tenant_id)

    def restore_tenant(self, removed: "RemovedTenant") -> None:
        """Undo `remove_tenant`, as it could not be persisted."""
        self.reservations.put_quota(removed.quota)
        self.residency.put(removed.quota.tenant)
        for key in removed.keys:
            self.keys.put(key)

    def put_catalog(self, tenants: Iterable[Tenant], keys: Iterable[Key], prices: Iterable[Price], now: float) -> None:
        """Apply all tenants, keys and prices as another process has changed them. A revocation in memory stays."""
        for tenant in tenants:
            quota = self.reservations.quota(tenant.tenant_id)
            if quota is None or quota.tenant != tenant:
                self.reservations.put_tenant(tenant, now)
        present = {each.tenant_id for each in tenants}
        for quota in self.reservations.quotas:
            if quota.tenant.tenant_id not in present and not quota.concurrent_requests:
                self.remove_tenant(quota.tenant.tenant_id)
                self.forget_shares(quota.tenant.tenant_id)
        changed, removed = self.keys.replace(keys)
        for key in removed:
            self._forget_key(key)
        self._limit_keys(changed, now)
        self.reservations.prices.replace(prices)
        self.residency.replace(each.tenant for each in self.reservations.quotas)
        self.authenticator.forget_rejections()

    def _limit_keys(self, keys: Iterable[Key], now: float) -> None:
        """Set the limits of keys at their tenants."""
        for key in keys:
            if quota := self.reservations.quota(key.tenant_id):
                quota.set_key(key.key_id, key.policy, now)

    def take(self, epochs: Mapping[int, int], state: StoredState, now: float) -> None:
        """Continue the work of the former owner of partitions with its state."""
        self.put_catalog(state.tenants, state.keys, state.prices, now)
        if self.shares:
            self.shares.restore(state.shares)
        uses = state.uses_by_tenant
        for tenant in state.tenants:
            tenant_id = tenant.tenant_id
            if partition_of(tenant_id) in epochs:
                balance = state.balances.get(tenant_id)
                self.reservations.restore_balance(tenant, balance, now, uses.get(tenant_id, ()))
        self._limit_keys((each for each in self.keys.of_tenant() if partition_of(each.tenant_id) in epochs), now)
        self.reservations.restore(state.reservations, state.lost, state.charged)
        self.grant_uses.restore(state.grant_uses)
        self.served.add(epochs)

    def give(self, partitions: Iterable[int], now: float) -> None:
        """Forget the state of partitions, which another replica owns from now on."""
        if removed := self.served.remove(partitions):
            if self.shares:
                self.shares.forget(lambda tenant_id: partition_of(tenant_id) in removed)
            self.reservations.forget(lambda tenant_id: partition_of(tenant_id) in removed, now)
            self._limit_keys((each for each in self.keys.of_tenant() if partition_of(each.tenant_id) in removed), now)

    def put_tenant(self, tenant: Tenant, now: float) -> TenantQuota:
        """Create a tenant, or set its limits. Its present use stays counted."""
        quota = self.reservations.put_tenant(tenant, now)
        for key in self.keys.of_tenant(tenant.tenant_id):
            quota.set_key(key.key_id, key.policy, now)
        self.residency.put(tenant)
        return quota

    def put_key(self, key: Key, now: float) -> None:
        """Add a key, or set its state and its limits. Its present use stays counted."""
        self.keys.put(key)
        if quota := self.reservations.quota(key.tenant_id):
            quota.set_key(key.key_id, key.policy, now)

    def remove_key(self, key: Key) -> None:
        self.keys.remove(key.key_id)
        self._forget_key(key)

    def _forget_key(self, key: Key) -> None:
        if quota := self.reservations.quota(key.tenant_id):
            quota.remove_key(key.key_id)
        if self.shares:
            self.shares.remove(key.tenant_id, f"{KEY_SCOPE}{key.key_id}")

    # Shares of limits, where regions share them.

    def set_share(self, tenant_id: str, scope: str, share: Share, now: float) -> None:
        """Set the share of a scope that this region enforces."""
        self.reservations.set_share(tenant_id, scope, share, now)

    def share_in_use(self, tenant_id: str, scope: str, now: float) -> Share:
        """Return the least that the share of a scope may be lowered to."""
        return self.reservations.share_in_use(tenant_id, scope, now)

    def pop_demands(self, now: float) -> list[Demand]:
        """Return the demand for scopes of served partitions that had requests since the last call."""
        return [each for each in self.reservations.pop_demands(now) if self.served.has_tenant(each.tenant_id)]

    def share_change(self, row: ShareRow) -> PutShare | None:
        """Return the change that stores a share, after `set_share`; None if the tenant was deleted.

        It has the state of the limits as well, whose stored times mean other amounts under another share.
        """
        quota = self.reservations.shared_quota(row.tenant_id)
        return PutShare(row, quota.balance, quota.use_of(row.scope)) if quota else None

    def put_price(self, price: Price) -> None:
        """Set the price of a model for later reservations."""
        self.reservations.prices.put(price)

    def delete_price(self, model: str) -> None:
        self.reservations.prices.delete(model)

    def fallback_grant(self, tenant_id: str, edges: int, now: float, request: ReservationRequest | None = None) -> int:
        """Return the tokens that each of `edges` edges may admit for a tenant while auth is unreachable.

        They are a share of what the limits and budgets leave that are exhausted first: of the tenant, and of the key
        and the model of `request`. Money is converted by the highest price.
        """
        quota = self.reservations.quota(tenant_id)
        left = quota.tokens_left(now, request, self.reservations.prices.highest_nanos) if quota else 0
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

    def _quota(self, key: Key) -> TenantQuota:
        quota = self.reservations.quota(key.tenant_id)
        if quota is None:  # of a token; a key belongs to an existing tenant, and is removed with it
            text = f"there is no tenant {key.tenant_id!r}; an operator creates it with `penstock tenants put`"
            raise PermissionDenied(text, reason="TENANT_UNKNOWN")
        return quota

    def _resident(self, key: Key) -> Tenant:
        """Return the tenant of a caller. Raises PermissionDenied / TENANT_UNKNOWN or REGION_NOT_ALLOWED."""
        tenant = self._quota(key).tenant
        self._check_region(tenant)
        return tenant

    def _check_region(self, tenant: Tenant) -> None:
        """Raise PermissionDenied / REGION_NOT_ALLOWED unless the tenant allows the region of this process."""
        allowed = tenant.policy.allowed_regions
        if not is_region_allowed(allowed, self.region):
            raise PermissionDenied(refusal_text(tenant.tenant_id, allowed, self.region), reason=REGION_NOT_ALLOWED)

    def _identity(self, key: Key, tenant: Tenant, requested: "Priority.ValueType" = PRIORITY_UNSPECIFIED) -> Identity:
        return Identity(
            tenant_id=key.tenant_id,
            priority=max(key.priority, tenant.effective_priority(requested)),
            weight=tenant.weight,
            cache_salt=self._cache_salt(key.tenant_id),
            key_id=key.key_id,
            allowed_regions=tenant.policy.allowed_regions,
        )

    def _cache_salt(self, tenant_id: str) -> bytes:
        if tenant_id not in self._salts:
            self._salts[tenant_id] = cache_salt(self.mesh_secret, tenant_id)
        return self._salts[tenant_id]


def _check_model(key: Key, tenant: Tenant, model: str) -> None:
    """Raise PermissionDenied / MODEL_FORBIDDEN unless token, key and tenant allow the model."""
    if key.models is not None and model not in key.models:
        raise _model_forbidden(f"the token of {key.key_id}", key.models, model, "or request another token")
    patterns = key.policy.allowed_models
    if patterns and not allows_model(patterns, model):
        raise _model_forbidden(f"key {key.key_id}", patterns, model, "or ask for `penstock keys limit`")
    patterns = tenant.policy.allowed_models
    if patterns and not allows_model(patterns, model):
        raise _model_forbidden(f"tenant {tenant.tenant_id}", patterns, model, "or ask for `penstock tenants put`")


def _model_forbidden(subject: str, allowed: Collection[str], model: str, advice: str) -> PermissionDenied:
    text = f"{subject} does not allow the model {model!r}; it allows {named_models(allowed)}: use one of them, {advice}"
    return PermissionDenied(text, reason="MODEL_FORBIDDEN")


def _counted_tokens(frame: Reserve) -> int:
    """Return the tokens of a fallback admission that count against its grant."""
    reserved, admission = frame.prompt_tokens + frame.max_output_tokens, frame.fallback_admission
    return min(reserved, admission.used_tokens) if admission.HasField("used_tokens") else reserved
