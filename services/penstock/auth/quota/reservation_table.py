"""All reservations and the accounts they are held against. Knows no clock, no network and no store."""

from collections.abc import Iterable
from dataclasses import replace

from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.answer_billing import AnswerLedger
from penstock.auth.quota.reservation import OUTCOME_LOST, Charge, Reservation, ReservationRequest
from penstock.auth.quota.tenant_quota import Balance, TenantQuota

MAX_LOST_RESERVATIONS = (
    10_000  # lost reservations whose edge may still come and tell what was spent; older ones stay lost
)


class ReservationTable:
    """Who holds what. Each reservation ends in exactly one charge.

    A lost reservation, one that lapsed or whose edge stayed away, is charged nothing, for nobody can say what its
    client got; its tokens stay taken from the minute's bucket, for a GPU may have spent them. Should its edge come back
    after all and say what was spent, that charge takes the place of the lost one. A request that continues a lost one's
    answer pays for what its client has of it.
    """

    def __init__(self, *, ttl: float) -> None:
        self._ttl = ttl  # s; of a reservation
        self._quotas: dict[str, TenantQuota] = {}
        self._live: dict[str, Reservation] = {}  # in order of expiry, the ttl being the same for all
        self._by_request: dict[tuple[str, str], Reservation] = {}  # tenant and request
        self._by_edge: dict[str, dict[str, Reservation]] = {}
        self._lost: dict[str, Reservation] = {}
        self._answer_ledger = AnswerLedger()

    def __repr__(self) -> str:
        return f"<Accounts {len(self._quotas)} tenants, {len(self._live)} reservations, {self.reserved_tokens} tokens>"

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
    def quotas(self) -> list[TenantQuota]:
        """By tenant id."""
        return [self._quotas[each] for each in sorted(self._quotas)]

    @property
    def edges_with_reservations(self) -> list[str]:
        """Instances of edges that hold reservations."""
        return list(self._by_edge)

    def quota(self, tenant_id: str) -> TenantQuota | None:
        return self._quotas.get(tenant_id)

    def quota_of(self, reservation: Reservation) -> TenantQuota:
        return self._quotas[reservation.request.tenant_id]

    def put_tenant(self, tenant: Tenant, now: float, balance: Balance | None = None) -> TenantQuota:
        """Open an account, or give an open one new limits."""
        account = self._quotas.get(tenant.tenant_id)
        if account is None:
            account = self._quotas[tenant.tenant_id] = TenantQuota(tenant, balance, now=now)
        else:
            account.set_tenant(tenant, now)
        return account

    def restore(self, live: Iterable[Reservation], lost: Iterable[Reservation], charged: Iterable[Charge] = ()) -> None:
        """Take over the reservations of the process before this one, and of what it charged the latest.

        Their tenants are there already.
        """
        for charge in charged:
            ask = charge.reservation.request
            is_due = charge.prompt_tokens or charge.output_tokens or charge.made_tokens
            self._answer_ledger.charge(ask, ask.prompt_tokens if is_due else 0, charge.made_tokens, "")
            self._continue_answer(ask)
        for reservation in sorted(live, key=lambda each: each.expires_at):
            self._continue_answer(reservation.request)
            self.quota_of(reservation).count_reservation(reservation.request.tokens)
            self._add(reservation)
        for reservation in lost:
            self._record_lost(reservation)

    def find(self, tenant_id: str, request_id: str) -> Reservation | None:
        return self._by_request.get((tenant_id, request_id))

    def is_live(self, reservation: Reservation) -> bool:
        return reservation.reservation_id in self._live

    def reserve(
        self, request: ReservationRequest, reservation_id: str, now: float, *, is_deferred: bool = False
    ) -> Reservation:
        """Hold what is asked for; raises QuotaExceeded. The request must not hold a reservation yet.

        What was granted before is booked whatever the limits say.
        """
        account = self._quotas[request.tenant_id]
        if not is_deferred:
            account.check_limits(request.tokens, now)
        if not self._continue_answer(request):
            request = replace(request, answer_id=request.request_id)
        reservation = Reservation(
            reservation_id=reservation_id,
            request=request,
            reserved_at=now,
            expires_at=now + self._ttl,
            take_run=account.reserve(request.tokens, now),
        )
        self._add(reservation)
        return reservation

    def cancel(self, reservation: Reservation) -> None:
        """Forget a reservation that nobody was told of."""
        if self.is_live(reservation):
            self._remove(reservation)
            self.quota_of(reservation).release(reservation, reservation.request.tokens)

    def settle(
        self, reservation_id: str, prompt_tokens: int, output_tokens: int, outcome: str, now: float
    ) -> Charge | None:
        """End a reservation that has used so much; None when it has ended already.

        Nobody is charged for more than was reserved, nor twice for what another request of the answer was charged.
        """
        reservation = self._live.get(reservation_id)
        is_correction = reservation is None
        reservation = reservation or self._lost.pop(reservation_id, None)
        if reservation is None:
            return None
        ask = reservation.request
        prompt, made = min(prompt_tokens, ask.prompt_tokens), min(output_tokens, ask.max_output_tokens)
        due = self._answer_ledger.charge(ask, prompt, made, outcome)
        charge = Charge(
            reservation=reservation,
            prompt_tokens=due.prompt_tokens,
            output_tokens=due.output_tokens,
            made_tokens=made,
            outcome=outcome,
            settled_at=now,
            is_correction=is_correction,
        )
        if not is_correction:
            self._remove(reservation)
            self.quota_of(reservation).release(reservation, ask.tokens - prompt - made)  # a GPU made it, whoever pays
        self.quota_of(reservation).charge(charge)
        return charge

    def expire(self, now: float) -> list[Charge]:
        """Settle what has lapsed as lost."""
        lapsed = []
        for reservation in self._live.values():
            if reservation.expires_at > now:
                break
            lapsed.append(reservation)
        return [self._settle_as_lost(each, now) for each in lapsed]

    def expire_edge(self, edge_id: str, now: float) -> list[Charge]:
        """Settle all that an edge holds as lost."""
        return [self._settle_as_lost(each, now) for each in list(self._by_edge.get(edge_id, {}).values())]

    def _settle_as_lost(self, reservation: Reservation, now: float) -> Charge:
        self._remove(reservation)
        self._record_lost(reservation)
        charge = Charge(reservation=reservation, prompt_tokens=0, output_tokens=0, outcome=OUTCOME_LOST, settled_at=now)
        account = self.quota_of(reservation)
        account.release(reservation, unused=0)
        account.charge(charge)
        return charge

    def _continue_answer(self, request: ReservationRequest) -> bool:
        return not request.answer_id or self._answer_ledger.add_continuation(request)

    def _add(self, reservation: Reservation) -> None:
        ask = reservation.request
        self._live[reservation.reservation_id] = reservation
        self._by_request[ask.tenant_id, ask.request_id] = reservation
        self._by_edge.setdefault(ask.edge_id, {})[reservation.reservation_id] = reservation

    def _remove(self, reservation: Reservation) -> None:
        ask = reservation.request
        del self._live[reservation.reservation_id]
        del self._by_request[ask.tenant_id, ask.request_id]
        held = self._by_edge[ask.edge_id]
        del held[reservation.reservation_id]
        if not held:
            del self._by_edge[ask.edge_id]

    def _record_lost(self, reservation: Reservation) -> None:
        self._lost[reservation.reservation_id] = reservation
        if len(self._lost) > MAX_LOST_RESERVATIONS:
            del self._lost[next(iter(self._lost))]
