"""The usage reporter of a spending region: sends totals that the home region has not confirmed.

The store marks each total that a charge changes, in the transaction of the charge. A report has marked totals as they
are in the store, and its confirmation removes the marks of those that have not changed since. What was marked before a
restart or the loss of a stream is therefore reported after it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from penstock.auth.regions.usage_report import MAX_TOTALS, UsageLag, invalid_field, report_of
from penstock.auth.store.store import ConfirmTotals, Store
from penstock.auth.store.totals import RegionTotal
from penstock.auth.usage.reader import UsageReader
from penstock.chassis.errors import InvalidArgument, PenstockError
from penstock.mesh.v1.region_quota_pb2 import UsageReport

log = structlog.get_logger()

REPORT_INTERVAL_S = 2.0  # s between two reports, unless there are more totals than fit in one
CONFIRM_TIMEOUT_S = 10.0  # s after which totals are reported again, as they are then
REFUSED_PAUSE_S = 60.0  # s after a report that the home region has refused


class ReportAnswer(NamedTuple):
    """How a report has ended. Without `is_stored` and `refused`, its stream was lost."""

    is_stored: bool = False
    refused: str = ""  # field of a total


@dataclass(eq=False)
class UsageReporter:
    """Reports the usage of one region. One process of the region reports: the owner of partition 0."""

    region: str
    store: Store
    reader: UsageReader
    clock: Callable[[], float]
    send: Callable[[UsageReport], bool]  # to the home region; False: there is no stream
    interval: float = REPORT_INTERVAL_S
    confirm_timeout: float = CONFIRM_TIMEOUT_S
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    lag: UsageLag = field(default_factory=UsageLag)
    _number: int = 0  # of the latest report
    _answer: asyncio.Future[ReportAnswer] | None = None  # to the latest report; None: it has ended
    _problem: str = ""  # of the latest reading
    _refused: str = ""  # field for which the latest report was refused

    async def run(self) -> None:
        """Report until cancelled, which is the end of the ownership of partition 0."""
        while True:
            if not await self.report():
                await self.sleep(REFUSED_PAUSE_S if self._refused else self.interval)

    def on_confirmed(self, number: int) -> None:
        """The home region has stored a report. Raises InvalidArgument if there was none with this number."""
        self._end(number, ReportAnswer(is_stored=True), "usage_confirmed.number")

    def on_refused(self, number: int, wrong: str) -> None:
        """The home region has refused a report for a field of a total. Raises InvalidArgument as `on_confirmed`."""
        self._end(number, ReportAnswer(refused=wrong or "unknown"), "usage_refused.number")

    def on_stream_lost(self) -> None:
        """The stream on which the latest report was sent has ended."""
        if self._answer and not self._answer.done():
            self._answer.set_result(ReportAnswer())

    async def report(self) -> bool:
        """Report the oldest unreported totals and wait until they are confirmed. Return whether there may be more."""
        now = self.clock()
        try:
            found = await self.reader.unreported(self.region, now, MAX_TOTALS)
        except PenstockError as error:
            if error.message != self._problem:
                log.warning("usage_not_read", error=error.message)
            self._problem = error.message
            return False
        self._problem = ""
        self.lag.on_read(found, now)
        if not found:
            return False
        # After a refusal, each hour is reported by itself, so that totals of a wrong hour hold up no earlier ones.
        chosen = tuple(each for each in found if not self._refused or each.hour == found[0].hour)
        reported = tuple(each for each in chosen if self._is_reportable(each))
        if reported and not await self._is_confirmed(reported):
            return False
        if not await self._forget(chosen):
            return False
        self.lag.on_confirmed(chosen)
        if len(chosen) < len(found):
            return True
        self._set_refused("", reported)
        return len(found) == MAX_TOTALS

    async def _is_confirmed(self, totals: Sequence[RegionTotal]) -> bool:
        self._number += 1
        self._answer = asyncio.get_running_loop().create_future()
        if not self.send(report_of(self._number, totals)):
            return False
        try:
            async with asyncio.timeout(self.confirm_timeout):
                answer = await self._answer
        except TimeoutError:
            log.warning("usage_not_confirmed", totals=len(totals))
            return False
        finally:
            self._answer = None
        if answer.refused:
            self._set_refused(answer.refused, totals)
        return answer.is_stored

    def _end(self, number: int, answer: ReportAnswer, field_name: str) -> None:
        if not 0 < number <= self._number:
            raise InvalidArgument(f"report {number} was not sent; the latest one is {self._number}", field=field_name)
        if number == self._number and self._answer and not self._answer.done():
            self._answer.set_result(answer)

    def _set_refused(self, refused: str, totals: Sequence[RegionTotal]) -> None:
        if refused and refused != self._refused:
            log.warning("usage_refused", field=refused, hour=totals[0].hour, latest_hour=totals[-1].hour)
        elif self._refused and not refused:
            log.info("usage_accepted")
        self._refused = refused

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
            if not done.done():  # the reporter was cancelled
                done.set_result(error is None)

        self.store.write(ConfirmTotals(self.region, totals), on_persisted)
        return await done
