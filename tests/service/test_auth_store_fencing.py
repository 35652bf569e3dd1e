"""Partitions in PostgreSQL: one owner at a time, and a former owner writes nothing."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest
from structlog.testing import capture_logs

from penstock.auth.identity.tenant import Tenant
from penstock.auth.models.routes import Route, RouteDefinition, RouteTarget
from penstock.auth.partitions.lease import PartitionLease
from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.store.opening import opened_store
from penstock.auth.store.postgres import ownership, schema
from penstock.auth.store.postgres.backend import PostgresBackend
from penstock.auth.store.postgres.connection import application_name, connect
from penstock.auth.store.postgres.ownership import StoreDiverged
from penstock.auth.store.postgres.schema import MIGRATIONS, migrate
from penstock.auth.store.roll_up import KEEP_ALL
from penstock.auth.store.store import (
    CatalogChanged,
    Giving,
    Lost,
    PartitionsLost,
    PutRoute,
    PutTenant,
    Release,
    Reserved,
    Taken,
)
from penstock.chassis.database.errors import StoreTooNew, StoreUnusable
from penstock.chassis.database.location import parse_location
from penstock.mesh.partitions import PARTITIONS, partition_of
from postgres_relay import postgres_relay
from store_changes import ACME_TENANT, charged, kept, reservation
from stores import administer

OWNERS = "SELECT count(*), min(owner), max(owner), min(epoch), max(epoch) FROM partitions"
SHORT = 0.4  # s
ACME = partition_of(ACME_TENANT.tenant_id)


def opened_backend(url, owner, ttl=SHORT):
    return PostgresBackend(parse_location(url), KEEP_ALL, owner, PartitionLease(ttl, ttl / 4))


@contextmanager
def backend(url, owner, ttl=SHORT):
    """A backend without a thread: it renews its lease only when the test looks."""
    opened = opened_backend(url, owner, ttl)
    state = opened.open()
    try:
        yield opened, state
    finally:
        opened.close()


def told(opened):
    """Return the list to which the events of a backend are added."""
    events = []
    opened.notify_events(events.append)
    return events


async def written(store, change):
    """Write a change; return the error."""
    done = asyncio.get_running_loop().create_future()
    store.write(change, done.set_result)
    return await done


def pending(*changes):
    return [(each, lambda _: None) for each in changes]


def reserved(number):
    return Reserved(reservation(number), Balance("acme"))


def ids(url):
    return [row[0] for row in administer(url, "SELECT reservation_id FROM reservations ORDER BY 1")]


def look(opened):
    """Renew the lease, and take and give what the plan says."""
    assert opened.commit([]) is None


def lost(error):
    assert isinstance(error, PartitionsLost)
    return error.partitions


def until(opened, is_done):
    """Look until something is so. Leases end by the clock of the database."""
    give_up_at = time.monotonic() + 20
    while not is_done():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
        look(opened)


def test_each_start_takes_all_partitions_with_the_next_epoch_and_a_clean_stop_releases_them(database):
    for epoch in (1, 2, 3):
        with backend(database, f"auth-{epoch}", ttl=60.0) as (opened, _):
            owner = f"auth-{epoch}"
            assert opened.epochs == dict.fromkeys(range(PARTITIONS), epoch)
            assert administer(database, OWNERS) == [(PARTITIONS, owner, owner, epoch, epoch)]
            assert administer(database, "SELECT owner FROM writers") == [(owner,)]
        assert administer(database, OWNERS) == [(PARTITIONS, "", "", epoch, epoch)]
        assert administer(database, "SELECT owner FROM writers") == []


def test_an_owner_that_does_not_renew_is_taken_over_with_its_reservations_and_writes_nothing_more(database):
    with backend(database, "paused") as (paused, _):
        assert paused.commit(pending(PutTenant(ACME_TENANT), reserved(1))) is None
        with backend(database, "next") as (successor, state):
            events = told(successor)
            until(successor, lambda: len(successor.epochs) == PARTITIONS)
            assert [*state.reservations, *(each for event in events for each in event.state.reservations)] == [
                reservation(1)
            ]
            assert lost(paused.commit(pending(reserved(2)))) >= {ACME}
            assert lost(paused.commit(pending(charged(1)))) == {ACME}
            assert successor.commit(pending(charged(1), reserved(3))) is None
            assert ids(database) == ["r-3"]
    assert ids(database) == ["r-3"]


def test_a_paused_owner_rolls_nothing_up(database):
    with backend(database, "paused") as (paused, _):
        assert paused.commit(pending(PutTenant(ACME_TENANT), charged(1))) is None
        with backend(database, "next") as (successor, _):
            until(successor, lambda: len(successor.epochs) == PARTITIONS)
            for now in (1e9, 2e9):  # its session was ended; with a new one, it is not the owner
                assert not paused.roll_up.run_slice(now)
                look(paused)
            assert administer(database, "SELECT count(*) FROM daily_usage") == [(0,)]


def test_a_database_that_has_lost_commits_ends_the_process(database):
    """Such as after a failover to a replica that was behind: the memory of the process is ahead of it."""
    with backend(database, "auth", ttl=60.0) as (former, _):
        assert former.commit(pending(PutTenant(ACME_TENANT))) is None
        administer(database, "UPDATE writers SET batch = batch - 1")
        with pytest.raises(StoreDiverged, match="Restart this process"):
            former.commit(pending(reserved(1)))
    assert ids(database) == []


def test_a_process_that_the_database_has_forgotten_must_start_again(database):
    with backend(database, "auth", ttl=60.0) as (former, _):
        administer(database, "DELETE FROM writers")
        with pytest.raises(StoreDiverged, match="Restart this process"):
            former.commit([])


def test_an_owner_that_renews_late_goes_on_if_nobody_took_over(database):
    with backend(database, "late") as (late, _):
        assert late.commit(pending(PutTenant(ACME_TENANT))) is None
        time.sleep(SHORT)  # the lease ends by the clock of the database
        with capture_logs() as lines:
            look(late)
            assert late.commit(pending(reserved(1))) is None
        assert not late.lease.has_lapsed(time.monotonic())
    assert [line["event"] for line in lines] == ["partition_lease_lapsed"]


def test_a_former_epoch_of_the_same_owner_writes_nothing_and_the_state_is_read_again(database):
    with backend(database, "auth", ttl=60.0) as (former, _):
        events = told(former)
        assert former.commit(pending(PutTenant(ACME_TENANT), reserved(1))) is None
        administer(database, "UPDATE partitions SET epoch = epoch + 1")
        assert lost(former.commit(pending(reserved(2)))) >= {ACME}
        assert isinstance(events.pop(), Lost)
        look(former)
        assert former.epochs == {}  # changes of the lost epoch may still wait
        assert former.commit(pending(Release(frozenset(range(PARTITIONS))))) is None
        look(former)
        taken = events.pop()
        assert taken.epochs == former.epochs == dict.fromkeys(range(PARTITIONS), 3)
        assert taken.state.reservations == [reservation(1)]
        assert former.commit(pending(reserved(3))) is None
    assert ids(database) == ["r-1", "r-3"]


def test_the_owner_of_some_partitions_alone_writes_for_their_tenants_alone(database):
    """A change of another partition's owner between two looks is found by the first commit that concerns it."""
    other = Tenant(tenant_id="acme-2")
    with backend(database, "first", ttl=60.0) as (first, _):
        assert first.commit(pending(PutTenant(ACME_TENANT), PutTenant(other))) is None
        theirs = partition_of(other.tenant_id)
        administer(database, f"UPDATE partitions SET owner = 'second', epoch = epoch + 1 WHERE partition = {theirs}")
        assert first.commit(pending(reserved(1))) is None
        of_other = Reserved(reservation(2), Balance(other.tenant_id))
        assert lost(first.commit(pending(reserved(3), of_other))) == {theirs}
        assert theirs not in first.epochs
        assert first.commit(pending(reserved(3))) is None
    assert ids(database) == ["r-1", "r-3"]


