"""The store of batches in PostgreSQL: replicas that work at the same time, and a database that is away."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from batch_stores import LEASE_S, SetClock, StoreOperations, TimedPostgres, empty_database, result, results
from penstock.batch.config import BatchConfig
from penstock.batch.jobs.batch import Status
from penstock.batch.store import jobs
from penstock.batch.store import postgres as batch_postgres
from penstock.batch.store.errors import IdempotencyKeyReused, StoreUnavailable
from penstock.batch.store.opening import opened_store
from penstock.batch.store.postgres import VERSION_TABLE
from penstock.batch.store.schema import POSTGRES_MIGRATIONS
from penstock.chassis.database.errors import StoreTooNew, StoreUnusable
from penstock.chassis.database.postgres_transaction import RECONNECT_INTERVAL_S
from stores import PostgresStore, administer


@pytest.fixture
def store(batch_database):
    clock = SetClock()
    found = StoreOperations(empty_database(batch_database, clock), clock)
    yield found
    found.database.close()


@pytest.fixture
def replica(batch_database, store):
    """Another process over the same database."""
    found = StoreOperations(TimedPostgres(batch_database, store.clock), store.clock)
    yield found
    found.database.close()


def keys(chunks):
    return {each.key.first_line for each in chunks}


def test_replicas_claim_different_chunks_at_the_same_time(store, replica):
    store.file()
    store.divided(chunks=6)
    with store.database.transaction() as first, replica.database.transaction() as second:
        one = keys(store.operations.claim(first, 2, LEASE_S).chunks)
        two = keys(replica.operations.claim(second, 2, LEASE_S).chunks)  # waits for nothing
    assert (len(one), len(two), len(one | two)) == (2, 2, 4)
    assert keys(store.claim(9)) == {0, 3, 6, 9, 12, 15} - one - two


def test_replicas_take_different_jobs_at_the_same_time(store, replica):
    store.file()
    store.batch("batch_1")
    store.batch("batch_2")
    with store.database.transaction() as first, replica.database.transaction() as second:
        names = [jobs.claim_job(each, LEASE_S).batch.batch_id for each in (first, second)]
    assert names == ["batch_1", "batch_2"]


@pytest.mark.parametrize("file_id", ["file-1", "file-2"])
def test_calls_with_one_idempotency_key_at_once_create_one_batch(batch_database, store, replica, file_id):
    """The second one waits for the first. With another file, it is refused."""
    store.file()
    store.file("file-2")
    with ThreadPoolExecutor(1) as threads:
        with replica.database.transaction() as transaction:
            store.operations.create(transaction, store.new_batch("batch_1"), "k")
            second = threads.submit(store.batch, "batch_2", file_id=file_id, idempotency_key="k")
            until_one_waits(batch_database)
        if file_id == "file-1":
            assert second.result().batch_id == "batch_1"
        else:
            with pytest.raises(IdempotencyKeyReused):
                second.result()
    assert [each.batch_id for each in store("list_batches", "acme", after="", limit=9)[0]] == ["batch_1"]


def test_a_session_that_the_server_has_ended_is_replaced(batch_database, store):
    store.file()
    PostgresStore(batch_database).cut()
    assert store("find_file", "acme", "file-1").file_id == "file-1"


def test_a_transaction_that_loses_its_session_is_in_doubt_and_writes_nothing_here(batch_database, store):
    store.file()
    with pytest.raises(StoreUnavailable) as error, store.database.transaction() as transaction:
        store.operations.delete_file(transaction, "acme", "file-1")
        PostgresStore(batch_database).cut()
    assert error.value.is_in_doubt
    assert store("find_file", "acme", "file-1")


def test_a_statement_that_fails_is_not_in_doubt(store):
    with pytest.raises(StoreUnavailable) as error, store.database.transaction() as transaction:
        transaction.run("SELECT 1 / ?", 0)
    assert not error.value.is_in_doubt


def test_the_store_works_again_once_its_database_is_back(batch_database, store):
    store.file()
    with PostgresStore(batch_database).unreachable():
        for _ in range(2):  # the second one fails without a connection
            with pytest.raises(StoreUnavailable):
                store("find_file", "acme", "file-1")
    time.sleep(RECONNECT_INTERVAL_S)
    assert store("find_file", "acme", "file-1")


def test_an_operation_waits_for_a_connection_in_a_bounded_time(store, monkeypatch):
    monkeypatch.setattr(batch_postgres, "CONNECTION_WAIT_S", 0.01)
    store.database._idle.queue[:] = []  # as if others had all
    with pytest.raises(StoreUnavailable, match="in use"):
        store("find_file", "acme", "file-1")


def test_processes_that_start_at_once_migrate_once(database):
    config = BatchConfig(store=database, folder="unused")
    barrier = threading.Barrier(4)

    def start():
        barrier.wait()
        TimedPostgres(config.store, SetClock()).open()

    with ThreadPoolExecutor(4) as threads:
        for each in [threads.submit(start) for _ in range(4)]:
            each.result()
    assert administer(database, f"SELECT version FROM {VERSION_TABLE}") == [(len(POSTGRES_MIGRATIONS),)]


def test_a_schema_of_a_later_release_is_refused(database, tmp_path):
    config = BatchConfig(store=database, folder=str(tmp_path))
    with opened_store(config, SetClock()):
        administer(database, f"UPDATE {VERSION_TABLE} SET version = 99")
    with pytest.raises(StoreTooNew), opened_store(config, SetClock()):
        pass


def test_a_database_that_cannot_be_reached_is_named_without_its_password(tmp_path):
    config = BatchConfig(store="postgresql://user:secret@127.0.0.1:1/batches", folder=str(tmp_path))
    with pytest.raises(StoreUnusable, match="PENSTOCK_BATCH_STORE") as error, opened_store(config, SetClock()):
        pass
    assert "secret" not in str(error.value)


async def test_the_settings_name_a_database_whose_clock_all_times_follow(batch_database, store, tmp_path):
    config = BatchConfig(store=batch_database, folder=str(tmp_path))
    store.file()
    with opened_store(config, lambda: 1.0) as opened:
        with opened.database.transaction() as transaction:
            assert 1.0 < opened.clock() <= transaction.now
        assert await opened.run(opened.operations.without_file, ["file-1", "file-2"]) == ["file-2"]


def test_a_result_and_the_end_of_its_chunk_wait_for_each_other(store, replica):
    store.file()
    store.divided(chunks=1)
    [chunk] = store.claim(1)
    store("cancel", "acme", "batch_1")
    store.now += LEASE_S
    with replica.database.transaction() as transaction:
        assert store.operations.put_results(transaction, [result(chunk, 0)]) == [True]
        assert store("claim_job", LEASE_S) is None  # a batch that counts a result is due later
    with ThreadPoolExecutor(1) as threads:
        with replica.database.transaction() as transaction:
            assert jobs.claim_job(transaction, LEASE_S)
            late = threads.submit(store, "put_results", [result(chunk, 1)])
        assert late.result() == [False]
    assert store.found().completed == 1


def test_the_last_of_two_chunks_that_end_at_once_ends_their_batch(batch_database, store, replica):
    store.file()
    store.divided(chunks=2)
    first, second = store.claim(2)
    for each in (first, second):
        store("put_results", results(each))
    with ThreadPoolExecutor(1) as threads:
        with replica.database.transaction() as transaction:
            replica.operations.release(transaction, [(first.key, first.epoch)])
            late = threads.submit(store, "release", [(second.key, second.epoch)])
            until_one_waits(batch_database)
        late.result()
    assert store.found().status is Status.FINALIZING


def until_one_waits(database):
    """Wait until a session waits for a lock of another one."""
    for _ in range(500):
        if administer(database, "SELECT count(*) FROM pg_locks WHERE NOT granted") == [(1,)]:
            return
        time.sleep(0.01)
    pytest.fail("no session waits")


def test_results_of_one_chunk_are_stored_once_by_two_replicas(store, replica):
    store.file()
    store.divided(chunks=1)
    [chunk] = store.claim(1)
    given = [result(chunk, number) for number in range(3)]
    with ThreadPoolExecutor(2) as threads:
        stored = [each.result() for each in [threads.submit(one, "put_results", given) for one in (store, replica)]]
    assert sorted(map(sum, stored)) == [0, 3]
    assert store.found().completed == 3


def test_replicas_that_do_everything_at_once_wait_for_each_other_without_a_deadlock(batch_database, store):
    """Each line of three batches has one result, but for those of the batch that is cancelled meanwhile."""
    store.file()
    for number in range(3):
        store.divided(chunks=12, lines=4, batch_id=f"batch_{number}", window=1e6)
    replicas = [StoreOperations(TimedPostgres(batch_database, store.clock), store.clock) for _ in range(4)]
    with ThreadPoolExecutor(5) as threads:
        working = [threads.submit(work, each, Random(seed)) for seed, each in enumerate(replicas)]
        cancelling = threads.submit(cancel_and_end, store)
        stored = [each.result() for each in working]
        cancelling.result()
    for each in replicas:
        each.database.close()
    found = [store.found(f"batch_{number}") for number in range(3)]
    assert sum(stored) == sum(each.completed for each in found)
    assert [(each.status, each.completed) for each in found[1:]] == [(Status.FINALIZING, 48)] * 2
    assert found[0].status is Status.CANCELLED


def work(replica, random):
    """Claim, renew, commit and release chunks until there is none. Return the number of results that were stored."""
    count = 0
    while chunks := replica.claim(3):
        held = [(each.key, each.epoch) for each in chunks]
        random.shuffle(held)
        given = [each for chunk in chunks for each in results(chunk)]
        random.shuffle(given)
        for first in range(0, len(given), 5):
            count += sum(replica("put_results", given[first : first + 5]))
            replica("renew", held, LEASE_S)
        replica("release", held)
    return count


def cancel_and_end(store):
    """Cancel a batch, and end it once no replica has a chunk of it."""
    store("cancel", "acme", "batch_0")
    while store.found("batch_0").status is not Status.CANCELLED:
        job = store("claim_job", LEASE_S)
        if job and job.batch.batch_id == "batch_0":
            assert store("finish", job, None, None)
