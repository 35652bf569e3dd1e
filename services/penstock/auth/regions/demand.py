"""Demand: what a region uses and wants of one scope, in thousandths of the whole limit."""

from typing import NamedTuple

from penstock.auth.regions.share import ScopeKey


class Demand(NamedTuple):
    """What a region uses and wants of the limits of one scope; the fields are those of `ShareDemand`."""

    tenant_id: str
    scope: str
    used_rates: int = 0  # of the limit that is used most
    wanted_rates: int = 0  # share that admits the largest request that was refused since the last report; 0: none was
    used_budgets: int = 0  # of the budget that is used most, reserved amounts included
    wanted_budgets: int = 0

    @property
    def key(self) -> ScopeKey:
        return self.tenant_id, self.scope