async def test_a_commit_on_its_way_when_another_owner_takes_over_is_not_applied(postgres, database, monkeypatch):
    """The session of the former owner is not ended here, as if the server could not do that."""
    monkeypatch.setattr(ownership, "end_sessions", lambda connection, owners: None)
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    async with postgres_relay(postgres) as relay:
        former = opened_backend(relay.url(name), "former")
        await asyncio.to_thread(former.open)
        assert await asyncio.to_thread(former.commit, pending(PutTenant(ACME_TENANT))) is None
        relay.holds_requests = True
        committing = asyncio.create_task(asyncio.to_thread(former.commit, pending(reserved(1))))
        while not relay.held:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.005)
        successor = opened_backend(database, "next")
        await asyncio.to_thread(successor.open)
        await asyncio.to_thread(until, successor, lambda: len(successor.epochs) == PARTITIONS)
        relay.holds_requests = False
        await relay.release()
        assert lost(await committing) >= {ACME}
        assert await asyncio.to_thread(ids, database) == []
        assert await asyncio.to_thread(successor.commit, pending(reserved(2))) is None
        await asyncio.to_thread(successor.close)
        await asyncio.to_thread(former.close)
    assert ids(database) == ["r-2"]


def test_a_transaction_of_a_paused_owner_does_not_delay_the_takeover(database):
    """It holds its partitions until the successor ends its session."""
    with backend(database, "paused") as (paused, _):
        assert paused.commit(pending(PutTenant(ACME_TENANT))) is None
        connection = paused._connection
        connection.execute("BEGIN")
        connection.execute(*ownership.hold("paused", list(paused.epochs.items())))
        with backend(database, "next") as (successor, _):
            until(successor, lambda: len(successor.epochs) == PARTITIONS)
            assert successor.commit(pending(reserved(1))) is None
        with pytest.raises(psycopg.OperationalError):
            connection.execute("COMMIT")


