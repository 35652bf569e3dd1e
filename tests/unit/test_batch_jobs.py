"""Jobs of batches over a file of SQLite and a folder: division, output in the order of the lines, ends."""

import asyncio
import json
import threading

import pytest

from batch_jobs import run_job
from penstock.batch.blobs.folder import FolderBlobs
from penstock.batch.config import BatchConfig
from penstock.batch.jobs import division
from penstock.batch.jobs.batch import Batch, Status
from penstock.batch.jobs.chunks import LineResult
from penstock.batch.store import file_division, job_worker, jobs
from penstock.batch.store.errors import StoreUnavailable
from penstock.batch.store.file_division import FileDivider
from penstock.batch.store.job_lease import JOB_LEASE_S
from penstock.batch.store.job_worker import JobWorker
from penstock.batch.store.opening import database_clock, opened_store
from penstock.batch.store.operations import BatchOperations, StoredFile
from penstock.batch.store.sqlite import SqliteDatabase
from penstock.batch.store.store import BatchStore
from penstock.chassis.errors import InvalidArgument
from penstock.v1.batches_pb2 import FILE_PURPOSE_BATCH

LEASE_S = 10.0
LATER = float("inf")
ENDPOINT = "/v1/embeddings"


class Tier:
    """A store in a folder, with the time of the test."""

    def __init__(self, folder):
        self.now = 1_000.0
        self.blobs = FolderBlobs(folder / "contents")
        self.database = SqliteDatabase(str(folder / "batches"), lambda: self.now, fsync=False)
        operations = BatchOperations(file_bytes_per_tenant=1 << 20, batches_per_tenant=3)
        self.store = BatchStore(self.database, self.blobs, operations, lambda: self.now, max_file_bytes=1 << 18)
        self.worker = JobWorker(self.store)

    async def upload(self, *parts, file_id="file-1"):
        async def contents():
            for each in parts:
                yield each

        file = StoredFile(file_id, "acme", "lines.jsonl", FILE_PURPOSE_BATCH, 0, self.now, self.now + 5_000.0)
        return await self.store.add_file(file, contents())

    async def create(self, batch_id="batch_1", file_id="file-1"):
        given = {"key_id": "k", "delegation": b"d", "endpoint": ENDPOINT, "window": 100.0, "output_ttl": 500.0}
        batch = Batch(batch_id=batch_id, tenant_id="acme", input_file_id=file_id, created_at=self.now, **given)
        await self.store.create(batch)

    async def batch(self, batch_id="batch_1"):
        return await self.store.run(self.store.operations.find, "acme", batch_id)

    async def rows(self, file_id):
        file = await self.store.run(self.store.operations.find_file, "acme", file_id)
        return b"".join([each async for each in self.store.read_file(file)]).splitlines()


@pytest.fixture
def tier(tmp_path):
    found = Tier(tmp_path)
    yield found
    found.database.close()


def line(number):
    call = {"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": {"input": "x"}}
    return json.dumps(call).encode() + b"\n"


def result(chunk, number, *, is_error=False):
    return LineResult(chunk.key, chunk.epoch, number, is_error, b'{"n":%d}' % number, 1, 1)


async def test_a_batch_runs_from_its_file_to_an_output_in_the_order_of_its_lines(tier):
    whole = b"".join(map(line, range(600)))
    await tier.upload(whole[:1_000], whole[1_000:])
    await tier.create()
    assert await run_job(tier.worker)
    assert not await run_job(tier.worker)
    chunks = (await tier.store.claim("a", 5, LEASE_S)).chunks
    assert [each.line_count for each in chunks] == [256, 256, 88]
    for chunk in reversed(chunks):
        lines = await tier.store.read_lines(chunk)
        assert [each.content + b"\n" for each in lines] == [line(each.number) for each in lines]
        given = [result(chunk, each.number, is_error=each.number % 100 == 7) for each in reversed(lines)]
        assert all(await tier.store.put_results(given))
        assert await tier.store.read_lines(chunk) == []
        await tier.store.release([(chunk.key, chunk.epoch)])
    assert await run_job(tier.worker)
    batch = await tier.batch()
    assert (batch.status, batch.lines, batch.completed, batch.failed) == (Status.COMPLETED, 600, 594, 6)
    numbers = [json.loads(row)["n"] for row in await tier.rows(batch.output_file_id)]
    assert numbers == [number for number in range(600) if number % 100 != 7]
    assert [json.loads(row)["n"] for row in await tier.rows(batch.error_file_id)] == [7, 107, 207, 307, 407, 507]


async def test_lines_of_an_expired_batch_without_an_answer_have_an_error(tier):
    await tier.upload(*(line(0), line(1), b"{\n", line(3)))
    await tier.create()
    assert await run_job(tier.worker)
    [chunk] = (await tier.store.claim("a", 1, LEASE_S)).chunks
    await tier.store.put_results([result(chunk, 1)])
    tier.now += 100.0
    assert await run_job(tier.worker)
    batch = await tier.batch()
    assert (batch.status, batch.completed, batch.failed) == (Status.EXPIRED, 1, 3)
    errors = [json.loads(row) for row in await tier.rows(batch.error_file_id)]
    expected = [("line-0", "batch_expired"), (None, "invalid_json_line"), ("line-3", "batch_expired")]
    assert [(each["custom_id"], each["error"]["code"]) for each in errors] == expected
    assert await tier.rows(batch.output_file_id) == [b'{"n":1}']


