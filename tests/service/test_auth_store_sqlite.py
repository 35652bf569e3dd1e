"""The store in a SQLite file: damage, migrations, and one process at a time."""

import asyncio
import sqlite3
from collections import deque
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.store import threaded
from penstock.auth.store.opening import opened_store
from penstock.auth.store.sqlite import backend as sqlite_backend
from penstock.auth.store.sqlite import connection as store_connection
from penstock.auth.store.sqlite import sql
from penstock.auth.store.sqlite.sql import MIGRATIONS
from penstock.auth.store.store import (
    Barrier,
    HandedOver,
    PutTenant,
    Reserved,
    StoreClosed,
    StoreThreadFailed,
)
from penstock.chassis.database.errors import StoreTooNew, StoreUnusable
from penstock.chassis.database.sqlite import migrate
from store_changes import ACME_TENANT, charged, kept, reservation, stored_state


def reserved(number):
    return Reserved(reservation(number), Balance("acme"))


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "auth.sqlite")


async def test_an_error_that_is_not_of_sqlite_ends_the_watch_and_rejects_later_changes(path, monkeypatch):
    def overflow(connection, change, **_):
        raise OverflowError("Python int too large to convert to SQLite INTEGER")

    async with opened_store(path) as (store, _):
        monkeypatch.setattr(sql, "apply", overflow)
        store.write(PutTenant(ACME_TENANT), lambda _: pytest.fail("a change of a failed store was answered"))
        with pytest.raises(StoreThreadFailed, match="OverflowError"):
            await store.watch()
        assert not store.is_available
        with pytest.raises(StoreClosed):
            await kept(store, Barrier())


async def test_events_before_the_service_listens_are_reported_to_it(path):
    """A process may wait between the opening of its store and its service, such as for keys of an issuer."""
    async with opened_store(path) as (store, _):
        await store.hand_over()
        events = []
        store.notify_events(events.append)
        assert events == [HandedOver()]


async def test_the_thread_reports_the_disk(path, monkeypatch):
    monkeypatch.setattr(threaded, "IDLE_INTERVAL_S", 0.01)
    volume = {"used": 0.95}
    monkeypatch.setattr(sqlite_backend, "used_share", lambda path: volume["used"])
    with capture_logs() as lines:
        async with opened_store(path, disk_watermark=0.9) as (store, _), asyncio.timeout(20):
            while not store.figures["store_disk_high"]:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)
            volume["used"] = 0.5
            while store.figures["store_disk_high"]:  # noqa: ASYNC110  # as above
                await asyncio.sleep(0)
    told = [line["event"] for line in lines if line["event"].startswith("store_disk")]
    assert told == ["store_disk_high", "store_disk_normal"]


async def test_a_second_process_cannot_open_the_store(path, monkeypatch):
    monkeypatch.setattr(store_connection, "LOCK_TIMEOUT_S", 0.01)
    async with opened_store(path):
        with pytest.raises(StoreUnusable, match="another process has it open"):
            async with opened_store(path):
                pass


def overwrite(path, damaged):
    content = bytearray(Path(path).read_bytes())
    content[damaged] = b"x" * len(content[damaged])
    Path(path).write_bytes(content)


@pytest.mark.parametrize("damaged", [slice(0, 16), slice(4096, 12_288)], ids=["header", "pages"])
async def test_a_damaged_store_is_an_error_that_says_what_to_do(path, damaged):
    await stored_state(path)
    overwrite(path, damaged)
    with pytest.raises(StoreUnusable, match="restore a backup"):
        await stored_state(path)


async def test_a_store_that_becomes_read_only_keeps_its_charges_until_it_can_be_written(path, monkeypatch):
    monkeypatch.setattr(threaded, "RETRY_INTERVAL_S", 0.01)
    modes = deque[str]()
    commit = sqlite_backend.commit

    def commit_in_mode(connection, batch, **options):
        if modes:
            connection.execute(f"PRAGMA query_only = {modes.popleft()}")
        return commit(connection, batch, **options)

    monkeypatch.setattr(sqlite_backend, "commit", commit_in_mode)
    async with opened_store(path) as (store, _):
        await kept(store, PutTenant(ACME_TENANT))
        await kept(store, reserved(1))
        modes.append("ON")
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            await kept(store, reserved(2))
        charging = asyncio.create_task(kept(store, charged(1)))
        await asyncio.sleep(0)
        assert not store.is_available
        modes.append("OFF")
        await charging
        await kept(store, reserved(3))
    state = await stored_state(path)
    assert [each.reservation_id for each in state.reservations] == ["r-3"]
    assert [each.reservation.reservation_id for each in state.charged] == ["r-1"]


async def test_a_store_in_a_missing_folder_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(StoreUnusable, match="must be able to create"):
        await stored_state(str(tmp_path / "missing" / "auth.db"))


async def test_a_store_of_a_later_release_is_not_changed(path):
    await stored_state(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(StoreTooNew, match="upgrade this tier"):
        await stored_state(path)


def test_migrating_twice_changes_nothing():
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as raw:
        migrate(raw, MIGRATIONS)
        before = raw.execute("SELECT sql FROM sqlite_master").fetchall()
        migrate(raw, MIGRATIONS)
        assert raw.execute("SELECT sql FROM sqlite_master").fetchall() == before
        assert raw.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


async def test_a_file_of_the_first_release_keeps_its_ledger(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(f"BEGIN; {MIGRATIONS[0]} PRAGMA user_version = 1; COMMIT;")
        connection.execute("INSERT INTO tenants VALUES ('acme', 2, 1.0, 0, 0, 0)")
        row = ("r", "request", "acme", "k", "edge-1", "m", 10, 20, 1.0, 101.0, 2.0, 10, 7, "stop")
        connection.execute(f"INSERT INTO ledger VALUES ({', '.join('?' * 14)})", row)
    [charge] = (await stored_state(path)).charged
    assert (charge.reservation.request.max_output_tokens, charge.output_tokens, charge.made_tokens) == (20, 7, 7)


def test_a_large_statement_leaves_no_file_open(tmp_path):
    with closing(store_connection.connect(str(tmp_path / "auth.sqlite"))) as connection:
        connection.execute("CREATE TABLE scratch (number INTEGER UNIQUE, text TEXT)")
        connection.executemany("INSERT INTO scratch VALUES (?, ?)", [(each, "x" * 200) for each in range(2_000)])
        connection.execute("BEGIN")
        before = descriptors()
        connection.execute("UPDATE scratch SET number = number + 10000, text = text || 'y'")
        connection.execute("COMMIT")
        assert descriptors() == before


def descriptors():
    return psutil.Process().num_fds()
