"""Totals and retention in both stores: the same charges become the same totals, which equal the sum of the rows."""

import re
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.reservation import OUTCOME_LOST
from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.store.postgres import ledger as postgres_ledger
from penstock.auth.store.postgres.backend import PostgresBackend
from penstock.auth.store.postgres.latest_rows import latest_charges, latest_lost
from penstock.auth.store.postgres.schema import MIGRATIONS as POSTGRES_MIGRATIONS
from penstock.auth.store.roll_up import KEEP_ALL, Retention
from penstock.auth.store.sqlite.backend import SqliteBackend
from penstock.auth.store.store import PutTenant
from penstock.auth.store.totals import COUNTERS, KEYS, OUTCOME_CASES, OUTCOMES, TOKENS
from penstock.chassis.database.location import parse_location
from store_changes import charged
from stores import PostgresStore, SqliteStore, administer, new_database

START = 1_798_761_600.0  # 2027-01-01 UTC
HOUR_S, DAY_S = 3_600.0, 86_400.0
TENANTS = ("acme", "blue")
NAMES = ", ".join((*KEYS, *COUNTERS))
HOURS = f"SELECT hour, {NAMES} FROM hourly_usage WHERE requests <> 0 OR prompt_tokens <> 0 ORDER BY 1, 2, 3, 4, 5"
ROW_TOTALS = f"""
    SELECT {{hour}}, {", ".join(KEYS)}, count(*), {", ".join(f"sum({each})" for each in TOKENS)},
        {", ".join(f"sum(CASE WHEN {OUTCOME_CASES[each]} THEN 1 ELSE 0 END)" for each in OUTCOMES)}
    FROM ledger GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
"""
HOUR = {"sqlite": "CAST(settled_at / 3600 AS INTEGER) * 3600", "postgres": "hour_of(settled_at)"}
PARTITIONS = "SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE inhparent = 'ledger'::regclass"


@contextmanager
def opened(backend):
    backend.open()
    try:
        commit(backend, *(PutTenant(Tenant(tenant_id=tenant_id)) for tenant_id in TENANTS))
        yield backend
    finally:
        backend.close()


def postgres_backend(database, retention=KEEP_ALL):
    return opened(PostgresBackend(parse_location(database), retention, "auth"))


@contextmanager
def both(tmp_path, database, retention=KEEP_ALL):
    with ExitStack() as stack:
        sqlite = stack.enter_context(opened(SqliteBackend(str(tmp_path / "auth.sqlite"), retention)))
        yield sqlite, stack.enter_context(postgres_backend(database, retention))


def commit(backend, *changes):
    assert backend.commit([(each, lambda _: None) for each in changes]) is None


def roll(backend, now):
    while backend.roll_up.run_slice(now):
        pass


def charge(number, at, *, reserved_at=None, tenant="acme", key="k", model="m", outcome="stop", correction=False):
    change = charged(number, outcome=outcome, output=0 if outcome == OUTCOME_LOST else number % 50)
    request = replace(change.charge.reservation.request, tenant_id=tenant, key_id=key, model=model)
    reserved = at if reserved_at is None else reserved_at
    reservation = replace(
        change.charge.reservation, request=request, reservation_id=f"r-{number:06}", reserved_at=reserved
    )
    spent = {"settled_at": at, "is_correction": correction, "region": "north"}
    if outcome == OUTCOME_LOST:
        spent |= {"prompt_tokens": 0}
    else:
        spent |= {"cached_tokens": 3, "price_nanos": 2**40 + number, "worker": "worker-1"}
    return change._replace(charge=replace(change.charge, reservation=reservation, **spent), balance=Balance(tenant))


def row_totals(stored, kind):
    return [tuple(map(int_of, row)) for row in stored.rows(ROW_TOTALS.format(hour=HOUR[kind]))]


def int_of(value):
    return value if isinstance(value, str) else int(value)


def names():
    return st.fixed_dictionaries(
        {"tenant": st.sampled_from(TENANTS), "key": st.sampled_from("ab"), "model": st.sampled_from("mn")}
    )


EVENTS = st.lists(
    st.tuples(
        st.floats(0, 4 * DAY_S, allow_subnormal=False),
        st.sampled_from(["stop", "length", "cancelled", "shed", "failed", OUTCOME_LOST, OUTCOME_LOST]),
        names(),
        st.floats(0, 2 * DAY_S, allow_subnormal=False) | st.none(),  # until the correction of a lost one
    ),
    min_size=1,
    max_size=40,
)