async def test_a_job_that_is_cut_is_done_again_and_its_lines_run_once(tier):
    await tier.upload(line(0))
    await tier.create()
    cut = await tier.store.run(jobs.claim_job, LEASE_S)
    assert not await run_job(tier.worker)
    tier.now += LEASE_S
    assert await run_job(tier.worker)
    assert not await tier.store.run(jobs.divide, cut, [jobs.Chunk(0, 9, 0, 9)], 9)
    assert (await tier.batch()).lines == 1


async def test_a_worker_at_rest_waits_for_a_signal(tier, monkeypatch):
    """Each step of a batch follows from the one before it, without a look of its own."""
    monkeypatch.setattr(job_worker, "LOOK_INTERVAL_S", 1_000.0)
    await tier.upload(line(0))
    working = asyncio.create_task(tier.worker.run())
    try:
        async with asyncio.timeout(20.0):
            await asyncio.sleep(0.1)  # the worker has looked and waits
            await tier.create()
            await tier.store.chunks_due.wait(20.0)
            [chunk] = (await tier.store.claim("a", 1, LEASE_S)).chunks
            await tier.store.put_results([result(chunk, 0)])
            await tier.store.release([(chunk.key, chunk.epoch)])
            while await tier.store.run(rows_left):  # noqa: ASYNC110  # the worker has no event for tests
                await asyncio.sleep(0.01)
    finally:
        working.cancel()
        await asyncio.wait([working])
    assert (await tier.batch()).status is Status.COMPLETED


def rows_left(transaction):
    return transaction.run("SELECT 1 FROM batches WHERE has_rows = 1")


async def test_a_job_that_is_cut_by_a_drain_is_free_at_once(tier, monkeypatch):
    await tier.upload(line(0))
    await tier.create()
    has_begun = asyncio.Event()

    async def divide(divider):
        has_begun.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(FileDivider, "divide", divide)
        working = asyncio.create_task(tier.worker.run())
        await asyncio.wait_for(has_begun.wait(), 20.0)
        working.cancel()
        await asyncio.wait([working])
    assert await run_job(tier.worker)
    assert (await tier.batch()).status is Status.IN_PROGRESS


async def test_an_upload_that_is_cut_while_its_content_begins_leaves_no_part(tier, tmp_path, monkeypatch):
    has_begun, may_go_on = asyncio.Event(), threading.Event()
    loop, create = asyncio.get_running_loop(), FolderBlobs.create

    def created(blobs, name):
        writer = create(blobs, name)
        loop.call_soon_threadsafe(has_begun.set)
        may_go_on.wait(20.0)
        return writer

    monkeypatch.setattr(FolderBlobs, "create", created)
    upload = asyncio.create_task(tier.upload(line(0)))
    await asyncio.wait_for(has_begun.wait(), 20.0)
    upload.cancel()
    may_go_on.set()
    await asyncio.wait([upload])
    assert upload.cancelled()
    assert list((tmp_path / "contents").iterdir()) == []


async def test_a_small_batch_need_not_wait_for_the_division_of_a_large_one(tier, monkeypatch):
    await tier.upload(line(0))
    await tier.create()
    await tier.create("batch_2")
    divide, gate = FileDivider.divide, asyncio.Event()

    async def slow(divider):
        if divider.lease.job.batch.batch_id == "batch_1":
            await gate.wait()
        await divide(divider)

    monkeypatch.setattr(FileDivider, "divide", slow)
    working = asyncio.create_task(tier.worker.run())
    await validated(tier, "batch_2")
    assert (await tier.batch()).status is Status.VALIDATING
    gate.set()
    await validated(tier, "batch_1")
    working.cancel()


async def validated(tier, batch_id):
    async with asyncio.timeout(10.0):
        while (await tier.batch(batch_id)).status is Status.VALIDATING:  # noqa: ASYNC110  # it has no event for tests
            await asyncio.sleep(0.01)


async def test_a_file_without_a_line_fails_its_batch(tier):
    await tier.upload(b"\n \r\n")
    await tier.create()
    assert await run_job(tier.worker)
    assert ((await tier.batch()).status, (await tier.batch()).failure_reason) == (Status.FAILED, "FILE_EMPTY")


