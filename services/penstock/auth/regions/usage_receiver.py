"""The usage receiver of the home region: stores the totals that other regions report."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import structlog

from penstock.auth.regions.usage_report import totals_of
from penstock.auth.store.store import PutTotals, Store
from penstock.auth.store.totals import HOUR_S
from penstock.chassis.errors import FailedPrecondition
from penstock.mesh.v1.region_quota_pb2 import UsageReport

log = structlog.get_logger()

MAX_WAITING = 8  # reports of one region that the store has not written


@dataclass(eq=False)
class UsageReceiver:
    """Stores reports. A region repeats those that are not confirmed."""

    region: str  # the own one
    store: Store
    clock: Callable[[], float]
    hourly_retention: float  # s
    _waiting: Counter[str] = field(default_factory=Counter)  # by region

    def receive(self, region: str, report: UsageReport, on_stored: Callable[[], None]) -> None:
        """Store a report of another region, and then call `on_stored`, which confirms it.

        It is not called if the store cannot be written, or if too many reports of the region wait for it. Raises
        InvalidArgument, or FailedPrecondition / REGION_UNKNOWN for a report of the own region.
        """
        if not region or region == self.region:
            raise FailedPrecondition(f"region {region!r} cannot report its usage to itself", reason="REGION_UNKNOWN")
        now = self.clock()
        totals = totals_of(report, now)
        if self._waiting[region] >= MAX_WAITING:
            log.warning("usage_report_dropped", region=region, waiting=self._waiting[region])
            return
        insert_from = int(now - self.hourly_retention) + HOUR_S
        if late := sum(each.hour < insert_from for each in totals):
            log.warning("usage_report_late", region=region, totals=late, hours_before=insert_from)
        self._waiting[region] += 1
        self.store.write(PutTotals(region, totals, insert_from), partial(self._on_stored, region, on_stored))

    def _on_stored(self, region: str, on_stored: Callable[[], None], error: Exception | None) -> None:
        self._waiting[region] -= 1
        if error is None:
            on_stored()