def history(events):
    """Return charges in the order of their settlement."""
    changes = []
    for number, (after, outcome, named, corrected_after) in enumerate(events):
        at = START + after
        changes.append((at, number, charge(number, at, reserved_at=at - 60.0, outcome=outcome, **named)))
        if outcome == OUTCOME_LOST and corrected_after is not None:
            late = {"reserved_at": at - 60.0, "correction": True, "outcome": "cancelled", **named}
            changes.append((at + corrected_after, number, charge(number, at + corrected_after, **late)))
    return [change for *_, change in sorted(changes, key=lambda each: (each[0], each[2].charge.is_correction))]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=EVENTS, size=st.integers(1, 20))
def test_hourly_totals_equal_the_sum_of_the_rows_in_both_stores(tmp_path_factory, postgres, events, size):
    tmp_path, changes = tmp_path_factory.mktemp("store"), history(events)
    with new_database(postgres) as database:
        with both(tmp_path, database) as backends:
            for each in backends:
                roll(each, START)  # so that the first days have partitions, and later ones have none
                for first in range(0, len(changes), size):
                    commit(each, *changes[first : first + size])
        stores = {"sqlite": SqliteStore(str(tmp_path / "auth.sqlite")), "postgres": PostgresStore(database)}
        totals = {kind: stored.rows(HOURS) for kind, stored in stores.items()}
        assert totals["postgres"] == totals["sqlite"]
        for kind, stored in stores.items():
            assert totals[kind] == row_totals(stored, kind)
        assert sum(row[5] for row in totals["sqlite"]) == len(events)


def test_a_charge_that_is_written_again_is_counted_once(tmp_path, database):
    with both(tmp_path, database) as backends:
        for each in backends:
            for _ in range(2):
                commit(each, charge(1, START), charge(2, START + HOUR_S))
    for stored in (SqliteStore(str(tmp_path / "auth.sqlite")), PostgresStore(database)):
        assert stored.rows("SELECT requests, completed, prompt_tokens FROM hourly_usage") == [(1, 1, 10)] * 2


def test_a_correction_moves_its_request_to_its_own_hour_and_day(tmp_path, database):
    lost = charge(7, START, outcome=OUTCOME_LOST)
    late = charge(7, START + DAY_S + 5 * HOUR_S, reserved_at=START, correction=True)
    with both(tmp_path, database) as backends:
        for each in backends:
            roll(each, START)
            commit(each, lost)
            commit(each, late)
    for stored in (SqliteStore(str(tmp_path / "auth.sqlite")), PostgresStore(database)):
        assert [row[0] for row in stored.rows(HOURS)] == [START + DAY_S + 5 * HOUR_S]
        assert stored.rows("SELECT sum(requests), sum(completed), sum(lost) FROM hourly_usage") == [(1, 1, 0)]
        assert stored.rows("SELECT output_tokens, worker, region FROM ledger") == [(7, "worker-1", "north")]


def test_a_day_is_dropped_whole_after_its_retention_and_its_totals_stay(database):
    with postgres_backend(database, Retention(max_age=2 * DAY_S)) as backend:
        for day in range(6):
            now = START + day * DAY_S
            roll(backend, now)
            commit(backend, *(charge(10 * day + number, now + number) for number in range(5)))
        stored = PostgresStore(database)
        assert sorted(name for (name,) in stored.rows(PARTITIONS)) == [
            *(f"ledger_day_2027010{day}" for day in range(3, 9)),
            "ledger_default",
        ]
        assert stored.rows("SELECT count(*) FROM ledger") == [(4 * 5,)]
        assert stored.rows("SELECT sum(requests) FROM usage") == [(30,)]


def test_the_row_of_a_late_settlement_whose_day_was_dropped_is_neither_lost_nor_an_error(database):
    with postgres_backend(database, Retention(max_age=2 * DAY_S)) as backend:
        roll(backend, START)
        commit(backend, charge(1, START, outcome=OUTCOME_LOST), charge(2, START, outcome=OUTCOME_LOST))
        roll(backend, START + 5 * DAY_S)
        stored = PostgresStore(database)
        assert stored.rows("SELECT count(*) FROM ledger") == [(0,)]
        late = START + 5 * DAY_S
        commit(
            backend,
            charge(1, late, reserved_at=START, correction=True),  # of a lost row that is gone
            charge(3, late, reserved_at=START),  # of a reservation that lived until now
            charge(4, late, reserved_at=late),
        )
        assert stored.rows("SELECT reservation_id FROM ledger_default") == [("r-000003",)]
        columns = "sum(requests), sum(completed), sum(lost), sum(output_tokens)"
        assert stored.rows(f"SELECT {columns} FROM hourly_usage") == [(4, 2, 2, 1 + 3 + 4)]
        roll(backend, late + 60.0)
        assert stored.rows("SELECT reservation_id FROM ledger") == [("r-000004",)]
        assert stored.rows(f"SELECT {columns} FROM hourly_usage") == [(4, 2, 2, 1 + 3 + 4)]


