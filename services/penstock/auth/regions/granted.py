"""Granted shares: what other regions may spend, and how shares move between them and the home region. No I/O."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.auth.regions.demand import Demand
from penstock.auth.regions.movement import BUDGETS, HOME, RATES, Movement
from penstock.auth.regions.share import (
    FLOOR,
    FULL,
    MAX_SPENDING_REGIONS,
    ScopeKey,
    Share,
    ShareRow,
    largest_share,
)
from penstock.chassis.errors import InvalidArgument
from penstock.mesh.partitions import partition_of

InUse = Callable[[str, str], Share]  # of tenant and scope: what the home region itself cannot give away now


class ShareChange(NamedTuple):
    """A change of the share of one region."""

    number: int
    row: ShareRow  # to send
    bound: ShareRow  # to store first, if it `is_raise`: the most that the region may believe from then on
    former: Share  # bound before

    @property
    def is_raise(self) -> bool:
        return self.bound.share != self.former


@dataclass(slots=True)
class ScopeGrants:
    """The most that each region may believe to have of one scope."""

    bounds: dict[str, Share] = field(default_factory=dict)  # by region; without an entry it is the smallest share
    outstanding: dict[str, ShareChange] = field(default_factory=dict)  # by region; not confirmed
    movement: Movement | None = None  # while there is demand

    def bound(self, region: str) -> Share:
        return self.bounds.get(region, FLOOR)

    def set_bound(self, region: str, share: Share) -> None:
        if share == FLOOR:
            self.bounds.pop(region, None)
        else:
            self.bounds[region] = share


class GrantedShares:
    """Shares of the spending regions, as the home region grants them. It keeps the rest of each scope.

    The bound of a region is the most that it may believe to have. It is raised before a raise is sent, and lowered when
    the region has confirmed a lowering. The sum of all bounds and of the own share is never above the whole, except
    for a region that claims more than was granted: its bound is then what it claims, until it has been lowered.
    """

    def __init__(self, regions: Sequence[str]) -> None:
        if len(regions) > MAX_SPENDING_REGIONS:
            raise ValueError(f"at most {MAX_SPENDING_REGIONS} other regions may spend from limits")
        self.largest = largest_share(len(regions))
        self._regions = tuple(regions)
        self._default = Share(*(FULL - len(regions) * each for each in FLOOR))
        self._scopes: dict[int, dict[ScopeKey, ScopeGrants]] = {}  # by partition
        self._active: set[ScopeKey] = set()  # scopes with a movement
        self._present: dict[str, set[int]] = {each: set() for each in regions}  # partitions that are exchanged
        self._latest_number = 0
        self.excess_claims = 0  # shares above what was granted that regions have claimed

    def __repr__(self) -> str:
        return f"<GrantedShares {sum(map(len, self._scopes.values()))} scopes, {len(self._active)} with demand>"

    def restore(self, rows: Iterable[ShareRow]) -> None:
        """Set the bounds of partitions whose state was read. Rows of other regions have no effect."""
        for row in rows:
            if row.region in self._present:
                self._grants((row.tenant_id, row.scope)).set_bound(row.region, _valid(row))

    def forget(self, is_forgotten: Callable[[str], bool]) -> None:
        """Forget the shares of tenants: they were deleted, or another process owns their partitions."""
        for scopes in self._scopes.values():
            for key in [each for each in scopes if is_forgotten(each[0])]:
                self.remove(*key)

    def remove(self, tenant_id: str, scope: str) -> None:
        """Forget the shares of one scope, such as that of a deleted key."""
        self._scopes_of(partition_of(tenant_id)).pop((tenant_id, scope), None)
        self._active.discard((tenant_id, scope))

    def own(self, tenant_id: str, scope: str) -> Share:
        """Return what the home region may spend."""
        grants = self._find((tenant_id, scope))
        if grants is None or not grants.bounds:
            return self._default
        bounds = [grants.bound(each) for each in self._regions]
        rates, budgets = (max(0, FULL - sum(each[part] for each in bounds)) for part in (RATES, BUDGETS))
        return Share(rates, budgets)

    # What regions report.

    def on_begin(self, region: str, partition: int, shares: Iterable[ShareRow]) -> list[ShareRow]:
        """Set the bounds of a partition to what the region holds of it. Return the rows to store.

        Call `on_end` first if another stream exchanged the partition. Raises InvalidArgument.
        """
        held = {(each.tenant_id, each.scope): _valid(each) for each in shares}
        if any(partition_of(tenant_id) != partition for tenant_id, _ in held):
            raise InvalidArgument(f"a share of another partition than {partition}", field="begin.shares")
        self.on_end(region, partition)
        self._present[region].add(partition)
        named = [key for key, each in self._scopes_of(partition).items() if region in each.bounds]
        rows = []
        for key in dict.fromkeys([*held, *named]):
            grants, share = self._grants(key), held.get(key, FLOOR)
            if grants.bound(region) != share:
                self.excess_claims += grants.bound(region).at_least(share) != grants.bound(region)
                grants.set_bound(region, share)
                rows.append(ShareRow(*key, region, *share))
            if self._is_exceeded(grants):
                self._movement(key)
        return rows

    def on_end(self, region: str, partition: int) -> None:
        """End the exchange of a partition. What was sent and not confirmed stays counted."""
        self._present[region].discard(partition)
        for grants in self._scopes_of(partition).values():
            grants.outstanding.pop(region, None)

    def on_demand(self, region: str, demand: Demand, now: float) -> None:
        if partition_of(demand.tenant_id) in self._present[region]:
            self._movement(demand.key).add(region, demand, now)

    def on_held(self, region: str, number: int, row: ShareRow) -> list[ShareRow]:
        """Lower the bound of a region to what it has confirmed. Return the rows to store. Raises InvalidArgument.

        A confirmation of a change that is not outstanding any more has no effect.
        """
        if not 0 < number <= self._latest_number:
            raise InvalidArgument(f"no change has the number {number}", field="held.share.number")
        held = _valid(row)
        grants = self._find((row.tenant_id, row.scope))
        change = grants.outstanding.get(region) if grants else None
        if grants is None or change is None or change.number != number:
            return []
        del grants.outstanding[region]
        bound = grants.bound(region)
        held = held.at_most(bound)
        if grants.movement:
            grants.movement.on_changed(region, is_hindered=held.at_most(change.row.share) != held)
        if held == bound:
            return []
        grants.set_bound(region, held)
        return [ShareRow(row.tenant_id, row.scope, region, *held)]

    # What moves.

    def decide(self, own_demands: Iterable[Demand], in_use: InUse, now: float) -> list[ShareChange]:
        """Return changes. The own share is lowered by raises from now on: apply it before a raise is sent."""
        for demand in own_demands:
            self._movement(demand.key).add(HOME, demand, now)
        changes: list[ShareChange] = []
        for key in list(self._active):
            grants = self._grants(key)
            if grants.movement is None or (grants.movement.has_ended(now) and not self._is_exceeded(grants)):
                self._end_movement(key)
            else:
                changes += self._plan(key, grants, grants.movement, in_use(*key), now)
        return changes

    def on_unsent(self, change: ShareChange) -> None:
        """Take back a raise whose bound could not be stored, so that it was not sent."""
        grants = self._find((change.row.tenant_id, change.row.scope))
        if grants and grants.outstanding.get(change.row.region) is change:
            del grants.outstanding[change.row.region]
            grants.set_bound(change.row.region, change.former)

    def _plan(
        self, key: ScopeKey, grants: ScopeGrants, movement: Movement, in_use: Share, now: float
    ) -> list[ShareChange]:
        partition, own = partition_of(key[0]), self.own(*key)
        present = {each for each in self._regions if partition in self._present[each]}
        if not present:
            return []
        moves = []
        for part in (RATES, BUDGETS):
            shares = {HOME: own[part]} | {each: grants.bound(each)[part] for each in self._regions}
            moves.append(movement.plan(part, shares, present, in_use[part], now))
        changes = []
        for region in present - grants.outstanding.keys():
            former = grants.bound(region)
            share = Share(moves[RATES].get(region, former.rates), moves[BUDGETS].get(region, former.budgets))
            if share != former:
                changes.append(self._change(key, region, former, share))
                grants.outstanding[region] = changes[-1]
                grants.set_bound(region, share.at_least(former))
        return changes

    def _change(self, key: ScopeKey, region: str, former: Share, share: Share) -> ShareChange:
        self._latest_number += 1
        bound = ShareRow(*key, region, *share.at_least(former))
        return ShareChange(self._latest_number, ShareRow(*key, region, *share), bound, former)

    def _scopes_of(self, partition: int) -> dict[ScopeKey, ScopeGrants]:
        return self._scopes.setdefault(partition, {})

    def _find(self, key: ScopeKey) -> ScopeGrants | None:
        return self._scopes_of(partition_of(key[0])).get(key)

    def _grants(self, key: ScopeKey) -> ScopeGrants:
        scopes = self._scopes_of(partition_of(key[0]))
        grants = scopes.get(key)
        if grants is None:
            grants = scopes[key] = ScopeGrants()
        return grants

    def _movement(self, key: ScopeKey) -> Movement:
        grants = self._grants(key)
        if grants.movement is None:
            grants.movement = Movement()
            self._active.add(key)
        return grants.movement

    def _end_movement(self, key: ScopeKey) -> None:
        self._active.discard(key)
        grants = self._grants(key)
        grants.movement = None
        if not grants.bounds and not grants.outstanding:
            self.remove(*key)

    def _is_exceeded(self, grants: ScopeGrants) -> bool:
        """Return whether regions claim so much that the home region has less than the smallest share."""
        bounds = [grants.bound(each) for each in self._regions]
        return any(FULL - sum(each[part] for each in bounds) < FLOOR[part] for part in (RATES, BUDGETS))


def _valid(row: ShareRow) -> Share:
    """Return the share of a row, at least the smallest. Raises InvalidArgument."""
    if not (0 <= row.rates <= FULL and 0 <= row.budgets <= FULL):
        raise InvalidArgument(f"a share must be 0 to {FULL} thousandths", field="share")
    return row.share.at_least(FLOOR)
