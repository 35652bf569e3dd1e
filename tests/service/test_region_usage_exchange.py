"""The usage reporter of a region and the receiver at its home, each with a store, over a stream that may be lost."""

import asyncio
import sqlite3
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial

import pytest
from structlog.testing import capture_logs

from penstock.auth.identity.tenant import Tenant
from penstock.auth.regions import usage_receiver
from penstock.auth.regions.usage_receiver import UsageAnswer, UsageReceiver
from penstock.auth.regions.usage_reporter import UsageReporter
from penstock.auth.store.opening import opened_store
from penstock.auth.store.store import PutTenant
from penstock.auth.usage.reader import UsageReader
from penstock.chassis.database.location import parse_location
from penstock.chassis.errors import FailedPrecondition, InvalidArgument
from penstock.chassis.observability.metrics import REGISTRY
from penstock.mesh.v1.region_quota_pb2 import UsageReport
from store_changes import kept
from usage_rows import HOUR_S, START, charge

NOW = START + 10 * HOUR_S
REFUSED = "penstock_auth_refused_usage_total"
TOTALS = """
    SELECT hour, tenant_id, key_id, requests, output_tokens FROM hourly_usage WHERE region = 'us' ORDER BY 1, 2, 3
"""


class Exchange:
    """A region `us` and its home `eu` with stores in files."""

    def __init__(self, folder):
        self.paths = {name: str(folder / f"{name}.sqlite") for name in ("us", "eu")}
        self.reports = []
        self.is_connected = True
        self.home_now = NOW
        self.lost_confirmations = 0  # how many of the next ones are lost
        self.confirmation_lost, self.confirmed = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def running(self):
        async with AsyncExitStack() as stack:
            self.us, _ = await stack.enter_async_context(opened_store(self.paths["us"], reports_usage=True))
            self.eu, _ = await stack.enter_async_context(opened_store(self.paths["eu"]))
            self.reader = UsageReader(parse_location(self.paths["us"]))
            stack.callback(self.reader.close)
            self.receiver = UsageReceiver("eu", self.eu, lambda: self.home_now, 90 * 86_400.0)
            await kept(self.us, PutTenant(Tenant(tenant_id="acme")))
            yield self

    def stream(self, *, confirm_timeout=10.0):
        """Return a reporter on a new stream."""
        reporter = UsageReporter("us", self.us, self.reader, lambda: NOW, self.send, confirm_timeout=confirm_timeout)
        self.reporter = reporter
        return reporter

    def send(self, report):
        received, reporter = UsageReport.FromString(report.SerializeToString()), self.reporter
        self.reports.append(received)

        def confirm():
            if self.lost_confirmations:
                self.lost_confirmations -= 1
                self.confirmation_lost.set()
            else:
                reporter.on_confirmed(received.number)
                self.confirmed.set()

        refuse = partial(reporter.on_refused, received.number)
        self.receiver.receive("us", received, UsageAnswer(confirm, refuse))
        return self.is_connected

    def totals(self, name):
        with closing(sqlite3.connect(self.paths[name])) as raw:
            return raw.execute(TOTALS).fetchall()


def refused(wrong):
    pytest.fail(f"{wrong} was refused")


@pytest.fixture
async def exchange(tmp_path):
    async with Exchange(tmp_path).running() as found, asyncio.timeout(60):
        yield found


async def test_usage_reaches_the_home_in_reports_of_bounded_size(exchange):
    await asyncio.gather(
        *(
            kept(exchange.us, charge(number, START + number, key=f"k{number:04}", region="us"))
            for number in range(1_201)
        )
    )
    reporter = exchange.stream()
    assert [await reporter.report() for _ in range(3)] == [True, True, False]
    assert [len(each.totals) for each in exchange.reports] == [500, 500, 201]
    assert [each.number for each in exchange.reports] == [1, 2, 3]
    assert len(exchange.totals("us")) == 1_201
    assert exchange.totals("eu") == exchange.totals("us")
    assert not await reporter.report()
    assert len(exchange.reports) == 3


async def test_a_report_whose_confirmation_is_lost_is_repeated_on_the_next_stream(exchange):
    await kept(exchange.us, charge(1, START, region="us"))
    exchange.lost_confirmations = 1
    running = asyncio.create_task(exchange.stream().run())
    await exchange.confirmation_lost.wait()
    running.cancel()  # the stream is lost
    await kept(exchange.us, charge(2, START + 1, region="us"))
    await exchange.stream().report()
    assert [each.totals[0].requests for each in exchange.reports] == [1, 2]
    assert exchange.totals("eu") == exchange.totals("us") == [(START, "acme", "k", 2, 3)]


async def test_an_unconfirmed_report_is_followed_by_one_with_the_totals_of_then(exchange):
    await kept(exchange.us, charge(1, START, region="us"))
    exchange.lost_confirmations = 1
    reporter = exchange.stream(confirm_timeout=0.05)
    assert not await reporter.report()
    await kept(exchange.us, charge(2, START, region="us"))
    await reporter.report()
    reporter.on_confirmed(1)  # late, and of no use
    assert [(each.number, each.totals[0].requests) for each in exchange.reports] == [(1, 1), (2, 2)]
    assert exchange.totals("eu") == exchange.totals("us")


