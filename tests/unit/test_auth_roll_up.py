"""Retention of the ledger and its totals: every charge is counted once, and the file stays within the stated size."""

import random
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.reservation import OUTCOME_LOST, Charge, Reservation, ReservationRequest
from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.store import roll_up
from penstock.auth.store.roll_up import SLICE_ROWS, SLICE_TARGET_S, LedgerRollUp, Retention
from penstock.auth.store.sqlite import sql
from penstock.auth.store.sqlite.connection import connect
from penstock.auth.store.sqlite.ledger import SqliteLedger
from penstock.auth.store.store import Charged, PutTenant

START = 1_798_761_600.0  # 2027-01-01 UTC
DAY_S = 86_400.0
ROW_BYTES, HOURLY_BYTES, DAILY_BYTES, FIXED_BYTES = 300, 250, 150, 200_000  # as docs/operations/tenants.md states


@pytest.fixture
def connection(tmp_path):
    with closing(connect(str(tmp_path / "auth.sqlite"))) as opened:
        for tenant_id in ("acme", "blue"):
            sql.apply(opened, PutTenant(Tenant(tenant_id=tenant_id)))
        yield opened


def charge(number, at, *, tenant="acme", key="k", model="m", prompt=10, output=7, outcome="stop", **more) -> Charge:
    request = ReservationRequest(
        request_id=f"{number:032x}",
        tenant_id=tenant,
        key_id=key,
        edge_id="edge-1a2b3c4d",
        model=model,
        prompt_tokens=prompt,
        max_output_tokens=200,
        fingerprint=b"f" * 16,
    )
    reservation = Reservation(
        reservation_id=f"{int(at * 1_000):012x}{number:020x}", request=request, reserved_at=at, expires_at=at + 9e4
    )
    spent = {"prompt_tokens": prompt, "output_tokens": output, "made_tokens": output}
    return Charge(reservation=reservation, outcome=outcome, settled_at=at, **spent, **more)


def write(connection, rolling, *charges):
    for each in charges:
        change = Charged(each, Balance(each.reservation.request.tenant_id))
        sql.apply(connection, change)
        rolling.count([(change, lambda _: None)])


def rolled_up(connection, rolling, now):
    for _ in range(10_000):
        before = rolling.rows
        if not rolling.run_slice(now) and rolling.rows == before:
            return
    pytest.fail("the roll-up does not end")


def count(connection):
    return connection.execute("SELECT count(*) FROM ledger").fetchone()[0]


def usage(connection, columns="requests, prompt_tokens, output_tokens"):
    return connection.execute(f"SELECT {columns} FROM usage ORDER BY day, tenant_id, key_id, model").fetchall()


def test_rows_are_deleted_and_hours_become_days_when_their_retention_ends(connection):
    rolling = LedgerRollUp(SqliteLedger(connection), Retention(max_age=10 * DAY_S, max_hour_age=10 * DAY_S))
    names = [("acme", "k1", "m"), ("acme", "k2", "m"), ("blue", "k3", "m"), ("blue", "k3", "n")]
    for day in range(3):
        for number, (tenant, key, model) in enumerate(names * 5):
            at = START + day * DAY_S + number
            write(connection, rolling, charge(100 * day + number, at, tenant=tenant, key=key, model=model))
    before = usage(connection, "*")
    assert len(before) == 3 * len(names)
    rolled_up(connection, rolling, START + 11 * DAY_S + DAY_S / 2)  # the first two days are older
    assert (count(connection), rolling.rows) == (20, 20)
    assert usage(connection, "*") == before
    columns = "day, tenant_id, key_id, model, requests, prompt_tokens, output_tokens, cached_tokens, price_nanos"
    stored = connection.execute(f"SELECT {columns} FROM daily_usage ORDER BY day, tenant_id, key_id, model").fetchall()
    assert stored == before[:8]
    assert stored[0][:7] == ("2027-01-01", "acme", "k1", "m", 5, 50, 35)
    assert connection.execute("SELECT min(hour), sum(requests) FROM hourly_usage").fetchone() == (START + 2 * DAY_S, 20)


