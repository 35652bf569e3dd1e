"""Grant uses: the tokens of every request that an edge admitted under a fallback grant."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.auth.quota.grant import Grant, GrantInvalid

MAX_USES = 200_000  # requests; beyond it the oldest are forgotten


class GrantUse(NamedTuple):
    """Tokens of one request that count against a grant."""

    grant_id: bytes
    request_id: str
    reservation_id: str
    tokens: int  # reserved while the request runs, then used
    limit: int  # tokens of the grant
    forget_at: float  # s


@dataclass(eq=False)
class GrantUses:
    """The uses of all grants by reservation. The sum over the requests of a grant stays within its tokens.

    A request counts once. It may be recorded again only if its former reservation was settled as lost, because its edge
    was away for too long before auth could confirm it.
    """

    is_lost: Callable[[str], bool]  # whether a reservation was settled as lost
    _by_reservation: OrderedDict[str, GrantUse] = field(default_factory=OrderedDict)  # roughly by `forget_at`
    _reservations: dict[bytes, dict[str, str]] = field(default_factory=dict)  # by grant and request
    _tokens: dict[bytes, int] = field(default_factory=dict)  # by grant

    def __len__(self) -> int:
        return len(self._by_reservation)

    def restore(self, uses: Iterable[GrantUse]) -> None:
        """Restore the uses of a former owner. They replace those that this process had recorded as an owner before."""
        for each in uses:
            former = self._reservations.get(each.grant_id, {}).get(each.request_id)
            if former and former != each.reservation_id:
                self._remove(self._by_reservation[former])
            self._put(each)

    def find(self, reservation_id: str) -> GrantUse | None:
        return self._by_reservation.get(reservation_id)

    def record(self, grant: Grant, request_id: str, reservation_id: str, tokens: int) -> None:
        """Count a new reservation. Raises GrantInvalid if the grant has too few tokens left."""
        former = self._reservations.get(grant.grant_id, {}).get(request_id)
        replaced = self._by_reservation[former] if former and self.is_lost(former) else None
        counted = self._tokens.get(grant.grant_id, 0) - (replaced.tokens if replaced else 0)
        if former and not replaced:
            raise GrantInvalid(f"request {request_id!r} was recorded before, and has ended")
        if counted + tokens > grant.tokens:
            text = f"the grant of {grant.tokens} tokens has {max(0, grant.tokens - counted)} left; {tokens} were used"
            raise GrantInvalid(text)
        if replaced:
            self._remove(replaced)
        self._put(GrantUse(grant.grant_id, request_id, reservation_id, tokens, grant.tokens, grant.forget_at))

    def reduce(self, grant: Grant, reservation_id: str, tokens: int) -> None:
        """Count fewer tokens for a request that has ended and is not settled yet."""
        use = self._by_reservation.get(reservation_id)
        if use and use.grant_id == grant.grant_id and tokens < use.tokens:
            self._put(use._replace(tokens=tokens))

    def settle(self, reservation_id: str, tokens: int) -> int:
        """Count the tokens of a settlement. Return as many of them as the grant has left for it."""
        use = self._by_reservation.get(reservation_id)
        if use is None:
            return tokens
        allowed = min(tokens, use.limit - self._tokens[use.grant_id] + use.tokens)
        self._put(use._replace(tokens=allowed))
        return allowed

    def cancel(self, reservation_id: str) -> None:
        """Forget a reservation that could not be persisted."""
        if use := self._by_reservation.get(reservation_id):
            self._remove(use)

    def forget(self, now: float) -> None:
        """Forget uses of grants that are no longer accepted."""
        while self._by_reservation:
            use = next(iter(self._by_reservation.values()))
            if use.forget_at > now and len(self._by_reservation) <= MAX_USES:
                return
            self._remove(use)

    def _put(self, use: GrantUse) -> None:
        former = self._by_reservation.get(use.reservation_id)
        self._by_reservation[use.reservation_id] = use
        self._reservations.setdefault(use.grant_id, {})[use.request_id] = use.reservation_id
        self._tokens[use.grant_id] = self._tokens.get(use.grant_id, 0) + use.tokens - (former.tokens if former else 0)

    def _remove(self, use: GrantUse) -> None:
        del self._by_reservation[use.reservation_id]
        requests = self._reservations[use.grant_id]
        del requests[use.request_id]
        self._tokens[use.grant_id] -= use.tokens
        if not requests:
            del self._reservations[use.grant_id], self._tokens[use.grant_id]
