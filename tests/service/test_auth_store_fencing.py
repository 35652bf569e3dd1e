"""Partitions in PostgreSQL: one owner at a time, and a former owner writes nothing."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest
from structlog.testing import capture_logs

from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.store.location import parse_location
from penstock.auth.store.opening import opened_store
from penstock.auth.store.postgres import ownership, schema
from penstock.auth.store.postgres.backend import PostgresBackend
from penstock.auth.store.postgres.connection import application_name, connect
from penstock.auth.store.postgres.lease import PartitionLease
from penstock.auth.store.postgres.ownership import PartitionsTaken, StoreDiverged
from penstock.auth.store.postgres.schema import MIGRATIONS, migrate
from penstock.auth.store.roll_up import KEEP_ALL
from penstock.auth.store.store import PutTenant, Reserved, StoreThreadFailed, StoreTooNew, StoreUnusable
from penstock.mesh.partitions import PARTITIONS
from postgres_relay import postgres_relay
from store_changes import ACME_TENANT, charged, kept, reservation, stored_state
from stores import administer

OWNERS = "SELECT count(*), min(owner), max(owner), min(epoch), max(epoch) FROM partitions"
SHORT = 0.4  # s


@contextmanager
def backend(url, owner, ttl=SHORT):
    """A backend without a thread: it renews its lease only when the test commits."""
    opened = PostgresBackend(parse_location(url), KEEP_ALL, owner, PartitionLease(ttl, ttl / 4, start_ttl=ttl))
    state = opened.open(threading.Event())
    try:
        yield opened, state
    finally:
        opened.close()


def pending(*changes):
    return [(each, lambda _: None) for each in changes]


def reserved(number):
    return Reserved(reservation(number), Balance("acme"))


def ids(url):
    return [row[0] for row in administer(url, "SELECT reservation_id FROM reservations ORDER BY 1")]


def test_each_start_takes_all_partitions_with_the_next_epoch_and_a_clean_stop_releases_them(database):
    for epoch in (1, 2, 3):
        with backend(database, f"auth-{epoch}", ttl=60.0):
            owner = f"auth-{epoch}"
            assert administer(database, OWNERS) == [(PARTITIONS, owner, owner, epoch, epoch)]
            assert administer(database, "SELECT owner FROM writers") == [(owner,)]
        assert administer(database, OWNERS) == [(PARTITIONS, "", "", epoch, epoch)]
        assert administer(database, "SELECT owner FROM writers") == []


def test_an_owner_that_does_not_renew_is_taken_over_with_its_reservations_and_writes_nothing_more(database):
    with backend(database, "paused") as (paused, _):
        assert paused.commit(pending(PutTenant(ACME_TENANT), reserved(1))) is None
        with backend(database, "next") as (successor, state):
            assert state.reservations == [reservation(1)]
            for changes in ([reserved(2)], [charged(1)], []):
                with pytest.raises(PartitionsTaken, match="another process has taken over"):
                    paused.commit(pending(*changes))
            assert successor.commit(pending(charged(1), reserved(3))) is None
            assert ids(database) == ["r-3"]
    assert ids(database) == ["r-3"]


def test_a_paused_owner_rolls_nothing_up(database):
    with backend(database, "paused") as (paused, _):
        assert paused.commit(pending(PutTenant(ACME_TENANT), charged(1))) is None
        with backend(database, "next"):
            assert not paused.roll_up.run_slice(1e9)  # its session was ended
            for write in (lambda: paused.commit([]), lambda: paused.roll_up.run_slice(2e9)):
                with pytest.raises(PartitionsTaken):
                    write()
            assert administer(database, "SELECT count(*) FROM daily_usage") == [(0,)]


def test_a_database_that_has_lost_commits_ends_the_process(database):
    """Such as after a failover to a replica that was behind: the memory of the process is ahead of it."""
    with backend(database, "auth", ttl=60.0) as (former, _):
        assert former.commit(pending(PutTenant(ACME_TENANT))) is None
        administer(database, "UPDATE writers SET batch = batch - 1")
        with pytest.raises(StoreDiverged, match="Restart this process"):
            former.commit(pending(reserved(1)))
    assert ids(database) == []


def test_the_lease_is_longer_while_the_state_is_read_and_short_after_the_first_renewal(database):
    left = "SELECT DISTINCT round(extract(epoch FROM lease_until - now())) FROM partitions"
    opened = PostgresBackend(parse_location(database), KEEP_ALL, "auth", PartitionLease(100.0, 20.0, start_ttl=1_000.0))
    opened.open(threading.Event())
    assert administer(database, left)[0][0] > 500
    assert opened.commit([]) is None
    assert administer(database, left)[0][0] <= 100
    opened.close()


def test_an_owner_that_renews_late_goes_on_if_nobody_took_over(database):
    with backend(database, "late") as (late, _), capture_logs() as lines:
        time.sleep(SHORT)  # the lease ends by the clock of the database
        assert late.commit(pending(PutTenant(ACME_TENANT))) is None
        assert not late.lease.has_lapsed(time.monotonic())
    assert [line["event"] for line in lines] == ["partition_lease_lapsed"]


def test_a_former_epoch_of_the_same_owner_writes_nothing(database):
    with backend(database, "auth", ttl=60.0) as (former, _):
        assert former.commit(pending(PutTenant(ACME_TENANT))) is None
        administer(database, "UPDATE partitions SET epoch = epoch + 1")
        for changes in ([reserved(1)], []):
            with pytest.raises(PartitionsTaken):
                former.commit(pending(*changes))
    assert ids(database) == []


def test_the_owner_of_some_partitions_alone_writes_for_their_tenants_alone(database):
    """A change of another partition's owner between two renewals is found by the first commit that concerns it."""
    other = ACME_TENANT.tenant_id + "-2"
    with backend(database, "first", ttl=60.0) as (first, _):
        assert first.commit(pending(PutTenant(ACME_TENANT))) is None
        mine = ownership.partition_of(other)
        administer(database, f"UPDATE partitions SET owner = 'second', epoch = epoch + 1 WHERE partition = {mine}")
        assert first.commit(pending(reserved(1))) is None
        with pytest.raises(PartitionsTaken, match="1 of 1"):
            first.commit(pending(PutTenant(Tenant(tenant_id=other))))
    assert ids(database) == ["r-1"]


