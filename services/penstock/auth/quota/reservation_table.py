"""Reservation table: all reservations and the quotas of their tenants. No clock, no network, no store."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.answer_billing import AnswerLedger, ChargeDelta
from penstock.auth.quota.bucket import TakeRun
from penstock.auth.quota.prices import PriceList
from penstock.auth.quota.reservation import (
    NOT_METERED,
    OUTCOME_LOST,
    Charge,
    Metering,
    Reservation,
    ReservationRequest,
)
from penstock.auth.quota.scope_quota import ScopeUse
from penstock.auth.quota.shared_quota import SharedTenantQuota
from penstock.auth.quota.tenant_quota import Balance, TenantQuota
from penstock.auth.regions.demand import Demand
from penstock.auth.regions.share import LargestShare, RegionShares, ScopeKey, Share, ShareOf

MAX_LOST_RESERVATIONS = 10_000  # lost reservations that their edge can still settle; older ones stay lost


class ReservationTable:
    """All reservations by id, request and edge. Each reservation ends in exactly one charge.

    A lost reservation, which expired or whose edge session expired, is charged nothing, because the tokens that its
    client received are unknown. Its tokens stay taken from the rates and its reservation stays spent of the budgets,
    because a worker may have generated them. If the edge reconnects later and settles it, that charge replaces the lost
    one. A request that continues the answer of a lost request is charged for the tokens that its client has received.
    """

    def __init__(
        self,
        *,
        ttl: float,
        prices: PriceList | None = None,
        region: str = "",
        share_of: ShareOf | None = None,  # None: limits are whole here
        largest: LargestShare | None = None,  # that one region can have
    ) -> None:
        self.prices = PriceList() if prices is None else prices
        self._ttl = ttl  # s; lifetime of a reservation
        self._region = region
        self._share_of = share_of
        self._largest = largest or LargestShare()
        self._active: set[ScopeKey] = set()  # scopes whose demand is reported next
        self._quotas: dict[str, TenantQuota] = {}
        self._live: dict[str, Reservation] = {}  # in order of expiration, because all have the same lifetime
        self._by_request: dict[tuple[str, str], Reservation] = {}  # by tenant and request
        self._by_edge: dict[str, dict[str, Reservation]] = {}
        self._lost: dict[str, Reservation] = {}
        self._answer_ledger = AnswerLedger()

    def __repr__(self) -> str:
        reserved = f"{len(self._live)} reservations, {self.reserved_tokens} tokens"
        return f"<ReservationTable {len(self._quotas)} tenants, {reserved}>"

    def __len__(self) -> int:
        return len(self._quotas)

    @property
    def reservation_count(self) -> int:
        return len(self._live)

    @property
    def reserved_tokens(self) -> int:
        return sum(each.reserved_tokens for each in self._quotas.values())

    @property
    def concurrent_requests(self) -> int:
        return sum(each.concurrent_requests for each in self._quotas.values())

    @property
    def shadow_refusals(self) -> int:
        """Limits in shadow mode that requests of this process have exceeded."""
        return sum(each.shadow_refusals.total() for each in self._quotas.values())

    @property
    def quotas(self) -> list[TenantQuota]:
        """Quotas of all tenants, by tenant id."""
        return [self._quotas[each] for each in sorted(self._quotas)]

    @property
    def edges_with_reservations(self) -> list[str]:
        """Instance ids of the edges that hold reservations."""
        return list(self._by_edge)

    def quota(self, tenant_id: str) -> TenantQuota | None:
        return self._quotas.get(tenant_id)

    def quota_of(self, reservation: Reservation) -> TenantQuota:
        return self._quotas[reservation.request.tenant_id]

    def put_tenant(
        self, tenant: Tenant, now: float, balance: Balance | None = None, uses: Iterable[ScopeUse] = ()
    ) -> TenantQuota:
        """Create the quota of a tenant, or set its new limits."""
        quota = self._quotas.get(tenant.tenant_id)
        if quota is None:
            quota = self._quotas[tenant.tenant_id] = self._new_quota(tenant, now, balance, uses)
        else:
            quota.set_tenant(tenant, now)
        return quota

    def remove_tenant(self, tenant_id: str) -> TenantQuota:
        """Remove the quota of a tenant without reservations. Lost reservations can no longer be settled."""
        return self._quotas.pop(tenant_id)

    def put_quota(self, quota: TenantQuota) -> None:
        self._quotas[quota.tenant.tenant_id] = quota

    def restore(self, live: Iterable[Reservation], lost: Iterable[Reservation], charged: Iterable[Charge] = ()) -> None:
        """Restore reservations and recent charges of a former owner. Tenants, keys and prices must exist already."""
        for charge in charged:
            request = charge.reservation.request
            has_tokens = charge.prompt_tokens or charge.output_tokens or charge.made_tokens
            self._answer_ledger.charge(request, request.prompt_tokens if has_tokens else 0, charge.made_tokens, "")
            self._continue_answer(request)
        for reservation in sorted(live, key=lambda each: each.expires_at):
            self._continue_answer(reservation.request)
            holds = self.quota_of(reservation).restore(reservation, is_live=True)
            self._add(replace(reservation, metering=reservation.metering._replace(holds=holds)))
        self._live = dict(sorted(self._live.items(), key=lambda item: item[1].expires_at))
        for reservation in lost:
            quota = self._quotas.get(reservation.request.tenant_id)
            holds = quota.restore(reservation, is_live=False) if quota else ()
            self._record_lost(replace(reservation, metering=Metering(reserved_nanos=None, holds=holds)))

    def restore_balance(
        self, tenant: Tenant, balance: Balance | None, now: float, uses: Iterable[ScopeUse] = ()
    ) -> None:
        """Begin the quota of a tenant without reservations anew, from the state of its former owner.

        The limits of its keys must be set again.
        """
        self._quotas[tenant.tenant_id] = self._new_quota(tenant, now, balance, uses)

    def forget(self, is_forgotten: Callable[[str], bool], now: float) -> None:
        """Forget all use of the tenants of which `is_forgotten` is true; another process owns their state.

        The limits of their keys must be set again.
        """
        for reservation in [each for each in self._live.values() if is_forgotten(each.request.tenant_id)]:
            self._remove(reservation)
        self._lost = {name: each for name, each in self._lost.items() if not is_forgotten(each.request.tenant_id)}
        self._answer_ledger.forget(is_forgotten)
        self._active -= {each for each in self._active if is_forgotten(each[0])}
        for tenant_id, quota in self._quotas.items():
            if is_forgotten(tenant_id):
                self._quotas[tenant_id] = self._new_quota(quota.tenant, now)

    def _new_quota(
        self, tenant: Tenant, now: float, balance: Balance | None = None, uses: Iterable[ScopeUse] = ()
    ) -> TenantQuota:
        if self._share_of is None:
            return TenantQuota(tenant, balance, uses=uses, now=now)
        shares = RegionShares(self._share_of, self._largest, self._active)
        return SharedTenantQuota(tenant, balance, uses=uses, now=now, shares=shares)

    # Shares of limits, where regions share them.

    def shared_quota(self, tenant_id: str) -> SharedTenantQuota | None:
        """Return the quota of a tenant whose limits are shared; None if there is none."""
        quota = self._quotas.get(tenant_id)
        return quota if isinstance(quota, SharedTenantQuota) else None

    def set_share(self, tenant_id: str, scope: str, share: Share, now: float) -> None:
        """Set the share of a scope that this region enforces."""
        if quota := self.shared_quota(tenant_id):
            quota.set_share(scope, share, now)

    def share_in_use(self, tenant_id: str, scope: str, now: float) -> Share:
        """Return the least that the share of a scope may be lowered to."""
        quota = self.shared_quota(tenant_id)
        return quota.share_in_use(scope, now) if quota else Share(0, 0)

    def pop_demands(self, now: float) -> list[Demand]:
        """Return the demand for scopes that had requests since the last call, or have requests in progress."""
        found = []
        for key in list(self._active):
            quota = self.shared_quota(key[0])
            if quota is None or not quota.is_busy(key[1], now):
                self._active.discard(key)
            if quota and (demand := quota.pop_demand(key[1], now)):
                found.append(demand)
        return found

    def tenant_of(self, reservation_id: str) -> str:
        """Return the tenant of a reservation that can be settled; empty if there is none."""
        reservation = self._live.get(reservation_id) or self._lost.get(reservation_id)
        return reservation.request.tenant_id if reservation else ""

    def find(self, tenant_id: str, request_id: str) -> Reservation | None:
        return self._by_request.get((tenant_id, request_id))

    def is_live(self, reservation: Reservation) -> bool:
        return reservation.reservation_id in self._live

    def is_lost(self, reservation_id: str) -> bool:
        """Return whether a reservation was settled as lost and its edge can still settle it."""
        return reservation_id in self._lost

    def reserve(
        self, request: ReservationRequest, reservation_id: str, now: float, *, is_deferred: bool = False
    ) -> Reservation:
        """Reserve the tokens of a request that has no reservation yet. Raises LimitsExceeded.

        With `is_deferred`, limits are not checked: the edge has admitted the request under a fallback grant.
        """
        quota = self._quotas[request.tenant_id]
        if quota.is_metered or self.prices:
            take_run, metering = self._reserve_metered(quota, request, now, is_checked=not is_deferred)
        else:
            if not is_deferred:
                quota.check_limits(request, now)
            take_run, metering = quota.reserve(request, now), NOT_METERED
        if not self._continue_answer(request):
            request = replace(request, answer_id=request.request_id)
        reservation = Reservation(
            reservation_id=reservation_id,
            request=request,
            reserved_at=now,
            expires_at=now + self._ttl,
            take_run=take_run,
            metering=metering,
        )
        self._add(reservation)
        return reservation

    def _reserve_metered(
        self, quota: TenantQuota, request: ReservationRequest, now: float, *, is_checked: bool
    ) -> tuple[TakeRun | None, Metering]:
        """Reserve tokens and money. Raises LimitsExceeded if it `is_checked`."""
        price = self.prices.find(request.model) if self.prices or quota.has_money_budget else None
        nanos = 0
        if price:
            percent = self.prices.percent_of(request.priority)
            nanos = price.cost(request.prompt_tokens, request.max_chargeable_output_tokens, 0, percent)
        shadow_refusals = quota.check_limits(request, now, nanos) if is_checked else ()
        take_run = quota.reserve(request, now, shadow_refusals)
        holds = quota.hold_scopes(request, now, nanos, is_shadowed=bool(shadow_refusals))
        return take_run, Metering(nanos, price, holds, shadow_refusals)

    def cancel(self, reservation: Reservation) -> None:
        """Remove a reservation that was not confirmed to its edge."""
        if self.is_live(reservation):
            self._remove(reservation)
            quota, request = self.quota_of(reservation), reservation.request
            quota.release(reservation, request.prompt_tokens, request.max_output_tokens)
            quota.give_back(reservation, 0, 0)

    def settle(
        self,
        reservation_id: str,
        prompt_tokens: int,
        output_tokens: int,
        outcome: str,
        now: float,
        *,
        cached_tokens: int = 0,
        worker: str = "",
    ) -> Charge | None:
        """Settle a reservation. Return its charge; None if it was settled already or its tenant was deleted.

        A tenant is charged at most for the reserved tokens, and once for tokens that several requests of an answer
        share.
        """
        reservation = self._live.get(reservation_id)
        is_correction = reservation is None
        reservation = reservation or self._lost.pop(reservation_id, None)
        if reservation is None or reservation.request.tenant_id not in self._quotas:
            return None
        request = reservation.request
        prompt, made = min(prompt_tokens, request.prompt_tokens), min(output_tokens, request.max_output_tokens)
        delta = self._answer_ledger.charge(request, prompt, made, outcome)
        nanos = self._cost(reservation, delta, cached_tokens) if reservation.metering is not NOT_METERED else 0
        charge = Charge(
            reservation=reservation,
            prompt_tokens=delta.prompt_tokens,
            output_tokens=delta.output_tokens,
            made_tokens=made,
            outcome=outcome,
            settled_at=now,
            is_correction=is_correction,
            price_nanos=nanos,
            cached_tokens=min(cached_tokens, delta.prompt_tokens),
            worker=worker,
            region=self._region,
        )
        quota = self.quota_of(reservation)
        if not is_correction:
            self._remove(reservation)
            # A worker has computed `prompt` and `made`, whether they are charged or not.
            quota.release(reservation, request.prompt_tokens - prompt, request.max_output_tokens - made)
        if reservation.metering.holds:
            quota.give_back(reservation, delta.prompt_tokens + delta.output_tokens, nanos)
        quota.charge(charge)
        return charge

    def _cost(self, reservation: Reservation, charged: ChargeDelta, cached_tokens: int) -> int:
        """Return the cost of a charge by price and class of the reservation, and never more than it has reserved."""
        reserved = reservation.metering.reserved_nanos
        price = reservation.metering.price or self.prices.find(reservation.request.model)
        if price is None:
            return 0
        percent = self.prices.percent_of(reservation.request.priority)
        cost = price.cost(charged.prompt_tokens, charged.output_tokens, cached_tokens, percent)
        return cost if reserved is None else min(cost, reserved)

    def expire(self, now: float) -> list[Charge]:
        """Settle the expired reservations as lost."""
        expired = []
        for reservation in self._live.values():
            if reservation.expires_at > now:
                break
            expired.append(reservation)
        return [self._settle_as_lost(each, now) for each in expired]

    def expire_edge(self, edge_id: str, now: float) -> list[Charge]:
        """Settle all reservations of an edge as lost."""
        return [self._settle_as_lost(each, now) for each in list(self._by_edge.get(edge_id, {}).values())]

    def _settle_as_lost(self, reservation: Reservation, now: float) -> Charge:
        self._remove(reservation)
        self._record_lost(reservation)
        charge = Charge(
            reservation=reservation,
            prompt_tokens=0,
            output_tokens=0,
            outcome=OUTCOME_LOST,
            settled_at=now,
            region=self._region,
        )
        quota = self.quota_of(reservation)
        quota.release(reservation, 0, 0)
        quota.charge(charge)
        return charge

    def _continue_answer(self, request: ReservationRequest) -> bool:
        return not request.answer_id or self._answer_ledger.add_continuation(request)

    def _add(self, reservation: Reservation) -> None:
        request = reservation.request
        self._live[reservation.reservation_id] = reservation
        self._by_request[request.tenant_id, request.request_id] = reservation
        self._by_edge.setdefault(request.edge_id, {})[reservation.reservation_id] = reservation

    def _remove(self, reservation: Reservation) -> None:
        request = reservation.request
        del self._live[reservation.reservation_id]
        del self._by_request[request.tenant_id, request.request_id]
        held = self._by_edge[request.edge_id]
        del held[reservation.reservation_id]
        if not held:
            del self._by_edge[request.edge_id]

    def _record_lost(self, reservation: Reservation) -> None:
        self._lost[reservation.reservation_id] = reservation
        if len(self._lost) > MAX_LOST_RESERVATIONS:
            del self._lost[next(iter(self._lost))]
