"""PostgreSQL that is away, and commits whose outcome is unknown: nothing is lost, and nothing is applied twice.

The commit under test is a correction of a lost charge that is in a daily total. It adds to the total, so that it would
count twice if it were applied twice.
"""

import asyncio
import itertools
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import psycopg
import pytest
from structlog.testing import capture_logs

from penstock.auth.quota.reservation import OUTCOME_LOST
from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.store import threaded
from penstock.auth.store.opening import opened_store
from penstock.auth.store.postgres import backend as postgres_backend
from penstock.auth.store.roll_up import Retention
from penstock.auth.store.store import Barrier, PutTenant, Reserved
from penstock.chassis.database.postgres import BEGIN
from postgres_relay import postgres_relay
from store_changes import ACME_TENANT, charged, kept, reservation, stored_state
from stores import PostgresStore

TOTAL = "SELECT requests, prompt_tokens, output_tokens FROM usage"
ONCE = [(1, 10, 7)]


def correction():
    lost = charged()
    return lost._replace(charge=replace(lost.charge, is_correction=True))


@pytest.fixture
def store_of(database):
    return PostgresStore(database)


@asynccontextmanager
async def relayed(postgres, store_of, monkeypatch):
    """A store behind a relay, whose only charge was lost and is in a daily total."""
    monkeypatch.setattr(threaded, "IDLE_INTERVAL_S", 0.01)
    monkeypatch.setattr(threaded, "RETRY_INTERVAL_S", 0.02)
    name = psycopg.conninfo.conninfo_to_dict(store_of.location)["dbname"]
    async with postgres_relay(postgres) as relay:
        clock = itertools.count(5 * 86_400.0, 60.0).__next__
        opened = opened_store(relay.url(name), retention=Retention(max_age=1.0), clock=clock)
        async with opened as (store, _):
            await kept(store, PutTenant(ACME_TENANT))
            lost = charged(outcome=OUTCOME_LOST, output=0)
            await kept(store, lost._replace(charge=replace(lost.charge, prompt_tokens=0)))
            await until_rows(store_of, "SELECT count(*) FROM ledger", [(0,)])
            store.backend.roll_up.run_slice = lambda now: False
            store.backend.lease.renewal_interval = 1_000.0
            await kept(store, Barrier())  # from now on, the thread sends only the changes of the test
            yield relay, store


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # another process or thread makes it true
            await asyncio.sleep(0.005)


async def in_thread(store_of, statement):
    return await asyncio.to_thread(store_of.rows, statement)


async def until_rows(store_of, statement, expected):
    async with asyncio.timeout(10):
        while await in_thread(store_of, statement) != expected:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.005)


async def test_a_commit_whose_reply_was_lost_counts_once_and_is_reported_as_written(postgres, store_of, monkeypatch):
    async with relayed(postgres, store_of, monkeypatch) as (relay, store):
        relay.loses_replies = True
        writing = [asyncio.create_task(kept(store, each)) for each in (correction(), reserved(2))]
        await until_rows(store_of, TOTAL, ONCE)
        relay.loses_replies = False
        with capture_logs() as lines:
            relay.cut()
            await asyncio.gather(*writing)
        decided = [line for line in lines if line["event"] == "store_outcome_decided"]
        assert [line["applied"] for line in decided] == [True]
        await kept(store, reserved(3))
    assert store_of.rows(TOTAL) == ONCE
    assert [each.reservation_id for each in (await stored_state(store_of.location)).reservations] == ["r-2", "r-3"]


async def test_a_lost_reply_before_an_outage_counts_once_and_its_reported_reservations_are_deleted(
    postgres, store_of, monkeypatch
):
    async with relayed(postgres, store_of, monkeypatch) as (relay, store):
        relay.loses_replies = True
        reserving = asyncio.create_task(kept(store, reserved(2)))
        charging = asyncio.create_task(kept(store, correction()))
        await until_rows(store_of, TOTAL, ONCE)
        relay.refuses = True
        relay.cut()
        with pytest.raises(psycopg.OperationalError):
            await reserving  # its edge is told that nothing was reserved
        assert not store.is_available
        assert not charging.done()
        relay.refuses = relay.loses_replies = False
        await charging
    assert store_of.rows(TOTAL) == ONCE
    assert (await stored_state(store_of.location)).reservations == []


async def test_a_commit_that_never_reached_the_server_is_written_over_the_next_connection(
    postgres, store_of, monkeypatch
):
    async with relayed(postgres, store_of, monkeypatch) as (relay, store):
        relay.holds_requests = True
        writing = asyncio.create_task(kept(store, correction()))
        await until(lambda: relay.held)
        relay.holds_requests = False
        relay.cut()
        await writing
        relay.held.clear()
    assert store_of.rows(TOTAL) == ONCE