def test_the_oldest_rows_are_rolled_up_above_the_most_rows(connection):
    rolling = LedgerRollUp(SqliteLedger(connection), Retention(max_rows=50))
    write(connection, rolling, *(charge(number, START + number) for number in range(200)))
    rolled_up(connection, rolling, START)
    assert 50 <= count(connection) < 50 + SLICE_ROWS[0]
    assert connection.execute("SELECT max(settled_at) FROM ledger").fetchone() == (START + 199,)
    assert usage(connection) == [(200, 2_000, 1_400)]


def test_rows_of_one_moment_are_each_counted_once(connection):
    rolling = LedgerRollUp(SqliteLedger(connection), Retention(max_age=1.0))
    write(connection, rolling, *(charge(number, START) for number in range(300)))
    rolled_up(connection, rolling, START + 2.0)
    assert count(connection) == 0
    assert usage(connection) == [(300, 3_000, 2_100)]


def test_a_correction_of_a_lost_row_is_exact_before_and_after_its_roll_up(connection):
    rolling = LedgerRollUp(SqliteLedger(connection), Retention(max_age=DAY_S))
    lost = [charge(number, START, prompt=0, output=0, outcome=OUTCOME_LOST) for number in range(2)]
    write(connection, rolling, *lost)
    late = [
        replace(charge(number, START, is_correction=True), reservation=lost[number].reservation) for number in (0, 1)
    ]
    write(connection, rolling, late[0])
    assert usage(connection) == [(2, 10, 7)]
    rolled_up(connection, rolling, START + 2 * DAY_S)
    assert (count(connection), rolling.rows) == (0, 0)
    write(connection, rolling, late[1])
    assert usage(connection) == [(2, 20, 14)]


def test_lost_rows_that_an_edge_may_settle_stay_rows_above_the_most_rows(connection, monkeypatch):
    monkeypatch.setattr(roll_up, "MAX_LOST_RESERVATIONS", 100)
    rolling = LedgerRollUp(SqliteLedger(connection), Retention(max_rows=0))
    write(connection, rolling, *(charge(number, START + number, outcome=OUTCOME_LOST) for number in range(150)))
    write(connection, rolling, *(charge(number, START + number) for number in range(150, 200)))
    rolled_up(connection, rolling, START)
    assert connection.execute("SELECT DISTINCT outcome FROM ledger").fetchall() == [(OUTCOME_LOST,)]
    assert 100 <= count(connection) <= 101
    assert usage(connection, "requests") == [(200,)]


def test_a_slice_that_takes_too_long_is_followed_by_smaller_ones(connection):
    took = iter([0.0, 4 * SLICE_TARGET_S] * 3 + [0.0, 0.0] * 100)
    at = [0.0]

    def timer():
        at[0] += next(took)
        return at[0]

    rolling = LedgerRollUp(SqliteLedger(connection), Retention(max_age=1.0), slice_rows=SLICE_ROWS[1], timer=timer)
    write(connection, rolling, *(charge(number, START + number / 1e3) for number in range(1_000)))
    sizes = []
    while rolling.rows:
        sizes.append(rolling.slice_rows)
        assert rolling.run_slice(START + 10.0) or not rolling.rows
    assert sizes[:5] == [128, 64, 32, 16, 32]
    assert usage(connection, "requests") == [(1_000,)]


def test_a_slice_is_all_or_nothing(connection, monkeypatch):
    rolling = LedgerRollUp(SqliteLedger(connection), Retention(max_age=1.0))
    write(connection, rolling, *(charge(number, START) for number in range(10)))
    connection.execute("CREATE TRIGGER full BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, 'full'); END")
    assert not rolling.run_slice(START + 10.0)
    assert (count(connection), rolling.rows) == (10, 10)
    assert connection.execute("SELECT count(*) FROM daily_usage").fetchone() == (0,)
    connection.execute("DROP TRIGGER full")
    rolled_up(connection, rolling, START + 10.0)
    assert usage(connection) == [(10, 100, 70)]


