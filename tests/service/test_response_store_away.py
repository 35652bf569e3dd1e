"""A store of responses that is away, slow or full: each call fails in a bounded time, and the next ones succeed."""

import asyncio
import contextlib
import sqlite3
from contextlib import contextmanager

import pytest
from structlog.testing import capture_logs

from penstock.auth.store.responses import sqlite as sqlite_responses
from penstock.auth.store.responses import store as response_store
from penstock.auth.store.responses import upkeep
from penstock.auth.store.responses.operations import ResponseOperations
from penstock.chassis.database.errors import StoreTooNew
from penstock.chassis.errors import Internal, Unavailable
from response_calls import (
    HELD,
    ResponseClient,
    ResponseTables,
    cancel,
    chain,
    claim,
    create,
    delete,
    extend,
    finish,
    part,
    progress,
    read,
    response_client,
    wait_longer,
)
from stores import PostgresStore, administer


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    wait_longer(monkeypatch)


async def succeeds_again(client, operation):
    """Repeat a call until it succeeds, and return its outcome."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await client(operation)
            except Unavailable:
                await asyncio.sleep(0.05)


async def unavailable(client, operation):
    with pytest.raises(Unavailable) as error:
        await client(operation)
    assert (error.value.reason, error.value.retry_after) == ("STORE_UNAVAILABLE", 1.0)
    return error.value.message


async def test_a_full_disk_fails_what_writes_until_it_has_space(tmp_path):
    async with response_client(tmp_path / "auth.db") as client:
        await client(create())
        thread = client.store.threads[0]
        ((pages,),) = await thread.run(lambda backend: set_pragma(backend, "page_count"))
        await thread.run(lambda backend: set_pragma(backend, f"max_page_count = {pages}"))
        large = create("large", request=b"x" * 100_000)
        calls = [client.start(each) for each in (large, read(), large, extend(progress()))]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in results] == [Unavailable, list, Unavailable, list]
        assert "full" in await unavailable(client, large)
        assert client.store.figures["response_calls_failed"] == 3
        assert not client.store.is_available
        await thread.run(lambda backend: set_pragma(backend, "max_page_count = 1000000"))
        with capture_logs() as logs:
            assert await client(large) == 1
        assert [each["event"] for each in logs] == ["response_store_available"]


def set_pragma(backend, text):
    return backend._connected().execute(f"PRAGMA {text}").fetchall()  # as no setting of ours does


async def test_the_last_space_of_a_volume_is_left_to_the_ledger(tmp_path, monkeypatch):
    free = [sqlite_responses.LEDGER_BYTES]
    monkeypatch.setattr(sqlite_responses, "free_bytes", lambda _: free[0])
    async with response_client(tmp_path / "auth.db") as client:
        await client(create())
        free[0] -= 1
        assert "enlarge it" in await unavailable(client, create("r2"))
        assert await client(extend(progress(tokens=part(0, 3)))) == [HELD]
        await client(finish())
        await client(delete())
        free[0] += 1
        assert await client(create("r2")) == 1


async def test_a_damaged_file_does_not_prevent_the_start(tmp_path):
    (tmp_path / "auth.db.responses").write_bytes(b"no database" * 1_000)
    with capture_logs() as logs:
        async with response_client(tmp_path / "auth.db") as client:
            assert "not a database" in await unavailable(client, create())
            (tmp_path / "auth.db.responses").unlink()
            assert await succeeds_again(client, create()) == 1
    assert "move it away" in next(each["error"] for each in logs if each["event"] == "responses_not_opened")


async def test_a_file_of_a_later_release_prevents_the_start(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "auth.db.responses")) as raw:
        raw.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreTooNew):
        async with response_client(tmp_path / "auth.db"):
            pass


async def test_a_database_that_is_away_and_back_needs_no_restart(database):
    stored = PostgresStore(database)
    ResponseTables(stored).prepare()
    async with response_client(database) as client:
        await client(create())
        with stored.unreachable():
            for each in (create("r2"), read(), extend(progress()), claim()):
                await unavailable(client, each)
            with pytest.raises(Unavailable):
                await client.store.delete_of_tenant("acme")
        assert await succeeds_again(client, create("r2")) == 1
        assert await client(extend(progress(tokens=part(0, 1)))) == [HELD]


async def test_a_lost_connection_fails_no_later_call(database):
    stored = PostgresStore(database)
    ResponseTables(stored).prepare()
    async with response_client(database) as client:
        await client(create())
        stored.cut()
        assert await client(extend(progress())) == [HELD]
        assert client.store.figures["response_calls_failed"] == 0


async def test_a_database_that_does_not_answer_holds_no_call_for_long(response_tables, monkeypatch):
    monkeypatch.setattr(response_store, "CALL_TIMEOUT_S", 0.1)
    monkeypatch.setattr(response_store, "TIMEOUT_INTERVAL_S", 0.05)
    async with response_client(response_tables.stored.location) as client:
        await succeeds_again(client, create())
        with locked_tables(response_tables.stored):
            assert "in time" in await unavailable(client, extend(progress()))
            calls = [client.start(create(f"r{number}")) for number in range(20)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(each, Unavailable) for each in results)
            assert client.store.pending == 0
        assert await succeeds_again(client, create("after")) == 1
        # A call that failed may have been performed; it has one result, and may be repeated.
        assert await succeeds_again(client, create("r0")) == 1


@contextmanager
def locked_tables(stored):
    """Let another session lock the tables."""
    if isinstance(stored, PostgresStore):
        import psycopg

        with psycopg.connect(stored.location) as session:
            session.execute("LOCK TABLE responses IN ACCESS EXCLUSIVE MODE")
            yield
            session.rollback()
        return
    session = sqlite3.connect(f"{stored.location}.responses", isolation_level=None)
    session.execute("BEGIN IMMEDIATE")
    yield
    session.close()


async def test_calls_beyond_the_most_that_may_wait_fail_at_once(response_tables, monkeypatch):
    monkeypatch.setattr(response_store, "MAX_PENDING_CALLS", 3)
    async with response_client(response_tables.stored.location) as client:
        calls = [client.start(create(f"r{number}")) for number in range(5)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in results] == [int, int, int, Unavailable, Unavailable]
        assert await client(create("r4")) == 1


async def test_calls_with_too_many_bytes_fail_at_once(response_tables, monkeypatch):
    monkeypatch.setattr(response_store, "MAX_PENDING_BYTES", 25_000)
    async with response_client(response_tables.stored.location) as client:
        calls = [client.start(create(f"r{number}", request=b"x" * 10_000)) for number in range(3)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in results] == [int, int, Unavailable]
        assert client.store.pending_bytes == 0


async def test_an_edge_that_does_not_read_its_results_gets_no_further_responses(response_tables, monkeypatch):
    monkeypatch.setattr(response_store, "CALL_TIMEOUT_S", 60)
    async with response_client(response_tables.stored.location) as client:
        await client(create())
        slow = ResponseClient(client.store, "edge-2", unwritten=response_store.MAX_UNWRITTEN_BYTES + 1)
        delayed = [slow.start(each) for each in (read(), chain(), claim(), cancel())]
        for number in range(20):
            await client(read())
            assert await slow(create(f"r{number}")) == 1
        assert not any(each.done() for each in delayed)
        slow.unwritten = 0
        assert len(await asyncio.gather(*delayed)) == 4
        assert client.store.pending == 0


async def test_an_edge_that_never_reads_its_results_delays_no_other_after_its_calls_have_failed(
    response_tables, monkeypatch
):
    monkeypatch.setattr(response_store, "CALL_TIMEOUT_S", 0.1)
    monkeypatch.setattr(response_store, "TIMEOUT_INTERVAL_S", 0.05)
    async with response_client(response_tables.stored.location) as client:
        await succeeds_again(client, create())
        slow = ResponseClient(client.store, "edge-2", unwritten=response_store.MAX_UNWRITTEN_BYTES + 1)
        await unavailable(slow, read())
        assert len(await succeeds_again(client, read())) == 1


async def test_each_thread_has_at_most_one_call_that_returns_responses(response_tables):
    async with response_client(response_tables.stored.location) as client:
        for number in range(20):
            await client(create(f"r{number}"))
        calls = [client.start(read(f"r{number}")) for number in range(20)]
        threads = client.store.threads
        assert sum(each.queued() for each in threads) <= len(threads)
        assert len(await asyncio.gather(*calls)) == 20


async def test_a_defect_in_one_call_fails_it_alone(response_tables, monkeypatch):
    original = ResponseOperations.perform

    def perform(self, transaction, call):
        if call.create.request == b"defect":
            raise RuntimeError("a defect")
        return original(self, transaction, call)

    monkeypatch.setattr(ResponseOperations, "perform", perform)
    async with response_client(response_tables.stored.location) as client:
        with capture_logs() as logs:
            calls = [
                client.start(create(f"r{number}", request=each)) for number, each in enumerate([b"", b"defect", b""])
            ]
            results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in results] == [int, Internal, int]
        assert [each["event"] for each in logs if each["log_level"] == "error"] == ["stored_response_failed"]


async def test_a_defect_in_the_upkeep_does_not_end_the_thread(response_tables, monkeypatch):
    failed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def run_slice(_):
        loop.call_soon_threadsafe(failed.set)
        raise RuntimeError("a defect")

    monkeypatch.setattr(upkeep, "run_slice", run_slice)
    async with response_client(response_tables.stored.location) as client:
        async with asyncio.timeout(10):
            await failed.wait()
        assert await client(create()) == 1


def test_every_table_of_the_store_is_in_the_database_of_the_ledger(database):
    ResponseTables(PostgresStore(database)).prepare()
    found = administer(database, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'response%' ORDER BY 1")
    assert [name for (name,) in found] == ["response_contents", "response_tokens", "response_usage", "responses"]
