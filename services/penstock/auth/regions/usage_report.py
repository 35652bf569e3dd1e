"""Usage reports: hourly totals of one region as messages, the checks of their fields, and their lag. No I/O."""

from collections.abc import Sequence

from penstock.auth.identity.tenant import TENANT_ID_FORMAT
from penstock.auth.store.totals import COUNTERS, HOUR_S, OUTCOMES, RegionTotal
from penstock.chassis.errors import InvalidArgument
from penstock.mesh.limits import bounds
from penstock.mesh.v1.region_quota_pb2 import HourlyTotal, UsageReport

MAX_TOTALS = 500  # of one report
MAX_COUNTER = 2**62 - 1
MAX_AHEAD_S = 2 * HOUR_S  # by which the hour of a total may be ahead of the own clock


class UsageLag:
    """The time since the oldest usage that the home region has not confirmed."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}  # s; by hour with unconfirmed totals

    def seconds(self, now: float) -> float:
        return max(0.0, now - min(self._since.values(), default=now))

    def on_read(self, totals: Sequence[RegionTotal], now: float) -> None:
        """Take all or the oldest `MAX_TOTALS` unconfirmed totals. Those of a past hour began by its end."""
        hours = dict.fromkeys(each.hour for each in totals)
        self._since = {hour: self._since.get(hour, min(now, hour + HOUR_S)) for hour in hours}

    def on_confirmed(self, totals: Sequence[RegionTotal]) -> None:
        """The home region has confirmed totals. Those that have changed since are found by the next reading."""
        for each in totals:
            self._since.pop(each.hour, None)


def report_of(number: int, totals: Sequence[RegionTotal]) -> UsageReport:
    return UsageReport(number=number, totals=[_message_of(each) for each in totals])


def totals_of(report: UsageReport) -> tuple[RegionTotal, ...]:
    """Return the totals of a report. Raises InvalidArgument for a report that cannot be answered or is too long."""
    if not report.number:
        raise InvalidArgument("the number of a report must be above 0", field="usage.number")
    if len(report.totals) > MAX_TOTALS:
        raise InvalidArgument(f"a report has at most {MAX_TOTALS} totals", field="usage.totals")
    return tuple(_total_of(each) for each in report.totals)


def invalid_field(total: RegionTotal, now: float) -> str:
    """Return the name of a field of a total that the home region refuses; empty if there is none."""
    counters = dict(zip(COUNTERS, total.counters, strict=True))
    checks = {
        "hour": total.hour % HOUR_S == 0 and 0 <= total.hour <= now + MAX_AHEAD_S,
        "tenant_id": TENANT_ID_FORMAT.fullmatch(total.tenant_id) is not None,
        "key_id": 0 < len(total.key_id) <= bounds.ID_CHARS and "\0" not in total.key_id,
        "model": len(total.model) <= bounds.MODEL_NAME_CHARS and "\0" not in total.model,
        "revision": 0 < total.revision <= MAX_COUNTER,
        **{name: 0 <= value <= MAX_COUNTER for name, value in counters.items()},
    }
    if wrong := next((name for name, is_valid in checks.items() if not is_valid), ""):
        return wrong
    return "" if counters["requests"] == sum(counters[each] for each in OUTCOMES) else "requests"


def _message_of(total: RegionTotal) -> HourlyTotal:
    message = HourlyTotal(hour=total.hour, tenant_id=total.tenant_id, key_id=total.key_id, model=total.model)
    for name, value in zip((*COUNTERS, "revision"), (*total.counters, total.revision), strict=True):
        setattr(message, name, value)
    return message


def _total_of(message: HourlyTotal) -> RegionTotal:
    counters = tuple(getattr(message, each) for each in COUNTERS)
    return RegionTotal(message.hour, message.tenant_id, message.key_id, message.model, counters, message.revision)