async def test_a_second_line_with_a_custom_id_is_an_error_over_the_whole_file(tier, monkeypatch):
    monkeypatch.setattr(file_division, "LINES_PER_PART", 200)  # so that the file is looked at in parts
    lines = [line(number % 500) for number in range(600)]
    lines[3] = b"{\n"  # no line has its id
    await tier.upload(b"".join(lines))
    await tier.create()
    assert await run_job(tier.worker)
    assert ((await tier.batch()).lines, (await tier.batch()).failed) == (600, 99)
    numbers = []
    for chunk in (await tier.store.claim("a", 5, LEASE_S)).chunks:
        lines = await tier.store.read_lines(chunk)
        numbers += [each.number for each in lines]
        await tier.store.put_results([result(chunk, each.number) for each in lines])
        await tier.store.release([(chunk.key, chunk.epoch)])
    assert numbers == [*range(500), 503]
    assert await run_job(tier.worker)
    batch = await tier.batch()
    assert (batch.status, batch.completed, batch.failed) == (Status.COMPLETED, 501, 99)
    errors = [json.loads(row) for row in await tier.rows(batch.error_file_id)]
    assert {each["error"]["code"] for each in errors} == {"duplicate_custom_id"}
    assert [each["custom_id"] for each in errors] == [f"line-{number}" for number in range(100) if number != 3]


async def test_a_line_that_is_too_long_is_an_error_and_the_others_run(tier, monkeypatch):
    monkeypatch.setattr(division, "LINE_BYTES", 200)
    long = b"x" * 300 + b"\n"
    await tier.upload(line(0) + long + line(2) + long)
    await tier.create()
    assert await run_job(tier.worker)
    chunks = (await tier.store.claim("a", 5, LEASE_S)).chunks
    assert [[each.number for each in await tier.store.read_lines(chunk)] for chunk in chunks] == [[0], [2]]
    for chunk, number in zip(chunks, (0, 2), strict=True):
        await tier.store.put_results([result(chunk, number)])
        await tier.store.release([(chunk.key, chunk.epoch)])
    assert await run_job(tier.worker)
    batch = await tier.batch()
    assert (batch.status, batch.lines, batch.completed, batch.failed) == (Status.COMPLETED, 4, 2, 2)
    errors = [json.loads(row) for row in await tier.rows(batch.error_file_id)]
    assert [(each["custom_id"], each["error"]["code"]) for each in errors] == [(None, "line_too_long")] * 2


async def test_a_file_of_long_lines_alone_ends_with_its_errors(tier, monkeypatch):
    monkeypatch.setattr(division, "LINE_BYTES", 20)
    await tier.upload(line(0))
    await tier.create()
    assert await run_job(tier.worker)
    assert await run_job(tier.worker)
    batch = await tier.batch()
    assert (batch.status, batch.failed, batch.output_file_id) == (Status.COMPLETED, 1, "")


async def test_a_division_that_is_repeated_counts_its_errors_once(tier, monkeypatch):
    await tier.upload(line(0), line(0))
    await tier.create()

    def fail(*_):
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch, pytest.raises(StoreUnavailable):
        patch.setattr(jobs, "divide", fail)
        await run_job(tier.worker)
    tier.now += JOB_LEASE_S
    assert await run_job(tier.worker)
    assert ((await tier.batch()).lines, (await tier.batch()).failed) == (2, 1)


async def test_an_upload_that_is_too_large_or_breaks_leaves_nothing(tier):
    with pytest.raises(InvalidArgument):
        await tier.upload(b"x" * (1 << 18), b"x")
    assert list(tier.blobs.names(LATER)) == []
    assert tier.blobs.delete_parts(LATER) == 0


async def test_expired_files_and_batches_are_deleted_with_their_contents(tier):
    await tier.upload(b"\n")
    await tier.create()
    await run_job(tier.worker)
    tier.now += 5_000.0
    await tier.worker.drop_expired()
    assert list(tier.blobs.names(LATER)) == []
    assert (await tier.store.run(tier.store.operations.list_batches, "acme", after="", limit=5)) == ([], False)


async def test_contents_without_a_file_are_deleted_once_they_are_old(tier, tmp_path):
    await tier.upload(line(0))
    writer = tier.blobs.create("file-2")
    writer.write(b"left by a process that died")
    writer.commit()
    (tmp_path / "contents" / "file-3.part").write_bytes(b"left by another")
    await tier.worker.drop_orphans(0.0)
    assert sorted(each.name for each in (tmp_path / "contents").iterdir()) == ["file-1", "file-2", "file-3.part"]
    await tier.worker.drop_orphans(LATER)
    assert [each.name for each in (tmp_path / "contents").iterdir()] == ["file-1"]


def test_times_of_a_process_whose_clock_is_wrong_are_those_of_the_database():
    local = [100.0]
    clock = database_clock(SqliteDatabase(":memory:", lambda: 5_000.0), lambda: local[0])
    assert clock() == 5_000.0
    local[0] += 7.0
    assert clock() == 5_007.0


def test_the_store_of_the_settings_keeps_its_batches(tmp_path):
    config = BatchConfig(store=str(tmp_path / "db"), folder=str(tmp_path / "contents"), fsync=False)
    file = StoredFile("file-1", "acme", "a", FILE_PURPOSE_BATCH, 1, 0.0, 10.0)
    with opened_store(config, lambda: 1.0) as store, store.database.transaction() as transaction:
        store.operations.add_file(transaction, file)
    with opened_store(config, lambda: 1.0) as store, store.database.transaction() as transaction:
        assert store.operations.find_file(transaction, "acme", "file-1") == file
    for name in ("max_file_bytes", "batches_per_tenant"):
        with pytest.raises(ValueError, match=name):
            BatchConfig(**{name: 0})
