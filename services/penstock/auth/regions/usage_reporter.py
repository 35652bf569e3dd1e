"""The usage reporter of a spending region: sends totals that the home region has not confirmed, over one stream.

The store marks each total that a charge changes, in the transaction of the charge. A report has marked totals as they
are in the store, and its confirmation removes the marks of those that have not changed since. What was marked before a
restart or the loss of a stream is therefore reported after it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from penstock.auth.regions.usage_report import MAX_TOTALS, invalid_field, report_of
from penstock.auth.store.store import ConfirmTotals, Store
from penstock.auth.store.totals import RegionTotal
from penstock.auth.usage.reader import UsageReader
from penstock.chassis.errors import InvalidArgument, PenstockError
from penstock.mesh.v1.region_quota_pb2 import UsageReport

log = structlog.get_logger()

REPORT_INTERVAL_S = 2.0  # s between two reports, unless there are more totals than fit in one
CONFIRM_TIMEOUT_S = 10.0  # s after which totals are reported again, as they are then


@dataclass(eq=False)
class UsageReporter:
    """Reports the usage of one region. One process of the region reports: the owner of partition 0."""

    region: str
    store: Store
    reader: UsageReader
    clock: Callable[[], float]
    send: Callable[[UsageReport], None]  # over one stream
    interval: float = REPORT_INTERVAL_S
    confirm_timeout: float = CONFIRM_TIMEOUT_S
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _number: int = 0  # of the latest report
    _confirmed: asyncio.Event = field(default_factory=asyncio.Event)  # of the latest report

    async def run(self) -> None:
        """Report until cancelled, which is the end of the stream or of the ownership of partition 0."""
        while True:
            if not await self.report():
                await self.sleep(self.interval)

    def on_confirmed(self, number: int) -> None:
        """The home region has stored a report. Raises InvalidArgument if there was none with this number."""
        if not 0 < number <= self._number:
            text = f"report {number} was not sent; the latest one is {self._number}"
            raise InvalidArgument(text, field="usage_confirmed.number")
        if number == self._number:
            self._confirmed.set()

    async def report(self) -> bool:
        """Report the oldest unreported totals and wait until they are confirmed. Return whether there may be more."""
        try:
            found = await self.reader.unreported(self.region, self.clock(), MAX_TOTALS)
        except PenstockError as error:
            log.warning("usage_not_read", error=error.message)
            return False
        reported = tuple(each for each in found if self._is_reportable(each))
        if reported and not await self._is_confirmed(reported):
            return False
        return bool(found) and await self._forget(tuple(found)) and len(found) == MAX_TOTALS

    async def _is_confirmed(self, totals: tuple[RegionTotal, ...]) -> bool:
        self._number += 1
        self._confirmed.clear()
        self.send(report_of(self._number, totals))
        try:
            async with asyncio.timeout(self.confirm_timeout):
                await self._confirmed.wait()
        except TimeoutError:
            log.warning("usage_not_confirmed", totals=len(totals))
            return False
        return True

    def _is_reportable(self, total: RegionTotal) -> bool:
        """Return whether the home region accepts a total. One that it refuses must not hold up all others."""
        wrong = invalid_field(total, self.clock())
        if wrong:
            names = {"tenant": total.tenant_id, "key_id": total.key_id, "model": total.model, "hour": total.hour}
            log.error("usage_not_reportable", field=wrong, **names)
        return not wrong

    async def _forget(self, totals: tuple[RegionTotal, ...]) -> bool:
        """Remove the marks of totals that have not changed. Return False if the store could not be written."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def on_persisted(error: Exception | None) -> None:
            if not done.done():  # the stream has ended
                done.set_result(error is None)

        self.store.write(ConfirmTotals(self.region, totals), on_persisted)
        return await done