def test_rows_in_the_default_partition_move_to_the_partition_of_their_day(database, monkeypatch):
    with postgres_backend(database) as backend:
        commit(backend, *(charge(number, START + number) for number in range(5)))
        commit(backend, *(charge(number, START + DAY_S + number) for number in range(10, 13)))
        monkeypatch.setattr(postgres_ledger, "MAX_MOVED_ROWS", 4)  # a day with more stays in the default partition
        roll(backend, START)
        stored = PostgresStore(database)
        partition = "SELECT tableoid::regclass::text, count(*) FROM ledger GROUP BY 1 ORDER BY 1"
        assert stored.rows(partition) == [("ledger_day_20270102", 3), ("ledger_default", 5)]
        commit(backend, charge(20, START + 20), charge(21, START + 2 * DAY_S))
        assert stored.rows("SELECT count(*) FROM ledger") == [(10,)]


def test_a_query_that_holds_the_ledger_delays_the_drop_and_not_the_writer(database):
    with postgres_backend(database, Retention(max_age=1.0)) as backend:
        roll(backend, START)
        commit(backend, charge(1, START))
        with closing(psycopg.connect(database)) as reader:
            reader.execute("SELECT count(*) FROM ledger").fetchall()
            roll(backend, START + 10 * DAY_S)
            commit(backend, charge(2, START + 10 * DAY_S))
            assert PostgresStore(database).rows("SELECT count(*) FROM ledger_day_20270101") == [(1,)]
        roll(backend, START + 10 * DAY_S + 60.0)
        assert ("ledger_day_20270101",) not in PostgresStore(database).rows(PARTITIONS)


def test_old_hours_become_days_in_both_stores(tmp_path, database):
    with both(tmp_path, database, Retention(max_hour_age=DAY_S)) as backends:
        for each in backends:
            commit(each, *(charge(number, START + number * HOUR_S) for number in range(72)))
            roll(each, START + 3 * DAY_S)
    found = []
    for stored in (SqliteStore(str(tmp_path / "auth.sqlite")), PostgresStore(database)):
        assert stored.rows("SELECT count(*) FROM hourly_usage") == [(24,)]
        assert stored.rows("SELECT requests, completed FROM daily_usage ORDER BY day") == [(24, 24)] * 2
        found.append(stored.rows(f"SELECT day, {NAMES} FROM daily_usage ORDER BY day"))
        assert stored.rows("SELECT sum(requests), sum(output_tokens) FROM usage") == [
            (72, sum(range(50)) + sum(range(22)))
        ]
    assert found[0] == found[1]


def test_a_slice_that_fails_changes_nothing(database):
    with postgres_backend(database, Retention(max_hour_age=1.0)) as backend:
        commit(backend, *(charge(number, START) for number in range(10)))
        stored = PostgresStore(database)
        administer(database, "ALTER TABLE daily_usage ADD CONSTRAINT none CHECK (requests < 0) NOT VALID")
        roll(backend, START + DAY_S)
        assert stored.rows("SELECT sum(requests) FROM hourly_usage") == [(10,)]
        administer(database, "ALTER TABLE daily_usage DROP CONSTRAINT none")
        roll(backend, START + DAY_S + 60.0)
        assert stored.rows("SELECT count(*) FROM hourly_usage") == [(0,)]
        assert stored.rows("SELECT requests, prompt_tokens, output_tokens FROM daily_usage") == [(10, 100, 45)]


FIRST_VERSION_ROW = """
    INSERT INTO ledger SELECT 'r-' || n, 'q', 'acme', 'k', 'e', 'm', 10, 20, {at}, {at} + 9e4, {at} + 1, 10, n % 7,
    CASE n % 10 WHEN 0 THEN 'lost' ELSE 'stop' END, '', 0, '', n % 7, n % 64 FROM generate_series(1, 200) AS n
"""