async def test_reports_go_on_until_the_stream_ends(exchange):
    slept = asyncio.Event()

    async def sleep(_):
        slept.set()
        await asyncio.sleep(0)

    reporter = exchange.stream()
    reporter.sleep = sleep
    running = asyncio.create_task(reporter.run())
    await slept.wait()
    await kept(exchange.us, charge(1, START, region="us"))
    await exchange.confirmed.wait()
    running.cancel()
    assert exchange.totals("eu") == exchange.totals("us")


async def test_what_was_not_reported_before_a_restart_is_reported_after_it(tmp_path):
    exchange = Exchange(tmp_path)
    async with exchange.running():
        await kept(exchange.us, charge(1, START, region="us"))
    async with exchange.running():
        await exchange.stream().report()
    assert exchange.totals("eu") == exchange.totals("us") == [(START, "acme", "k", 1, 1)]


async def test_a_total_that_the_home_would_refuse_does_not_hold_up_others(exchange):
    await kept(exchange.us, charge(1, START, region="us", model="m" * 300))
    await kept(exchange.us, charge(2, START + HOUR_S, region="us"))
    reporter = exchange.stream()
    await reporter.report()
    await reporter.report()
    assert [len(each.totals) for each in exchange.reports] == [1]
    assert exchange.totals("eu") == [(START + HOUR_S, "acme", "k", 1, 2)]


async def test_a_total_of_a_later_hour_waits(exchange):
    await kept(exchange.us, charge(1, NOW + 5 * HOUR_S, region="us"))
    assert not await exchange.stream().report()
    assert exchange.reports == []


async def test_a_refused_hour_holds_up_no_earlier_one_and_is_reported_once_it_is_accepted(exchange):
    await kept(exchange.us, charge(1, START, region="us"))
    await kept(exchange.us, charge(2, NOW, region="us"))
    exchange.home_now = NOW - 5 * HOUR_S
    before = REGISTRY.get_sample_value(REFUSED, {"field": "hour"}) or 0
    reporter = exchange.stream()
    with capture_logs() as logs:
        assert [await reporter.report() for _ in range(4)] == [False, True, False, False]
        assert exchange.totals("eu") == exchange.totals("us")[:1]
        assert reporter.lag.seconds(NOW + 90.0) == 90.0
        exchange.home_now = NOW
        assert not await reporter.report()
    assert exchange.totals("eu") == exchange.totals("us")
    assert reporter.lag.seconds(NOW + 90.0) == 0.0
    assert REGISTRY.get_sample_value(REFUSED, {"field": "hour"}) == before + 3
    events = [each["event"] for each in logs]
    assert events == ["usage_report_refused", "usage_refused", "usage_report_refused", "usage_accepted"]


async def test_the_loss_of_a_stream_ends_a_report_and_without_one_the_lag_grows(exchange):
    await kept(exchange.us, charge(1, START, region="us"))
    exchange.lost_confirmations = 1
    reporter = exchange.stream()
    reporting = asyncio.create_task(reporter.report())
    await exchange.confirmation_lost.wait()
    reporter.on_stream_lost()
    assert not await reporting
    exchange.is_connected = False
    assert not await reporter.report()
    assert reporter.lag.seconds(NOW) == NOW - START - HOUR_S
    exchange.is_connected = True
    assert not await reporter.report()
    assert reporter.lag.seconds(NOW) == 0.0


async def test_only_sent_reports_can_be_confirmed(exchange):
    reporter = exchange.stream()
    for number in (0, 1):
        with pytest.raises(InvalidArgument):
            reporter.on_confirmed(number)
        with pytest.raises(InvalidArgument):
            reporter.on_refused(number, "hour")


async def test_a_region_reports_its_own_usage_alone(exchange):
    for region in ("", "eu"):
        with pytest.raises(FailedPrecondition) as failure:
            exchange.receiver.receive(region, UsageReport(number=1), UsageAnswer(lambda: None, refused))
        assert failure.value.reason == "REGION_UNKNOWN"


async def test_reports_that_wait_for_the_store_are_bounded(exchange, monkeypatch):
    monkeypatch.setattr(usage_receiver, "MAX_WAITING", 2)
    confirmed = []
    for number in range(1, 5):
        exchange.receiver.receive(
            "us", UsageReport(number=number), UsageAnswer(partial(confirmed.append, number), refused)
        )
    await exchange.eu.flush()
    exchange.receiver.receive("us", UsageReport(number=5), UsageAnswer(partial(confirmed.append, 5), refused))
    await exchange.eu.flush()
    assert confirmed == [1, 2, 5]


async def test_a_report_that_cannot_be_stored_is_not_confirmed(exchange):
    exchange.eu.close()
    exchange.receiver.receive("us", UsageReport(number=1), UsageAnswer(partial(pytest.fail, "it was stored"), refused))
