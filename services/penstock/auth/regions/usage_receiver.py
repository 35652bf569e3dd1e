"""The usage receiver of the home region: stores the totals that other regions report."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import structlog

from penstock.auth import metrics
from penstock.auth.regions.usage_report import invalid_field, totals_of
from penstock.auth.store.store import PutTotals, Store
from penstock.auth.store.totals import HOUR_S
from penstock.chassis.errors import FailedPrecondition
from penstock.mesh.v1.region_quota_pb2 import UsageReport

log = structlog.get_logger()

MAX_WAITING = 8  # reports of one region that the store has not written


class UsageAnswer(NamedTuple):
    """How a report is answered."""

    on_stored: Callable[[], object]
    on_refused: Callable[[str], object]  # with the name of the field


@dataclass(eq=False)
class UsageReceiver:
    """Stores reports. A region repeats those that are not confirmed."""

    region: str  # the own one
    store: Store
    clock: Callable[[], float]
    hourly_retention: float  # s
    _waiting: Counter[str] = field(default_factory=Counter)  # by region
    _refused: dict[str, str] = field(default_factory=dict)  # field of the latest report, by region; logged once

    def receive(self, region: str, report: UsageReport, answer: UsageAnswer) -> None:
        """Store a report of another region, and then call `on_stored` of the answer, which confirms it.

        If a total is out of its range, nothing is stored and `on_refused` is called with the name of the field. Neither
        is called if the store cannot be written, or if too many reports of the region wait for it. Raises
        InvalidArgument, or FailedPrecondition / REGION_UNKNOWN for a report of the own region.
        """
        if not region or region == self.region:
            raise FailedPrecondition(f"region {region!r} cannot report its usage to itself", reason="REGION_UNKNOWN")
        now, totals = self.clock(), totals_of(report)
        if wrong := next(filter(None, (invalid_field(each, now) for each in totals)), ""):
            self._refuse(region, wrong)
            answer.on_refused(wrong)
            return
        if self._waiting[region] >= MAX_WAITING:
            log.warning("usage_report_dropped", region=region, waiting=self._waiting[region])
            return
        insert_from = int(now - self.hourly_retention) + HOUR_S
        if late := sum(each.hour < insert_from for each in totals):
            log.warning("usage_report_late", region=region, totals=late, hours_before=insert_from)
        self._waiting[region] += 1
        self._refused.pop(region, None)
        self.store.write(PutTotals(region, totals, insert_from), partial(self._on_stored, region, answer.on_stored))

    def _refuse(self, region: str, wrong: str) -> None:
        metrics.record_refused_usage(wrong)
        if self._refused.get(region) != wrong:
            self._refused[region] = wrong
            log.warning("usage_report_refused", region=region, field=wrong)

    def _on_stored(self, region: str, on_stored: Callable[[], object], error: Exception | None) -> None:
        self._waiting[region] -= 1
        if error is None:
            on_stored()
