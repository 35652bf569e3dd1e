"""Usage of a spending region at its home region: totals equal the ledger, whatever is lost, repeated or restarted."""

import sqlite3
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.reservation import OUTCOME_LOST
from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.regions.usage_report import report_of, totals_of
from penstock.auth.store.postgres.backend import PostgresBackend
from penstock.auth.store.roll_up import Retention, correctable_hours
from penstock.auth.store.sqlite.backend import SqliteBackend
from penstock.auth.store.store import ConfirmTotals, PutTenant, PutTotals
from penstock.auth.store.totals import COUNTERS, KEYS, OUTCOME_CASES, OUTCOMES, TOKENS, RegionTotal
from penstock.auth.usage.connections import usage_connections
from penstock.auth.usage.query import POSTGRES, SQLITE, unreported_statement
from penstock.chassis.database.location import parse_location
from store_changes import charged
from stores import PostgresStore, SqliteStore, administer, new_database

START = 1_798_761_600  # 2027-01-01 UTC
HOUR_S, DAY_S = 3_600, 86_400
KINDS = ("sqlite", "postgres")
NAMES = ", ".join((*KEYS, *COUNTERS))
SUMS = ", ".join(f"sum({each})" for each in COUNTERS)
TOTALS = f"SELECT hour, {NAMES} FROM hourly_usage WHERE region = 'us' ORDER BY 1, 2, 3, 4, 5"
LEDGER = f"""
    SELECT {{hour}}, {", ".join(KEYS)}, count(*), {", ".join(f"sum({each})" for each in TOKENS)},
        {", ".join(f"sum(CASE WHEN {OUTCOME_CASES[each]} THEN 1 ELSE 0 END)" for each in OUTCOMES)}
    FROM ledger GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
"""
HOUR = {"sqlite": "CAST(settled_at / 3600 AS INTEGER) * 3600", "postgres": "hour_of(settled_at)"}
DIALECTS = {"sqlite": SQLITE, "postgres": POSTGRES}


def charge(number, at, *, reserved_at=None, region="us", tenant="acme", key="k", outcome="stop", correction=False):
    change = charged(number, outcome=outcome, output=0 if outcome == OUTCOME_LOST else number % 50)
    own = replace(change.charge.reservation.request, tenant_id=tenant, key_id=key)
    reserved = replace(
        change.charge.reservation,
        request=own,
        reservation_id=f"r-{number:06}",
        reserved_at=float(at if reserved_at is None else reserved_at),
    )
    spent = {"settled_at": float(at), "is_correction": correction, "region": region}
    spent |= {"prompt_tokens": 0} if outcome == OUTCOME_LOST else {"cached_tokens": 3, "price_nanos": 2**40 + number}
    return change._replace(charge=replace(change.charge, reservation=reserved, **spent), balance=Balance(tenant))