def test_a_year_of_charges_stays_within_the_stated_size_and_its_totals_are_exact(connection, tmp_path):
    """100 charges a day and at most 2,000 rows, in place of 100 a second and 2,000,000 rows.

    The bound is the documented one: it depends on the most rows and on the totals of a day, not on the rate.
    """
    rng, most, per_day = random.Random(7), 2_000, 100
    rolling = LedgerRollUp(SqliteLedger(connection), Retention(30 * DAY_S, most, max_hour_age=30 * DAY_S))
    totals, largest, number = {"acme": [0, 0, 0], "blue": [0, 0, 0]}, 0, 0
    for day in range(365):
        connection.execute("BEGIN")
        for _ in range(per_day):
            number += 1
            tenant, prompt, output = rng.choice(["acme", "blue"]), rng.randrange(2**31), rng.randrange(2**20)
            at = START + day * DAY_S + rng.random() * DAY_S
            write(connection, rolling, charge(number, at, tenant=tenant, prompt=prompt, output=output))
            for index, amount in enumerate((1, prompt, output)):
                totals[tenant][index] += amount
        connection.execute("COMMIT")
        rolled_up(connection, rolling, START + (day + 1) * DAY_S)
        largest = max(largest, (tmp_path / "auth.sqlite").stat().st_size)
    days = connection.execute("SELECT count(*) FROM daily_usage").fetchone()[0]
    hours = connection.execute("SELECT count(*) FROM hourly_usage").fetchone()[0]
    assert 2 * 330 <= days <= 2 * 365
    assert 2 * 500 <= hours <= 2 * 24 * 30
    assert largest <= (most + per_day) * ROW_BYTES + hours * HOURLY_BYTES + days * DAILY_BYTES + FIXED_BYTES
    assert count(connection) < most + SLICE_ROWS[0]
    sums = "SELECT tenant_id, sum(requests), sum(prompt_tokens), sum(output_tokens) FROM usage GROUP BY tenant_id"
    assert {tenant: list(found) for tenant, *found in connection.execute(sums)} == totals
    assert totals["acme"][1] > 2**32


def test_a_file_of_the_second_release_gets_totals_and_keeps_its_rows(tmp_path):
    path = tmp_path / "auth.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        for version, script in enumerate(sql.MIGRATIONS[:2], 1):
            old.executescript(f"BEGIN; {script} PRAGMA user_version = {version}; COMMIT;")
        old.execute("INSERT INTO tenants VALUES ('acme', 2, 1.0, 0, 0, 0)")
        values = "'r', 'q', 'acme', 'k', 'e', 'm', 10, 200, ?, ?, ?, 10, 7, 'stop', '', 0, x'', 7"
        old.execute(f"INSERT INTO ledger VALUES ({values})", (START, START, START))
    with closing(connect(str(path))) as opened:
        rolling = LedgerRollUp(SqliteLedger(opened), Retention(max_age=1.0))
        assert (rolling.rows, usage(opened)) == (1, [(1, 10, 7)])
        rolled_up(opened, rolling, START + 10.0)
        assert (count(opened), usage(opened)) == (0, [(1, 10, 7)])


def test_a_file_of_the_former_version_keeps_its_rows_and_totals(tmp_path):
    path = tmp_path / "auth.sqlite"
    columns = "day, tenant_id, key_id, model, requests, prompt_tokens, output_tokens"
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        for version, script in enumerate(sql.MIGRATIONS[:5], 1):
            old.executescript(f"BEGIN; {script} PRAGMA user_version = {version}; COMMIT;")
        old.execute("INSERT INTO tenants VALUES ('acme', 2, 1.0, 0, 0, 0, NULL)")
        for number in range(100):
            at, outcome = START + number * 3_000, "lost" if number % 9 == 0 else "stop"
            spent = (at, 0 if outcome == "lost" else 10, number, outcome)
            row = (f"r-{number}", "q", "acme", "k", "e", "m", 10, 200, at, at, *spent, "", 0, b"", number)
            old.execute(f"INSERT INTO ledger VALUES ({', '.join('?' * len(row))})", row)
        old.execute("INSERT INTO daily_usage VALUES ('2027-01-01', 'acme', 'k', 'm', 5, 50, 35)")
        before = old.execute(f"SELECT {columns} FROM usage ORDER BY 1, 2, 3, 4").fetchall()
    with closing(connect(str(path))) as opened:
        assert usage(opened, columns) == before
        assert count(opened) == 100
        outcomes = "SELECT sum(requests), sum(completed), sum(lost) FROM hourly_usage"
        assert opened.execute(outcomes).fetchone() == (100, 88, 12)
        rolling = LedgerRollUp(SqliteLedger(opened), Retention(max_age=1.0, max_hour_age=1.0))
        rolled_up(opened, rolling, START + 100 * DAY_S)
        assert (count(opened), usage(opened, columns)) == (0, before)
        assert opened.execute("SELECT count(*) FROM hourly_usage").fetchone() == (0,)
