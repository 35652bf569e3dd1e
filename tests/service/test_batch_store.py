"""The store of batches: chunks with leases, results that are stored once, and ends."""

from math import inf
from threading import Thread

import pytest

from batch_stores import LEASE_S, result, results, store_of
from penstock.batch.census import take_census
from penstock.batch.jobs.batch import BatchEnded, Status
from penstock.batch.jobs.chunks import ChunkKey, ChunkState, LineResult
from penstock.batch.store import jobs, postgres
from penstock.batch.store import statements as sql
from penstock.batch.store.errors import BatchUnknown, StoreUnavailable
from penstock.batch.store.jobs import Chunk
from penstock.batch.store.operations import StoredFile
from penstock.batch.store.sqlite import SqliteDatabase
from penstock.v1.batches_pb2 import FILE_PURPOSE_BATCH_OUTPUT


@pytest.fixture(params=["sqlite", "postgres"])
def store(request):
    with store_of(request) as found:
        yield found


def test_a_file_is_divided_by_one_replica_at_a_time_and_its_lines_run(store):
    store.file()
    store.batch()
    job = store("claim_job", LEASE_S)
    assert store("claim_job", LEASE_S) is None
    store.now += LEASE_S
    second = store("claim_job", LEASE_S)
    assert not store("divide", job, [Chunk(0, 3, 0, 30)], 3)  # it was too late
    assert store("divide", second, [Chunk(0, 2, 0, 20), Chunk(2, 1, 20, 10)], 3)
    found = store.found()
    assert (found.status, found.lines, dict(found.metadata)) == (Status.IN_PROGRESS, 3, {"a": "b"})


def test_a_file_that_cannot_be_divided_fails_its_batch(store):
    store.file()
    store.batch()
    store("fail", store("claim_job", LEASE_S), "FILE_EMPTY", "no line")
    assert (store.found().status, store.found().failure_reason) == (Status.FAILED, "FILE_EMPTY")
    assert store("claim_job", LEASE_S) is None


def test_chunks_are_claimed_once_until_their_lease_ends(store):
    store.file()
    store.divided(chunks=3)
    first, second = store.claim(2)
    [third] = store.claim(2)
    assert [each.key.first_line for each in (first, second, third)] == [0, 3, 6]
    assert store("renew", [(first.key, first.epoch), (second.key, 9)], LEASE_S) == [ChunkState.HELD, ChunkState.LOST]
    store.now += LEASE_S + 1
    again = store.claim(5)
    assert [(each.key.first_line, each.epoch) for each in again] == [(0, 2), (3, 2), (6, 2)]
    assert store("renew", [(first.key, first.epoch)], LEASE_S) == [ChunkState.LOST]


def test_a_chunk_whose_holder_died_comes_before_new_ones_unless_it_has_outlived_many(store):
    """Auth has forgotten a line that runs again after a hundred thousand others, and charges it twice."""
    store.file()
    store.divided(chunks=4)
    [chunk] = store.claim(1)
    for epoch in range(2, sql.EARLY_EPOCHS + 2):
        store.now += LEASE_S + 1
        assert [(each.key, each.epoch) for each in store.claim(1)] == [(chunk.key, epoch)]
    store.now += LEASE_S + 1
    assert [each.epoch for each in store.claim(3)] == [1, 1, 1]
    assert [each.key for each in store.claim(3)] == [chunk.key]


