"""Usage reports as messages: they are read as they were sent, and each field is checked."""

import pytest

from penstock.auth.regions.usage_report import MAX_COUNTER, MAX_TOTALS, UsageLag, invalid_field, report_of, totals_of
from penstock.auth.store.totals import COUNTERS, RegionTotal
from penstock.chassis.errors import InvalidArgument
from penstock.mesh.v1.region_quota_pb2 import HourlyTotal, UsageReport

HOUR = 1_798_761_600
NOW = HOUR + 60.0
TOTAL = RegionTotal(HOUR, "acme", "oidc/acme/anna", "llama", (15, 10, 4, 7, 99, 1, 2, 3, 4, 5), 8)


def message(**fields) -> HourlyTotal:
    found = HourlyTotal()
    found.CopyFrom(report_of(1, [TOTAL]).totals[0])
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def test_a_report_is_read_as_it_was_sent():
    sent = report_of(3, [TOTAL, TOTAL._replace(hour=HOUR + 7_200, model="", counters=(0,) * len(COUNTERS))])
    assert totals_of(UsageReport.FromString(sent.SerializeToString())) == (
        TOTAL,
        RegionTotal(HOUR + 7_200, "acme", "oidc/acme/anna", "", (0,) * len(COUNTERS), 8),
    )
    assert sent.number == 3


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"hour": HOUR + 1}, "hour"),
        ({"hour": HOUR + 3 * 3_600}, "hour"),
        ({"hour": 2**64 - 2**64 % 3_600}, "hour"),
        ({"tenant_id": ""}, "tenant_id"),
        ({"tenant_id": "Acme"}, "tenant_id"),
        ({"tenant_id": "a" * 64}, "tenant_id"),
        ({"key_id": ""}, "key_id"),
        ({"key_id": "k" * 257}, "key_id"),
        ({"key_id": "k\0"}, "key_id"),
        ({"model": "m" * 257}, "model"),
        ({"model": "m\0"}, "model"),
        ({"requests": 14}, "requests"),
        ({"prompt_tokens": MAX_COUNTER + 1}, "prompt_tokens"),
        ({"price_nanos": 2**64 - 1}, "price_nanos"),
        ({"lost": 2**63}, "lost"),
        ({"revision": 0}, "revision"),
        ({"revision": MAX_COUNTER + 1}, "revision"),
    ],
)
def test_a_field_out_of_its_range_is_named(fields, field):
    right, wrong = totals_of(UsageReport(number=1, totals=[message(), message(**fields)]))
    assert invalid_field(right, NOW) == ""
    assert invalid_field(wrong, NOW) == field


def test_a_report_has_a_number_and_a_bounded_number_of_totals():
    assert len(totals_of(UsageReport(number=1, totals=[message()] * MAX_TOTALS))) == MAX_TOTALS
    for report, field in (
        (UsageReport(totals=[message()]), "usage.number"),
        (UsageReport(number=1, totals=[message()] * (MAX_TOTALS + 1)), "usage.totals"),
    ):
        with pytest.raises(InvalidArgument) as failure:
            totals_of(report)
        assert [each.field for each in failure.value.field_violations] == [field]


def test_the_lag_is_that_of_the_oldest_unconfirmed_usage():
    lag = UsageLag()
    assert lag.seconds(NOW) == 0.0
    lag.on_read([TOTAL], NOW)
    assert lag.seconds(NOW + 30.0) == 30.0
    lag.on_read([TOTAL, TOTAL._replace(hour=HOUR + 3_600)], NOW + 30.0)
    assert lag.seconds(NOW + 30.0) == 30.0
    lag.on_confirmed([TOTAL])
    assert lag.seconds(NOW + 31.0) == 1.0
    lag.on_confirmed([TOTAL._replace(hour=HOUR + 3_600)])
    assert lag.seconds(NOW + 31.0) == 0.0
    lag.on_read([TOTAL], NOW + 40.0)  # it has changed since
    assert lag.seconds(NOW + 41.0) == 1.0
    lag.on_read([], NOW + 50.0)
    assert lag.seconds(NOW + 50.0) == 0.0


def test_the_lag_of_usage_from_before_a_restart_began_with_the_end_of_its_hour():
    lag = UsageLag()
    lag.on_read([TOTAL], HOUR + 5 * 3_600.0)
    assert lag.seconds(HOUR + 5 * 3_600.0) == 4 * 3_600.0
    assert lag.seconds(HOUR - 60.0) == 0.0
