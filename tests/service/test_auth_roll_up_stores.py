"""Roll-up in PostgreSQL: the same rows become the same daily totals as in SQLite."""

import random
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.reservation import OUTCOME_LOST
from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.store import roll_up
from penstock.auth.store.location import parse_location
from penstock.auth.store.postgres.backend import PostgresBackend
from penstock.auth.store.roll_up import SLICE_ROWS, Retention
from penstock.auth.store.sqlite.backend import SqliteBackend
from penstock.auth.store.store import PutTenant
from store_changes import charged
from stores import PostgresStore, SqliteStore, administer

START = 1_798_761_600.0  # 2027-01-01 UTC
DAY_S = 86_400.0
TENANTS = ("acme", "blue")


@contextmanager
def both(tmp_path, database, retention):
    """Yield both backends, whose slices have the same sizes."""
    path = str(tmp_path / "auth.sqlite")
    backends = (SqliteBackend(path, retention), PostgresBackend(parse_location(database), retention, "auth"))
    for each in backends:
        each.open(threading.Event())
        each.roll_up.timer = lambda: 0.0
        each.roll_up.most_slice_rows = SLICE_ROWS[1]
        commit(each, *(PutTenant(Tenant(tenant_id=tenant_id)) for tenant_id in TENANTS))
    yield backends
    for each in backends:
        each.close()


def commit(backend, *changes):
    assert backend.commit([(each, lambda _: None) for each in changes]) is None


def roll(backend, now):
    while backend.roll_up.run_slice(now):
        pass


def charge(number, at, *, tenant="acme", key="k", model="m", outcome="stop", correction=False):
    change = charged(number, outcome=outcome, output=0 if outcome == OUTCOME_LOST else number % 50)
    request = replace(change.charge.reservation.request, tenant_id=tenant, key_id=key, model=model)
    reservation = replace(change.charge.reservation, request=request, reservation_id=f"r-{number:06}")
    spent = replace(change.charge, reservation=reservation, settled_at=at, is_correction=correction)
    if outcome == OUTCOME_LOST:
        spent = replace(spent, prompt_tokens=0)
    return change._replace(charge=spent, balance=Balance(tenant))


def looks(tmp_path, database):
    stores = SqliteStore(str(tmp_path / "auth.sqlite")), PostgresStore(database)
    statements = (
        "SELECT * FROM usage ORDER BY day, tenant_id, key_id, model",
        "SELECT * FROM daily_usage ORDER BY day, tenant_id, key_id, model",
        "SELECT reservation_id FROM ledger ORDER BY reservation_id",
    )
    return [[each.rows(statement) for statement in statements] for each in stores]


@pytest.mark.parametrize(
    "retention", [Retention(max_age=2 * DAY_S), Retention(max_rows=200), Retention(3 * DAY_S, 300)]
)
def test_random_charges_have_the_same_rows_and_totals_in_both_stores(tmp_path, database, monkeypatch, retention):
    monkeypatch.setattr(roll_up, "MAX_LOST_RESERVATIONS", 20)
    rng = random.Random(7)
    lost, number = [], 0
    with both(tmp_path, database, retention) as backends:
        for day in range(6):
            changes = []
            for _ in range(150):
                number += 1
                at = START + day * DAY_S + rng.randrange(86_400)
                names = {"tenant": rng.choice(TENANTS), "key": rng.choice("ab"), "model": rng.choice("mn")}
                outcome = OUTCOME_LOST if rng.random() < 0.2 else "stop"
                changes.append(charge(number, at, outcome=outcome, **names))
                if outcome == OUTCOME_LOST:
                    lost.append((number, names))
            for late, names in rng.sample(lost, 5):
                lost.remove((late, names))
                changes.append(charge(late, START + (day + 1) * DAY_S, correction=True, **names))
            for each in backends:
                for first in range(0, len(changes), 40):
                    commit(each, *changes[first : first + 40])
                roll(each, START + (day + 1) * DAY_S)
        assert len({each.roll_up.rows for each in backends}) == 1
        rows = backends[0].roll_up.rows
    in_sqlite, in_postgres = looks(tmp_path, database)
    assert in_postgres == in_sqlite
    assert len(in_postgres[2]) == rows
    assert sum(row[4] for row in in_postgres[0]) == number


def test_a_slice_that_fails_changes_nothing(tmp_path, database):
    with both(tmp_path, database, Retention(max_age=1.0)) as (_, backend):
        commit(backend, *(charge(number, START) for number in range(10)))
        stored = PostgresStore(database)
        administer(database, "ALTER TABLE daily_usage ADD CONSTRAINT none CHECK (requests < 0) NOT VALID")
        assert not backend.roll_up.run_slice(START + 10.0)
        assert stored.rows("SELECT count(*) FROM ledger") == [(10,)]
        assert backend.roll_up.rows == 10
        administer(database, "ALTER TABLE daily_usage DROP CONSTRAINT none")
        roll(backend, START + 10.0)
        assert stored.rows("SELECT requests, prompt_tokens, output_tokens FROM daily_usage") == [(10, 100, 45)]


def test_slices_use_the_indexes_of_due_rows(tmp_path, database):
    """Without them, each slice would read the whole ledger."""
    with both(tmp_path, database, Retention(max_age=1.0)):
        administer(
            database,
            """INSERT INTO ledger SELECT 'r-' || n, 'q', 'acme', 'k', 'e', 'm', 1, 1, n, n, n, 1, 1,
            CASE n % 10 WHEN 0 THEN 'lost' ELSE 'stop' END, '', 0, '', 1, 1 FROM generate_series(1, 20000) AS n""",
            "ANALYZE ledger",
        )
        for condition, index in (("<>", "ledger_settled"), ("=", "ledger_lost")):
            plan = administer(
                database,
                f"""EXPLAIN SELECT reservation_id FROM ledger WHERE outcome {condition} 'lost' AND settled_at < 9000
                ORDER BY settled_at, reservation_id LIMIT 100""",
            )
            assert any(index in line for (line,) in plan), plan