async def test_a_commit_that_arrives_after_its_batch_was_written_again_fails(postgres, store_of, monkeypatch):
    """The former session is not ended here, as if the server could not do that."""
    monkeypatch.setattr(postgres_backend, "end_sessions", lambda connection, owners: None)
    async with relayed(postgres, store_of, monkeypatch) as (relay, store):
        relay.holds_requests = True
        writing = asyncio.create_task(kept(store, correction()))
        await until(lambda: relay.held)
        relay.holds_requests = False
        relay.cut()
        await writing
        assert await in_thread(store_of, TOTAL) == ONCE
        await relay.release()
        await until_rows(store_of, SESSIONS, [(1,)])  # the server has handled it
        assert await in_thread(store_of, TOTAL) == ONCE
    assert store_of.rows(TOTAL) == ONCE


SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


def reserved(number):
    return Reserved(reservation(number), Balance("acme"))


async def test_a_cut_connection_is_opened_again_without_a_failed_change(store_of):
    async with opened_store(store_of.location) as (store, _):
        await kept(store, PutTenant(ACME_TENANT))
        for number in range(5):
            await asyncio.to_thread(store_of.cut)
            await kept(store, reserved(number))
            await kept(store, charged(number))
        assert store.is_available
    assert store_of.rows(TOTAL) == [(5, 50, 35)]


async def test_a_commit_that_the_server_answers_with_the_end_of_the_session_counts_once(
    postgres, store_of, monkeypatch
):
    async with relayed(postgres, store_of, monkeypatch) as (relay, store):
        relay.keeps_clients = True  # the answer arrives before the end of the connection
        with monkeypatch.context() as patch, capture_logs() as lines:
            patch.setattr(postgres_backend, "_run", partial(run_and_end_session, patch))
            await kept(store, correction())
            await kept(store, reserved(2))
        assert [line["applied"] for line in lines if line["event"] == "store_outcome_decided"] == [True]
    assert store_of.rows(TOTAL) == ONCE
    assert [each.reservation_id for each in (await stored_state(store_of.location)).reservations] == ["r-2"]


def run_and_end_session(patch, connection, parts):
    """Commit, and let the server end the session before it has answered the whole pipeline. Only this time."""
    patch.undo()
    with connection.pipeline():
        for statement, values in [(BEGIN, ()), *parts, ("COMMIT", ())]:
            connection.execute(statement, values)
        connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")


async def test_charges_wait_for_a_database_that_is_away_and_are_written_once_in_order(store_of, monkeypatch):
    monkeypatch.setattr(threaded, "RETRY_INTERVAL_S", 0.02)
    changes = []
    async with opened_store(store_of.location) as (store, _):
        store.notify_availability(changes.append)
        for change in (PutTenant(ACME_TENANT), *map(reserved, range(20))):
            await kept(store, change)
        with store_of.unreachable():
            await until(lambda: not store.is_available)  # without a change to write
            done = []
            for number in range(20):
                store.write(charged(number), lambda error, number=number: done.append((number, error)))
            with pytest.raises(psycopg.OperationalError):
                await kept(store, reserved(30))
            assert done == []
        await until(lambda: len(done) == 20)
        assert done == [(number, None) for number in range(20)]
        assert changes == [False, True]
        await kept(store, reserved(31))
    assert store_of.rows(TOTAL) == [(20, 200, 140)]
    assert [each.reservation_id for each in (await stored_state(store_of.location)).reservations] == ["r-31"]


async def test_a_silent_server_counts_as_unavailable(postgres, store_of, monkeypatch):
    monkeypatch.setattr(postgres_backend, "ANSWER_TIMEOUT_S", 0.3)
    async with relayed(postgres, store_of, monkeypatch) as (relay, store):
        relay.loses_replies = relay.refuses = True
        with pytest.raises(psycopg.OperationalError):
            await kept(store, reserved(2))
        assert not store.is_available
        relay.loses_replies = relay.refuses = False
        await until(lambda: store.is_available)
        await kept(store, reserved(3))
    assert [each.reservation_id for each in (await stored_state(store_of.location)).reservations] == ["r-3"]


async def test_text_with_nul_is_stored_without_it(store_of):
    """PostgreSQL refuses NUL, and a charge that is refused would be retried for ever."""
    odd = charged()
    request = replace(odd.charge.reservation.request, model="a\0b\\u0000")
    charge = replace(odd.charge, reservation=replace(odd.charge.reservation, request=request))
    async with opened_store(store_of.location) as (store, _):
        await kept(store, PutTenant(ACME_TENANT))
        await kept(store, odd._replace(charge=charge))
    assert store_of.rows("SELECT model FROM ledger") == [("a\ufffdb\\u0000",)]