async def test_a_commit_on_its_way_when_another_owner_takes_over_is_not_applied(postgres, database, monkeypatch):
    """The session of the former owner is not ended here, as if the server could not do that."""
    monkeypatch.setattr(ownership, "end_sessions", lambda connection, owners: None)
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    async with postgres_relay(postgres) as relay:
        former = PostgresBackend(
            parse_location(relay.url(name)), KEEP_ALL, "former", PartitionLease(SHORT, SHORT / 4, start_ttl=SHORT)
        )
        await asyncio.to_thread(former.open, threading.Event())
        assert await asyncio.to_thread(former.commit, pending(PutTenant(ACME_TENANT))) is None
        relay.holds_requests = True
        committing = asyncio.create_task(asyncio.to_thread(former.commit, pending(reserved(1))))
        while not relay.held:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.005)
        successor = PostgresBackend(parse_location(database), KEEP_ALL, "next", PartitionLease(60.0, 20.0))
        state = await asyncio.to_thread(successor.open, threading.Event())
        relay.holds_requests = False
        await relay.release()
        with pytest.raises(PartitionsTaken):
            await committing
        assert state.reservations == []
        assert await asyncio.to_thread(ids, database) == []
        assert await asyncio.to_thread(successor.commit, pending(reserved(2))) is None
        successor.close()
        await asyncio.to_thread(former.close)
    assert ids(database) == ["r-2"]


def test_a_transaction_of_a_paused_owner_does_not_delay_the_takeover(database):
    """It holds its partitions until the successor ends its session."""
    with backend(database, "paused") as (paused, _):
        assert paused.commit(pending(PutTenant(ACME_TENANT))) is None
        connection = paused._connection
        connection.execute("BEGIN")
        connection.execute(*paused._ownership.hold(None))
        with backend(database, "next") as (successor, _):
            assert successor.commit(pending(reserved(1))) is None
        with pytest.raises(psycopg.OperationalError):
            connection.execute("COMMIT")