def test_tenants_have_as_many_chunks_at_work(store):
    store.file()
    store.file("file-2", tenant="globex")
    store.divided(chunks=4)
    store.divided(chunks=4, batch_id="batch_2", tenant="globex", file_id="file-2", window=50.0)
    store.divided(chunks=1, batch_id="batch_3", tenant="globex", file_id="file-2")
    for count in (4, 2, 3):  # the last one takes what is left: one tenant has no more
        tenants = [each.tenant_id for each in store.claim(count)]
        assert tenants.count("acme") == min(2, count // 2)
    assert store.claim(1) == []


def test_a_claim_tells_when_the_next_lease_ends(store):
    """The chunks of a replica that has died are claimed as soon as their leases have ended."""
    store.file()
    store.divided(chunks=3)
    assert store("claim", 1, LEASE_S).next_lease_s == inf
    store.now += 2.0
    assert store("claim", 2, LEASE_S).next_lease_s == LEASE_S - 2.0
    store.now += LEASE_S - 2.5
    found = store("claim", 9, LEASE_S)
    assert (found.chunks, found.next_lease_s) == ([], 0.5)
    store.now += 0.5
    assert len(store.claim(9)) == 1


def test_a_look_without_a_job_tells_when_the_next_one_is_due(store):
    """A window ends, a job is lost, or a replica with chunks of a cancelled batch dies: no signal tells of these."""
    assert store("take_work", LEASE_S, 10).next_due_s == inf
    store.file()
    store.divided(window=100.0)
    assert store("take_work", LEASE_S, 10).next_due_s == 100.0
    store.claim(1, 20.0)
    store("cancel", "acme", "batch_1")
    assert store("take_work", LEASE_S, 10).next_due_s == 20.0
    store.now += 20.0
    assert store("take_work", LEASE_S, 10).job.batch.batch_id == "batch_1"
    assert store("take_work", LEASE_S, 10).next_due_s == LEASE_S


def test_a_release_tells_whether_an_output_may_be_due(store):
    store.file()
    store.divided(chunks=2, lines=1)
    first, second = store.claim(2)
    store("put_results", results(first))
    assert not store("release", [(first.key, 1)])
    assert not store("release", [(second.key, 1)])
    [again] = store.claim(2)
    store("put_results", results(again))
    assert store("release", [(again.key, again.epoch)])
    assert store("finish", store("claim_job", LEASE_S), None, None)
    store.divided(batch_id="batch_2")
    [chunk] = store.claim(1)
    store("cancel", "acme", "batch_2")
    assert store("release", [(chunk.key, chunk.epoch)])


def test_a_chunk_that_another_replica_claims_meanwhile_is_replaced_by_one_of_another_batch(store):
    store.file()
    store.divided(chunks=1)
    store.divided(chunks=3, batch_id="batch_2", window=200.0)
    assert [each.key.batch_id for each in store.claim(4)] == ["batch_1", "batch_2", "batch_2", "batch_2"]


def test_a_result_is_stored_once_under_the_present_epoch(store):
    store.file()
    store.divided(chunks=1)
    [chunk] = store.claim(1)
    assert store("put_results", [result(chunk, 0), result(chunk, 0), result(chunk, 1, is_error=True)]) == [
        True,
        False,
        True,
    ]
    store.now += LEASE_S + 1
    [again] = store.claim(1)
    assert store("put_results", [result(chunk, 2)]) == [False]  # of the former holder
    assert store("lines_done", 1, 0, 3) == {0, 1}
    assert store("put_results", [result(again, 2)]) == [True]
    found = store.found()
    assert (found.completed, found.failed, found.input_tokens, found.output_tokens) == (2, 1, 6, 9)


def test_the_last_chunk_ends_a_batch_and_its_output_is_written_by_one_replica(store):
    store.file()
    store.divided(chunks=2)
    for chunk in store.claim(2):
        store("put_results", results(chunk))
        store("release", [(chunk.key, chunk.epoch)])
    assert store.found().status is Status.FINALIZING
    job = store("claim_job", LEASE_S)
    output = StoredFile("file-out", "acme", "o", FILE_PURPOSE_BATCH_OUTPUT, 10, store.now, store.now + 100.0)
    assert not store("drop_rows", 2)  # they are read until the batch has ended
    assert store("finish", job, output, None)
    assert not store("finish", job._replace(epoch=9), output, None)
    assert [store("drop_rows", 2) for _ in range(5)] == [True, True, True, True, False]  # 6 results, then the chunks
    found = store.found()
    assert (found.status, found.output_file_id, found.error_file_id) == (Status.COMPLETED, "file-out", "")
    assert store("find_file", "acme", "file-out").size_bytes == 10


def test_results_are_read_in_parts_of_bounded_size(store, monkeypatch):
    store.file()
    store.divided(chunks=1, lines=9)
    [chunk] = store.claim(1)
    sizes = [10, 10, 10, 10, 99, 10, 30, 10, 10]
    store("put_results", [result(chunk, number)._replace(row=b"x" * size) for number, size in enumerate(sizes)])
    monkeypatch.setattr(jobs, "READ_BYTES", 40)
    monkeypatch.setattr(jobs, "READ_RESULTS", 3)
    parts, last = [], -1
    while found := store("read_results", 1, last):
        parts.append([each.line for each in found])
        last = found[-1].line
    assert parts == [[0, 1, 2], [3], [4], [5, 6], [7, 8]]


def test_a_chunk_with_missing_results_is_given_back(store):
    store.file()
    store.divided(chunks=1)
    [chunk] = store.claim(1)
    store("put_results", [result(chunk, 1)])
    store("release", [(chunk.key, chunk.epoch)])
    [again] = store.claim(1)
    assert again.epoch == 2
    assert store.found().status is Status.IN_PROGRESS


def test_a_cancelled_batch_stops_its_chunks_and_keeps_its_answers(store):
    store.file()
    store.divided(chunks=2)
    [chunk] = store.claim(1)
    assert store("cancel", "acme", "batch_1").status is Status.CANCELLING
    assert store.claim(5) == []
    assert store("renew", [(chunk.key, chunk.epoch)], LEASE_S) == [ChunkState.STOPPED]
    assert store("claim_job", LEASE_S) is None  # a replica has a chunk
    store("put_results", [result(chunk, 0)])
    store("release", [(chunk.key, chunk.epoch)])
    assert store("finish", store("claim_job", LEASE_S), None, None)
    assert (store.found().status, store.found().completed) == (Status.CANCELLED, 1)
    assert store("cancel", "acme", "batch_1").status is Status.CANCELLED


def test_a_batch_that_has_ended_is_not_cancelled(store):
    store.file()
    store.divided(chunks=1)
    assert store("claim_job", LEASE_S) is None
    store.now += 200.0
    assert store("finish", store("claim_job", LEASE_S), None, None)
    assert store.found().status is Status.EXPIRED
    with pytest.raises(BatchEnded):
        store("cancel", "acme", "batch_1")


def test_the_end_of_the_window_stops_the_chunks(store):
    store.file()
    store.divided(chunks=1)
    [chunk] = store.claim(1, 1_000.0)
    store.now += 100.0
    assert store("claim_job", LEASE_S) is None  # a replica has a chunk
    assert store("renew", [(chunk.key, chunk.epoch)], LEASE_S) == [ChunkState.STOPPED]
    assert store.found().status is Status.FINALIZING


def test_the_end_of_a_batch_is_predicted_from_its_speed(store):
    store.file()
    store.divided(chunks=2)
    assert store.found().expected_end(store.now) == 0.0
    [chunk] = store.claim(1)
    store.now += 6.0
    store("put_results", results(chunk))
    assert store.found().expected_end(store.now) == store.now + 6.0
    message = store.found().to_message(store.now)
    assert (message.lines.total, message.lines.completed, message.tokens.output) == (6, 3, 9)
    assert message.expected_end_time.seconds == store.now + 6.0


def test_results_of_an_unknown_chunk_are_dropped(store):
    store.file()
    store.divided(chunks=1)
    unknown = LineResult(ChunkKey("batch_9", 0), 1, 0, False, b"{}", 1, 1)
    assert store("put_results", [unknown]) == [False]


def test_a_paused_replica_adds_no_result_once_the_output_is_written(store):
    store.file()
    store.divided(chunks=1)
    [chunk] = store.claim(1)
    store("cancel", "acme", "batch_1")
    store.now += LEASE_S + 1
    job = store("claim_job", LEASE_S)
    assert store("put_results", [result(chunk, 0)]) == [False]
    assert store("renew", [(chunk.key, chunk.epoch)], LEASE_S) == [ChunkState.LOST]
    assert store("finish", job, None, None)
    assert store.found().completed == 0


def test_a_file_that_expires_is_divided_for_its_batch(store):
    store.file()
    store.batch()
    store.now += 2_000.0
    assert store("input_file", store("claim_job", LEASE_S)).file_id == "file-1"


def test_ended_batches_are_deleted_with_their_files(store):
    store.file()
    store.batch()
    store("fail", store("claim_job", LEASE_S), "FILE_EMPTY", "no line")
    store.now += 499.0
    assert store("drop_ended_batches", 10) == 0
    store.now += 1.0
    assert store("drop_ended_batches", 10) == 1
    with pytest.raises(BatchUnknown):
        store.found()


def test_looks_for_work_read_no_row_of_a_chunk_that_is_free_or_has_ended(store):
    store.file()
    store.divided(chunks=4_000, lines=256)
    claimed = store.claim(4)
    with store.database.transaction() as transaction:
        explain = "EXPLAIN " if is_postgres(store) else "EXPLAIN QUERY PLAN "
        if is_postgres(store):
            transaction.run("ANALYZE chunks")
            transaction.run("ANALYZE batches")
        now = store.now
        looks = {
            sql.RUNNING: (now, now),
            sql.HOLD_CHUNKS: (1, now, 4, 1, now, 4, 4, now, 1),
            sql.DUE_JOB: (now, now),
            sql.NEXT_JOB: (now,),
            sql.OPEN_CHUNK: (1,),
            sql.LOCK_CHUNK: claimed[0].key,
        }
        plans = {
            each: "\n".join(str(row[-1]) for row in transaction.run(explain + each, *values))
            for each, values in looks.items()
        }
    for each, plan in plans.items():
        assert "Seq Scan on chunks" not in plan, (each, plan)
        assert "SCAN chunks" not in plan, (each, plan)
    for each in (sql.RUNNING, sql.HOLD_CHUNKS, sql.DUE_JOB, sql.NEXT_JOB):
        assert "chunks_open" in plans[each], plans[each]


def is_postgres(store):
    return not isinstance(store.database, SqliteDatabase)


def test_a_census_counts_the_lines_without_a_result_and_the_time_that_they_need(store):
    store.file()
    store.divided(chunks=2, lines=3)
    store.now += 10.0
    (chunk,) = store.claim(1)
    store("put_results", results(chunk))
    with store.database.transaction() as transaction:
        census = take_census(transaction)
    figures = census.figures
    assert (figures["lines_left"], figures["batches_in_progress"], figures["file_bytes"]) == (3, 1, 100)
    assert figures["time_left_s"] == pytest.approx(10.0)


def test_a_store_that_is_closed_opens_no_connection_for_a_late_thread(store, monkeypatch):
    monkeypatch.setattr(postgres, "CONNECTION_WAIT_S", 0.01)
    store.file()
    with store.database.transaction() as transaction:
        closing = Thread(target=store.database.close)
        closing.start()
        store.operations.find_file(transaction, "acme", "file-1")
    closing.join()
    with pytest.raises(StoreUnavailable):
        store.found()