def test_a_second_replica_receives_half_of_the_partitions_after_their_changes_are_written(database):
    with backend(database, "first", ttl=60.0) as (first, _), backend(database, "second", ttl=60.0) as (second, _):
        given, taken = told(first), told(second)
        assert first.commit(pending(PutTenant(ACME_TENANT), reserved(1))) is None
        look(second)  # announces that it takes partitions
        while len(second.epochs) < PARTITIONS // 2:
            look(first)
            released = given.pop()
            assert isinstance(released, Giving)
            assert first.commit(pending(Release(released.partitions))) is None
            assert not released.partitions & first.epochs.keys()
            look(second)
            assert taken[-1].epochs.keys() == released.partitions
        look(first)
        look(second)
        assert [type(each) for each in given] == [CatalogChanged]
        assert first.epochs.keys() | second.epochs.keys() == set(range(PARTITIONS))
        owner, other = (first, second) if ACME in first.epochs else (second, first)
        assert owner.commit(pending(reserved(2))) is None
        assert lost(other.commit(pending(reserved(3)))) == {ACME}
        moved = [each for event in taken if isinstance(event, Taken) for each in event.state.reservations]
        assert moved == ([reservation(1)] if owner is second else [])


def test_a_release_that_was_not_answered_is_written_once(database):
    with backend(database, "first", ttl=60.0) as (first, _), backend(database, "second", ttl=60.0) as (second, _):
        events = told(first)
        look(second)  # announces that it takes partitions
        look(first)
        (given,) = (each for each in events if isinstance(each, Giving))
        batch = pending(Release(given.partitions))
        first._connection.close()
        assert first.commit(batch) is None
        assert len(first.epochs) == PARTITIONS - len(given.partitions)


def test_no_replica_takes_over_directly_after_the_server_was_away_for_all(database):
    """The lease of another replica has lapsed meanwhile. It renews it as soon as it is connected."""
    with backend(database, "first", ttl=2.0) as (first, _), backend(database, "second", ttl=2.0) as (second, _):
        events = told(second)
        administer(database, "UPDATE writers SET lease_until = '-infinity'")
        second._connection.close()
        look(second)
        assert [each for each in events if isinstance(each, Taken)] == []
        look(first)
        assert len(first.epochs) == PARTITIONS


async def test_a_change_of_lost_partitions_is_reported_and_the_process_goes_on(database):
    async with opened_store(database) as (store, _):
        events = []
        store.notify_events(events.append)
        await kept(store, PutTenant(ACME_TENANT))
        administer(database, "UPDATE partitions SET owner = 'other', epoch = epoch + 1, lease_until = 'infinity'")
        error = await written(store, reserved(1))
        assert lost(error) >= {ACME}
        assert store.is_available
        assert any(isinstance(each, Lost) for each in events)
        await kept(store, PutTenant(Tenant(tenant_id="later")))
    assert administer(database, "SELECT DISTINCT owner FROM partitions") == [("other",)]
    assert ids(database) == []


async def test_the_clock_of_the_database_is_that_of_every_process(database):
    for ahead in (3_600.0, 0.0, -3_600.0):
        async with opened_store(database, clock=lambda ahead=ahead: time.time() + ahead) as (store, _):
            assert abs(store.clock_offset + ahead) < 60.0


async def test_an_idle_process_finds_out_that_it_lost_its_partitions(database):
    async with opened_store(database) as (store, _):
        events = asyncio.Queue()
        store.notify_events(events.put_nowait)
        administer(database, "UPDATE partitions SET owner = 'other', epoch = epoch + 1, lease_until = 'infinity'")
        async with asyncio.timeout(20):
            assert (await events.get()).partitions == set(range(PARTITIONS))


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
    with pytest.raises(StoreTooNew, match="upgrade this tier"), backend(database, "second"):
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
        with backend(database, "next") as (successor, _):
            until(successor, lambda: len(successor.epochs) == PARTITIONS)
            assert lost(paused.commit(pending(reserved(1)))) >= {ACME}


def test_the_name_of_a_session_fits_and_tells_owners_apart():
    names = {application_name(f"{'auth-instance-' * 9}.{number:08x}") for number in range(3)}
    assert len(names) == 3
    assert max(map(len, names)) <= 63


def test_another_replica_receives_the_routes_of_a_change(database):
    with backend(database, "first", ttl=60.0) as (first, _), backend(database, "second", ttl=60.0) as (second, _):
        given = told(second)
        look(second)
        changes = [each for each in given if isinstance(each, CatalogChanged)]
        route = Route("gpt-4o", "", 1, RouteDefinition((RouteTarget("m", 1),)))
        assert first.commit(pending(PutRoute(route))) is None
        look(second)
        [change] = [each for each in given if isinstance(each, CatalogChanged)][len(changes) :]
        assert change.routes == [route]