class Place:
    """The store of one region, which can be restarted."""

    def __init__(self, kind, location, retention=None, *, reports_usage=False):
        self.kind, self.location = kind, location
        self._retention = retention or Retention()
        self._reports_usage = reports_usage
        self.stored = SqliteStore(location) if kind == "sqlite" else PostgresStore(location)
        self._names = iter(range(1_000))
        self.open()

    def open(self):
        reports = {"reports_usage": self._reports_usage}
        if self.kind == "sqlite":
            self.backend = SqliteBackend(self.location, self._retention, **reports)
        else:
            name = f"auth-{next(self._names)}"
            self.backend = PostgresBackend(parse_location(self.location), self._retention, name, **reports)
        self.backend.open()
        self.commit(*(PutTenant(Tenant(tenant_id=each)) for each in ("acme", "blue")))

    def close(self):
        self.backend.close()

    def restart(self):
        self.close()
        self.open()

    def empty(self):
        """Delete all usage; a new database for each history would take a second."""
        statements = [f"DELETE FROM {each}" for each in ("ledger", "hourly_usage", "daily_usage")]
        if self.kind == "postgres":
            administer(self.location, *statements)
        else:
            with closing(sqlite3.connect(self.location, isolation_level=None)) as raw:
                for each in statements:
                    raw.execute(each)

    def commit(self, *changes):
        assert self.backend.commit([(each, lambda _: None) for each in changes]) is None

    def roll(self, now):
        while self.backend.roll_up.run_slice(now):
            pass

    def unreported(self, until=START + 90 * DAY_S, limit=500, region="us"):
        statement = unreported_statement(region, until, limit, DIALECTS[self.kind])
        connect = usage_connections(parse_location(self.location))
        with closing(connect(5.0)) as connection:
            rows = connection.rows(*statement)
        return [RegionTotal(*row[:4], tuple(row[4:-1]), row[-1]) for row in rows]

    def totals(self):
        return [tuple(map(plain, row)) for row in self.stored.rows(TOTALS)]

    def nonzero(self):
        return [row for row in self.totals() if any(row[5:])]

    def ledger(self):
        return [tuple(map(plain, row)) for row in self.stored.rows(LEDGER.format(hour=HOUR[self.kind]))]

    def sums(self, table):
        return [tuple(map(plain, row)) for row in self.stored.rows(f"SELECT {SUMS} FROM {table} WHERE region = 'us'")]


def plain(value):
    return value if isinstance(value, str) else int(value or 0)


@contextmanager
def places(kind, tmp_path, postgres, **retentions):
    """A spending region and its home, each with a store of one kind."""
    with ExitStack() as stack:
        locations = [
            str(tmp_path / f"{name}.sqlite") if kind == "sqlite" else stack.enter_context(new_database(postgres))
            for name in ("us", "eu")
        ]
        us = Place(kind, locations[0], retentions.get("us"), reports_usage=True)
        stack.callback(us.close)
        eu = Place(kind, locations[1], retentions.get("eu"))
        stack.callback(eu.close)
        yield us, eu


def report(us, eu, *, now=START + 90 * DAY_S, limit=500, insert_from=0):
    """Report what is marked until nothing is."""
    while found := us.unreported(limit=limit):
        totals = totals_of(report_of(1, found))
        eu.commit(PutTotals("us", totals, insert_from))
        us.commit(ConfirmTotals("us", tuple(found)))


# What happens next: a charge, its correction, or a part of a report; and the restart of either side.
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("charge"),
            st.sampled_from([0, 60, HOUR_S]),
            st.sampled_from(["stop", "failed", OUTCOME_LOST]),
            st.sampled_from(["acme", "blue"]),
            st.just("k"),
        ),
        st.tuples(st.just("correct"), st.sampled_from([0, HOUR_S])),
        st.tuples(st.just("read"), st.integers(1, 4)),
        st.tuples(st.just("deliver"), st.integers(0, 3)),
        st.tuples(st.just("confirm"), st.integers(0, 3)),
        st.tuples(st.just("restart"), st.sampled_from(["us", "eu"])),
    ),
    min_size=10,
    max_size=40,
)


class History:
    """Steps in a region and at its home. Reports are delivered and confirmed in any order, several times, or never."""

    def __init__(self, us, eu):
        self.us, self.eu = us, eu
        self.number = 0
        self.lost = []  # charges that may be corrected
        self.reports = []  # those that were read, of former streams too
        self.delivered = []

    def step(self, kind, *values):
        getattr(self, kind)(*values)

    def charge(self, after, outcome, tenant, key):
        self.number += 1
        change = charge(self.number, START + after, outcome=outcome, tenant=tenant, key=key)
        self.us.commit(change)
        if outcome == OUTCOME_LOST:
            self.lost.append(change.charge)

    def correct(self, after):
        if self.lost:
            lost = self.lost.pop(0)
            request = lost.reservation.request
            number, at = int(lost.reservation.reservation_id[2:]), lost.settled_at + after
            names = {"tenant": request.tenant_id, "key": request.key_id, "reserved_at": lost.reservation.reserved_at}
            self.us.commit(charge(number, at, correction=True, outcome="cancelled", **names))

    def restart(self, name):
        (self.us if name == "us" else self.eu).restart()

    # `read`, `deliver` and `confirm` are one report each; the places count from the newest one.
    def read(self, limit):
        if found := self.us.unreported(limit=limit):
            self.reports.append(found)
            self.deliver(0)

    def deliver(self, place):
        if place < len(self.reports):
            found = self.reports[-1 - place]
            self.eu.commit(PutTotals("us", totals_of(report_of(1, found)), 0))
            self.delivered.append(found)

    def confirm(self, place):
        if place < len(self.delivered):
            self.us.commit(ConfirmTotals("us", tuple(self.delivered[-1 - place])))