async def test_a_process_that_lost_its_partitions_ends_and_answers_no_pending_change(database):
    async with opened_store(database) as (store, _):
        await kept(store, PutTenant(ACME_TENANT))
        administer(database, "UPDATE partitions SET owner = 'other', epoch = epoch + 1")
        told = []
        store.write(reserved(1), told.append)
        with pytest.raises(StoreThreadFailed, match="another process has taken over"):
            await store.watch()
        assert told == []
        assert not store.is_available
    assert administer(database, "SELECT DISTINCT owner FROM partitions") == [("other",)]
    assert ids(database) == []


async def test_an_idle_process_finds_out_that_it_lost_its_partitions(database):
    async with opened_store(database) as (store, _):
        administer(database, "UPDATE partitions SET owner = 'other', epoch = epoch + 1")
        async with asyncio.timeout(20):
            with pytest.raises(StoreThreadFailed):
                await store.watch()


async def test_a_second_process_waits_for_the_first_and_says_what_to_do_if_it_stays(database, monkeypatch):
    async with opened_store(database, instance_id="auth-1") as (store, _):
        monkeypatch.setattr(ownership, "TAKE_TIMEOUT_S", 0.2)
        with pytest.raises(StoreUnusable, match=r"another auth process uses this store \(auth-1\..*end that process"):
            await stored_state(database)
        await kept(store, PutTenant(ACME_TENANT))
        monkeypatch.setattr(ownership, "TAKE_TIMEOUT_S", 60.0)
        waiting = asyncio.create_task(stored_state(database))
        await asyncio.sleep(0)
        await kept(store, reserved(1))
    assert (await waiting).reservations == [reservation(1)]


async def test_a_start_that_waits_for_another_process_can_be_stopped(database):
    async with opened_store(database):
        waiting = asyncio.create_task(stored_state(database))
        with capture_logs() as lines:
            while not any(line["event"] == "partitions_awaited" for line in lines):  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.005)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


def test_processes_that_start_at_once_migrate_once(database):
    def start(number):
        with closing(connect(parse_location(database), f"auth-{number}")) as connection:
            migrate(connection)
            return connection.execute("SELECT version FROM penstock_schema").fetchall()

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(start, range(6))) == [[(len(MIGRATIONS),)]] * 6
    assert administer(database, "SELECT count(*) FROM partitions") == [(PARTITIONS,)]


def test_a_store_of_a_later_release_is_not_changed(database):
    with backend(database, "first"):
        pass
    administer(database, f"UPDATE penstock_schema SET version = {len(MIGRATIONS) + 1}")
    with pytest.raises(StoreTooNew, match="upgrade auth"), backend(database, "second"):
        pass
    assert administer(database, "SELECT max(epoch) FROM partitions") == [(1,)]


def test_a_failed_migration_changes_nothing(database, monkeypatch):
    monkeypatch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE half (id integer); SELECT 1 / 0"))
    with pytest.raises(StoreUnusable, match="division by zero"), backend(database, "first"):
        pass
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert administer(database, tables) == [(0,)]


def test_a_database_that_cannot_hold_all_texts_is_an_error_that_says_how_to_create_one(postgres):
    administer(postgres.url(), "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    try:
        with pytest.raises(StoreUnusable, match="ENCODING 'UTF8'"), backend(postgres.url("latin"), "auth"):
            pass
    finally:
        administer(postgres.url(), "DROP DATABASE latin")


def test_the_fence_does_not_rely_on_the_default_isolation_of_the_database(database):
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    administer(database, f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    with backend(database, "paused") as (paused, _):
        assert paused.commit(pending(PutTenant(ACME_TENANT))) is None
        with paused._connection.transaction():
            assert paused._connection.execute("SHOW transaction_isolation").fetchall() == [("read committed",)]
        with backend(database, "next"), pytest.raises(PartitionsTaken):
            paused.commit(pending(reserved(1)))


def test_the_name_of_a_session_fits_and_tells_owners_apart():
    names = {application_name(f"{'auth-instance-' * 9}.{number:08x}") for number in range(3)}
    assert len(names) == 3
    assert max(map(len, names)) <= 63