def test_a_database_of_the_first_version_keeps_its_rows_and_totals(database):
    administer(
        database,
        POSTGRES_MIGRATIONS[0],
        "CREATE TABLE penstock_schema (version integer NOT NULL)",
        "INSERT INTO penstock_schema VALUES (1)",
        "INSERT INTO tenants VALUES ('acme', 2, 1.0, 0, 0, 0)",
        FIRST_VERSION_ROW.format(at=f"{START} + n * 3600.0"),
        "INSERT INTO daily_usage VALUES ('2026-12-31', 'acme', 'k', 'm', 3, 30, 21)",
    )
    columns = "day, tenant_id, key_id, model, requests, prompt_tokens, output_tokens"
    usage = f"SELECT {columns} FROM usage ORDER BY day"
    stored = PostgresStore(database)
    before, rows = stored.rows(usage), stored.rows("SELECT reservation_id, settled_at FROM ledger ORDER BY 1")
    with opened(PostgresBackend(parse_location(database), Retention(max_age=DAY_S), "auth")) as backend:
        assert stored.rows(usage) == before
        assert stored.rows("SELECT reservation_id, settled_at FROM ledger ORDER BY 1") == rows
        assert row_totals(stored, "postgres") == [tuple(map(int_of, row)) for row in stored.rows(HOURS)]
        [(former,)] = [row for row in stored.rows(PARTITIONS) if row != ("ledger_default",)]
        assert former == "ledger_until_20270110"
        commit(backend, charge(300, START + 5 * DAY_S), charge(301, START + 20 * DAY_S))
        roll(backend, START + 10 * DAY_S)
        assert stored.rows("SELECT count(*) FROM ledger") == [(202,)]
        roll(backend, START + 12 * DAY_S)  # the retention of the latest row of the former ledger has ended
        assert stored.rows("SELECT reservation_id FROM ledger") == [("r-000301",)]
        assert stored.rows("SELECT sum(requests) FROM usage") == [(205,)]


def test_a_start_reads_the_latest_rows_over_an_index(database):
    with postgres_backend(database) as backend:
        for day in range(4):
            roll(backend, START + day * DAY_S)
        administer(
            database,
            f"""INSERT INTO ledger SELECT 'r-' || n, 'q', 'acme', 'k', 'e', 'm', 1, 1, {START} + n * 10.0, n,
            {START} + n * 10.0, 1, 1, CASE n % 10 WHEN 0 THEN 'lost' ELSE 'stop' END, '', 0, '', 1, n % 64
            FROM generate_series(1, 30000) AS n""",
            "ANALYZE ledger",
        )
        filled = re.compile("Seq Scan on ledger_day_2027010[1-4]")  # the others are empty
        for condition in ("<>", "="):
            plan = administer(
                database,
                f"""EXPLAIN SELECT latest.* FROM unnest('{{3,4}}'::smallint[]) AS owned (number) CROSS JOIN LATERAL (
                SELECT * FROM ledger WHERE ledger.partition = owned.number AND outcome {condition} 'lost'
                AND settled_at >= 0 ORDER BY settled_at DESC, reservation_id DESC LIMIT 100) AS latest""",
            )
            assert not any(filled.search(line) for (line,) in plan), plan
            assert sum("Index" in line for (line,) in plan) >= 4


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.floats(0, 3 * DAY_S), st.sampled_from([1, 2, 63]), st.booleans()), max_size=60),
    count=st.integers(1, 20),
)
def test_the_latest_rows_of_some_partitions_are_the_newest_ones_in_order(postgres, rows, count):
    with new_database(postgres) as database, postgres_backend(database) as backend:
        roll(backend, START)
        values = [
            (f"r-{number:03}", START + after, START + after, "lost" if is_lost else "stop", partition)
            for number, (after, partition, is_lost) in enumerate(rows)
        ]
        with closing(psycopg.connect(database, autocommit=True)) as connection:
            connection.cursor().executemany(
                """INSERT INTO ledger
                SELECT %s, 'q', 'acme', 'k', 'e', 'm', 1, 1, %s, 1, %s, 1, 1, %s, '', 0, '', 1, %s""",
                values,
            )
            for lost, read in ((True, latest_lost), (False, latest_charges)):
                found = [row[0] for row in read(connection, [1, 63], count)]
                owned = [each for each in values if each[4] != 2 and (each[3] == "lost") is lost]
                newest = max((each[2] for each in owned), default=0.0)
                owned = [each for each in owned if lost or each[2] >= newest - DAY_S]
                assert found == [each[0] for each in sorted(owned, key=lambda each: (each[2], each[0]))[::-1][:count]]


@pytest.mark.parametrize(("now", "age", "expected"), [(10.5, 2.0, "7"), (10.5, 2.5, "6"), (10.0, 0.001, "8")])
def test_a_day_expires_once_all_of_its_rows_could_be_settled_and_were_kept(now, age, expected):
    assert postgres_ledger.expired_before(START + (now - 1) * DAY_S, age * DAY_S).day == int(expected)