@pytest.mark.parametrize("kind", KINDS)
def test_totals_at_the_home_equal_the_ledger_of_the_region(kind, tmp_path, postgres):
    with places(kind, tmp_path, postgres) as (us, eu):

        @settings(max_examples=100 if kind == "sqlite" else 40, deadline=None, suppress_health_check=list(HealthCheck))
        @given(steps=STEPS)
        def check(steps):
            us.empty()
            eu.empty()
            history = History(us, eu)
            for name, *values in steps:
                history.step(name, *values)
            report(us, eu, limit=3)
            for found in history.reports:  # late, from streams that were lost
                eu.commit(PutTotals("us", tuple(found), 0))
            assert us.nonzero() == us.ledger()
            assert eu.totals() == us.totals()
            assert us.unreported() == []

        check()


@pytest.fixture(params=KINDS)
def pair(request, tmp_path, postgres):
    with places(request.param, tmp_path, postgres) as found:
        yield found


def test_a_charge_after_a_report_was_read_is_reported_again(pair):
    us, eu = pair
    us.commit(charge(1, START))
    found = us.unreported()
    us.commit(charge(2, START + 1))
    eu.commit(PutTotals("us", tuple(found), 0))
    us.commit(ConfirmTotals("us", tuple(found)))
    assert eu.totals() != us.totals()
    report(us, eu)
    assert eu.totals() == us.totals() == us.ledger()


def test_a_correction_that_empties_an_old_hour_reaches_the_home(pair):
    us, eu = pair
    us.commit(charge(7, START, outcome=OUTCOME_LOST))
    report(us, eu)
    us.commit(charge(7, START + 3 * DAY_S, reserved_at=START, correction=True))
    report(us, eu)
    assert [row[0] for row in eu.nonzero()] == [START + 3 * DAY_S]
    assert eu.nonzero() == us.ledger()


def test_totals_of_a_home_are_neither_marked_nor_reported(pair):
    _, eu = pair
    eu.commit(charge(1, START, region="eu"), charge(2, START, region="eu", outcome=OUTCOME_LOST))
    eu.commit(charge(2, START + HOUR_S, reserved_at=START, region="eu", correction=True))
    assert {tuple(map(int, row)) for row in eu.stored.rows("SELECT revision, is_unreported FROM hourly_usage")} == {
        (0, 0)
    }
    assert eu.unreported(region="eu") == []


def test_a_region_replaces_its_own_totals_alone(pair):
    us, eu = pair
    eu.commit(charge(1, START, region="eu"), charge(2, START, region="eu"))
    us.commit(charge(3, START))
    report(us, eu)
    by_region = "SELECT region, requests, output_tokens FROM hourly_usage ORDER BY region"
    assert eu.stored.rows(by_region) == [("eu", 2, 3), ("us", 1, 3)]


def test_a_report_changes_no_budget_no_balance_and_no_catalog(pair):
    us, eu = pair
    tables = ["balances", "scope_uses", "ledger", *(["catalog"] if eu.kind == "postgres" else [])]
    before = [eu.stored.rows(f"SELECT * FROM {each}") for each in tables]
    us.commit(charge(1, START))
    report(us, eu)
    assert [eu.stored.rows(f"SELECT * FROM {each}") for each in tables] == before


