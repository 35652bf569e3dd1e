"""All reservations and the accounts they are held against. Knows no clock, no network and no store."""

from collections.abc import Iterable
from dataclasses import replace

from penstock.auth.account import Account, Balance
from penstock.auth.answers import Answers
from penstock.auth.reservation import LOST, Ask, Charge, Reservation
from penstock.auth.tenant import Tenant

MAX_LOST = 10_000  # lost reservations whose edge may still come and tell what was spent; older ones stay lost


class Accounts:
    """Who holds what. Each reservation ends in exactly one charge.

    A lost reservation, one that lapsed or whose edge stayed away, is charged nothing, for nobody can say what its
    client got; its tokens stay taken from the minute's bucket, for a GPU may have spent them. Should its edge come back
    after all and say what was spent, that charge takes the place of the lost one. A request that continues a lost one's
    answer pays for what its client has of it.
    """

    def __init__(self, *, ttl: float) -> None:
        self._ttl = ttl  # s; of a reservation
        self._accounts: dict[str, Account] = {}
        self._live: dict[str, Reservation] = {}  # in order of expiry, the ttl being the same for all
        self._by_request: dict[tuple[str, str], Reservation] = {}  # tenant and request
        self._by_edge: dict[str, dict[str, Reservation]] = {}
        self._lost: dict[str, Reservation] = {}
        self._answers = Answers()

    def __repr__(self) -> str:
        return (
            f"<Accounts {len(self._accounts)} tenants, {len(self._live)} reservations, {self.reserved_tokens} tokens>"
        )

    def __len__(self) -> int:
        return len(self._accounts)

    @property
    def reservations(self) -> int:
        return len(self._live)

    @property
    def reserved_tokens(self) -> int:
        return sum(each.reserved_tokens for each in self._accounts.values())

    @property
    def concurrent_requests(self) -> int:
        return sum(each.concurrent_requests for each in self._accounts.values())

    @property
    def all(self) -> list[Account]:
        """By tenant id."""
        return [self._accounts[each] for each in sorted(self._accounts)]

    @property
    def edges(self) -> list[str]:
        """Instances of edges that hold reservations."""
        return list(self._by_edge)

    def get(self, tenant_id: str) -> Account | None:
        return self._accounts.get(tenant_id)

    def of(self, reservation: Reservation) -> Account:
        return self._accounts[reservation.ask.tenant_id]

    def put_tenant(self, tenant: Tenant, now: float, balance: Balance | None = None) -> Account:
        """Open an account, or give an open one new limits."""
        account = self._accounts.get(tenant.tenant_id)
        if account is None:
            account = self._accounts[tenant.tenant_id] = Account(tenant, balance, now=now)
        else:
            account.set_tenant(tenant, now)
        return account

    def restore(self, live: Iterable[Reservation], lost: Iterable[Reservation], charged: Iterable[Charge] = ()) -> None:
        """Take over the reservations of the process before this one, and of what it charged the latest.

        Their tenants are there already.
        """
        for charge in charged:
            ask = charge.reservation.ask
            is_due = charge.prompt_tokens or charge.output_tokens or charge.made_tokens
            self._answers.charge(ask, ask.prompt_tokens if is_due else 0, charge.made_tokens, "")
            self._join(ask)
        for reservation in sorted(live, key=lambda each: each.expires_at):
            self._join(reservation.ask)
            self.of(reservation).open(reservation.ask.tokens)
            self._hold(reservation)
        for reservation in lost:
            self._remember_lost(reservation)

    def find(self, tenant_id: str, request_id: str) -> Reservation | None:
        return self._by_request.get((tenant_id, request_id))

    def is_live(self, reservation: Reservation) -> bool:
        return reservation.reservation_id in self._live

    def reserve(self, ask: Ask, reservation_id: str, now: float, *, is_granted: bool = False) -> Reservation:
        """Hold what is asked for; raises QuotaExceeded. The request must not hold a reservation yet.

        What was granted before is booked whatever the limits say.
        """
        account = self._accounts[ask.tenant_id]
        if not is_granted:
            account.check(ask.tokens, now)
        if not self._join(ask):
            ask = replace(ask, answer_id=ask.request_id)
        reservation = Reservation(
            reservation_id=reservation_id,
            ask=ask,
            reserved_at=now,
            expires_at=now + self._ttl,
            stretch=account.take(ask.tokens, now),
        )
        self._hold(reservation)
        return reservation

    def undo(self, reservation: Reservation) -> None:
        """Forget a reservation that nobody was told of."""
        if self.is_live(reservation):
            self._drop(reservation)
            self.of(reservation).release(reservation, reservation.ask.tokens)

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
        ask = reservation.ask
        prompt, made = min(prompt_tokens, ask.prompt_tokens), min(output_tokens, ask.max_output_tokens)
        due = self._answers.charge(ask, prompt, made, outcome)
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
            self._drop(reservation)
            self.of(reservation).release(reservation, ask.tokens - prompt - made)  # a GPU made it, whoever pays
        self.of(reservation).charge(charge)
        return charge

    def expire(self, now: float) -> list[Charge]:
        """Settle what has lapsed as lost."""
        lapsed = []
        for reservation in self._live.values():
            if reservation.expires_at > now:
                break
            lapsed.append(reservation)
        return [self._lose(each, now) for each in lapsed]

    def lose_edge(self, edge_id: str, now: float) -> list[Charge]:
        """Settle all that an edge holds as lost."""
        return [self._lose(each, now) for each in list(self._by_edge.get(edge_id, {}).values())]

    def _lose(self, reservation: Reservation, now: float) -> Charge:
        self._drop(reservation)
        self._remember_lost(reservation)
        charge = Charge(reservation=reservation, prompt_tokens=0, output_tokens=0, outcome=LOST, settled_at=now)
        account = self.of(reservation)
        account.release(reservation, unused=0)
        account.charge(charge)
        return charge

    def _join(self, ask: Ask) -> bool:
        return not ask.answer_id or self._answers.join(ask)

    def _hold(self, reservation: Reservation) -> None:
        ask = reservation.ask
        self._live[reservation.reservation_id] = reservation
        self._by_request[ask.tenant_id, ask.request_id] = reservation
        self._by_edge.setdefault(ask.edge_id, {})[reservation.reservation_id] = reservation

    def _drop(self, reservation: Reservation) -> None:
        ask = reservation.ask
        del self._live[reservation.reservation_id]
        del self._by_request[ask.tenant_id, ask.request_id]
        held = self._by_edge[ask.edge_id]
        del held[reservation.reservation_id]
        if not held:
            del self._by_edge[ask.edge_id]

    def _remember_lost(self, reservation: Reservation) -> None:
        self._lost[reservation.reservation_id] = reservation
        if len(self._lost) > MAX_LOST:
            del self._lost[next(iter(self._lost))]