def test_a_late_total_of_an_hour_that_became_a_day_is_not_counted_twice(kind_and_places):
    us, eu = kind_and_places(eu=Retention(max_hour_age=10 * DAY_S))
    us.commit(charge(1, START, outcome=OUTCOME_LOST), charge(2, START + 9 * DAY_S))
    report(us, eu)
    now = START + 11 * DAY_S
    eu.roll(now)
    assert eu.stored.rows("SELECT requests, lost FROM daily_usage") == [(1, 1)]
    us.commit(charge(3, START + 60), charge(4, START + 9 * DAY_S + 60))
    report(us, eu, insert_from=now - 10 * DAY_S)
    assert eu.sums("daily_usage") == [(1, 0, 0, 0, 0, 0, 0, 0, 0, 1)]
    assert [(row[0], row[5]) for row in eu.totals()] == [(START + 9 * DAY_S, 2)]


def test_an_old_hour_that_has_not_become_a_day_is_still_replaced(kind_and_places):
    us, eu = kind_and_places()
    us.commit(charge(1, START))
    report(us, eu)
    us.commit(charge(2, START + 60), charge(3, START + 90, key="other"))
    report(us, eu, insert_from=START + DAY_S)
    assert [(row[2], row[5]) for row in eu.totals()] == [("k", 2)]


def test_an_hour_becomes_a_day_in_its_region_once_it_is_reported(kind_and_places):
    us, eu = kind_and_places(us=Retention(max_hour_age=DAY_S))
    us.commit(*(charge(number, START + number * HOUR_S) for number in range(5)))
    us.roll(START + 30 * DAY_S)
    assert us.sums("daily_usage") == [(0,) * len(COUNTERS)]
    report(us, eu)
    before = us.totals()
    us.roll(START + 30 * DAY_S + 60)
    assert us.totals() == []
    assert us.unreported() == []
    assert eu.totals() == before
    assert us.sums("daily_usage") == eu.sums("hourly_usage")


@pytest.fixture(params=KINDS)
def kind_and_places(request, tmp_path, postgres):
    with ExitStack() as stack:
        yield lambda **retentions: stack.enter_context(places(request.param, tmp_path, postgres, **retentions))


def test_hours_outlive_the_rows_whose_corrections_change_them():
    assert correctable_hours(Retention(max_age=30 * DAY_S, max_hour_age=DAY_S)).max_hour_age == 34 * DAY_S
    assert correctable_hours(Retention(max_age=30 * DAY_S, max_hour_age=90 * DAY_S)).max_hour_age == 90 * DAY_S


def test_marked_totals_are_found_over_their_index(pair):
    us, _ = pair
    us.commit(*(charge(number, START + number * HOUR_S) for number in range(40)))
    statement, values = unreported_statement("us", START, 500, DIALECTS[us.kind])
    if us.kind == "sqlite":
        with closing(sqlite3.connect(us.location)) as raw:
            plan = [str(row) for row in raw.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    else:
        for name, value in values.items():
            statement = statement.replace(f"%({name})s", f"'{value}'" if isinstance(value, str) else str(value))
        administer(
            us.location,
            f"""INSERT INTO hourly_usage (tenant_id, hour, key_id, model, region)
            SELECT 'acme', {START - 10**7} + n * 3600, 'k', 'm', 'us' FROM generate_series(1, 2000) AS n""",
            "ANALYZE hourly_usage",
        )
        plan = [str(row) for row in administer(us.location, f"EXPLAIN {statement}")]
    assert any("hourly_usage_unreported" in row for row in plan), plan


def test_a_confirmation_waits_for_no_other_transaction(database):
    us = Place("postgres", database, reports_usage=True)
    try:
        us.commit(charge(1, START), charge(2, START, key="other"))
        found = us.unreported()
        with psycopg.connect(database) as other:
            other.execute("UPDATE hourly_usage SET requests = requests WHERE key_id = 'k'")
            us.commit(ConfirmTotals("us", tuple(found)))
        assert [each.key_id for each in us.unreported()] == ["k"]
    finally:
        us.close()
