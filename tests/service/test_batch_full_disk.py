"""A full disk: uploads and outputs fail with the cause, nothing is lost, and all goes on once there is space."""

import json
import sqlite3

import pytest

from batch_jobs import run_job
from penstock.batch.blobs.folder import PART_SUFFIX
from penstock.batch.config import BatchConfig
from penstock.batch.jobs.batch import Batch, Status
from penstock.batch.jobs.chunks import LineResult
from penstock.batch.store import jobs, output
from penstock.batch.store import store as store_module
from penstock.batch.store.errors import FileUnknown, StoreUnavailable
from penstock.batch.store.job_lease import JOB_LEASE_S
from penstock.batch.store.job_worker import JobWorker
from penstock.batch.store.opening import opened_store
from penstock.batch.store.operations import StoredFile
from penstock.v1.batches_pb2 import FILE_PURPOSE_BATCH

ENDPOINT = "/v1/embeddings"
LATER = 1e12  # after every time


class Tier:
    """A store in a folder, with the time of the test."""

    def __init__(self, store, folder):
        self.store = store
        self.folder = folder
        self.worker = JobWorker(store)

    async def upload(self, content, file_id="file-1"):
        async def contents():
            yield content

        file = StoredFile(file_id, "acme", "lines", FILE_PURPOSE_BATCH, 0, 1_000.0, 9_000.0)
        return await self.store.add_file(file, contents())

    async def create(self):
        given = {"key_id": "k", "delegation": b"d", "endpoint": ENDPOINT, "window": 1e6, "output_ttl": 1e6}
        batch = Batch(batch_id="batch_1", tenant_id="acme", input_file_id="file-1", created_at=1_000.0, **given)
        await self.store.run(self.store.operations.create, batch)

    async def batch(self):
        return await self.store.run(self.store.operations.find, "acme", "batch_1")

    def fill_folder(self, file_id):
        """Let the content of a file be written where the kernel has no space."""
        part = self.folder / f"{file_id}{PART_SUFFIX}"
        part.symlink_to("/dev/full")
        return part

    def limit_database(self, pages=None):
        """Let the database grow by no page, or by `pages`."""
        connection = self.store.database._connection  # as no setting does
        ((present,),) = connection.execute("PRAGMA page_count")
        connection.execute(f"PRAGMA max_page_count = {present + (pages or 0)}")


@pytest.fixture
def clock():
    return {"now": 1_000.0}


@pytest.fixture
def tier(tmp_path, clock):
    config = BatchConfig(store=str(tmp_path / "db"), folder=str(tmp_path / "contents"), fsync=False)
    with opened_store(config, lambda: clock["now"]) as store:
        yield Tier(store, tmp_path / "contents")


def line(number):
    call = {"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": {"input": "x"}}
    return json.dumps(call).encode() + b"\n"


def result(chunk, number, row=b"{}"):
    return LineResult(chunk.key, chunk.epoch, number, False, row, 1, 1)


@pytest.mark.parametrize("size", [10, 5 << 20])  # bytes; less and more than are kept in memory
async def test_an_upload_to_a_full_folder_fails_and_leaves_nothing(tier, size):
    part = tier.fill_folder("file-1")
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        await tier.upload(b"x" * size)
    assert not part.is_symlink()
    with pytest.raises(FileUnknown):
        await tier.store.run(tier.store.operations.find_file, "acme", "file-1")
    await tier.upload(b"x" * size)
    assert tier.store.blobs.read("file-1", 0, size + 1) == b"x" * size


async def test_an_upload_leaves_the_last_space_of_a_volume_to_results_and_outputs(tier, monkeypatch):
    await tier.upload(line(0))
    await tier.create()
    await run_job(tier.worker)
    monkeypatch.setattr(store_module, "RESERVED_BYTES", 1 << 62)
    with pytest.raises(StoreUnavailable, match="kept for results"):
        await tier.upload(b"x", "file-2")
    assert list(tier.store.blobs.names(LATER)) == ["file-1"]
    [chunk] = (await tier.store.claim("a", 1, 10.0)).chunks
    assert await tier.store.put_results([result(chunk, 0)]) == [True]
    await tier.store.release([(chunk.key, chunk.epoch)])
    assert await run_job(tier.worker)
    assert (await tier.batch()).status is Status.COMPLETED


async def test_an_output_waits_for_space_in_its_folder(tier, clock, monkeypatch):
    await tier.upload(line(0) + line(1))
    await tier.create()
    await run_job(tier.worker)
    [chunk] = (await tier.store.claim("a", 1, 10.0)).chunks
    await tier.store.put_results([result(chunk, number, b"%d" % number) for number in range(2)])
    await tier.store.release([(chunk.key, chunk.epoch)])
    with monkeypatch.context() as patch:
        patch.setattr(output, "new_file_id", lambda: "file-2")
        tier.fill_folder("file-2")
        with pytest.raises(StoreUnavailable, match="No space left on device"):
            await run_job(tier.worker)
    assert (await tier.batch()).status is Status.FINALIZING
    clock["now"] += JOB_LEASE_S
    assert await run_job(tier.worker)
    batch = await tier.batch()
    assert (batch.status, tier.store.blobs.read(batch.output_file_id, 0, 9)) == (Status.COMPLETED, b"0\n1\n")
    assert sorted(tier.store.blobs.names(LATER)) == sorted(["file-1", batch.output_file_id])


async def test_an_output_that_the_database_has_no_space_for_leaves_no_content(tier, clock, monkeypatch):
    await tier.upload(line(0))
    await tier.create()
    await run_job(tier.worker)
    [chunk] = (await tier.store.claim("a", 1, 10.0)).chunks
    await tier.store.put_results([result(chunk, 0)])
    await tier.store.release([(chunk.key, chunk.epoch)])
    with monkeypatch.context() as patch, pytest.raises(StoreUnavailable, match="full"):
        patch.setattr(jobs, "finish", fail_full)
        await run_job(tier.worker)
    assert list(tier.store.blobs.names(LATER)) == ["file-1"]
    clock["now"] += JOB_LEASE_S
    assert await run_job(tier.worker)
    assert (await tier.batch()).status is Status.COMPLETED


def fail_full(*_):
    raise sqlite3.OperationalError("database or disk is full")


async def test_results_are_stored_whole_or_not_at_all_in_a_full_database(tier):
    await tier.upload(b"".join(map(line, range(50))))
    await tier.create()
    await run_job(tier.worker)
    [chunk] = (await tier.store.claim("a", 1, 10.0)).chunks
    group = [result(chunk, number, b"x" * 1_000) for number in range(50)]
    tier.limit_database()
    with pytest.raises(StoreUnavailable, match="full"):
        await tier.store.put_results(group)
    assert (await tier.batch()).completed == 0
    assert len(await tier.store.read_lines(chunk)) == 50
    tier.limit_database(pages=1_000)
    assert all(await tier.store.put_results(group))
    assert (await tier.batch()).completed == 50


async def test_an_upload_to_a_full_database_leaves_no_content(tier):
    tier.limit_database()
    with pytest.raises(StoreUnavailable, match="full"):
        for number in range(200):
            await tier.upload(b"x", f"file-{number:0100}")
    stored, _ = await tier.store.run(tier.store.operations.list_files, "acme", purpose=0, after="", limit=1_000)
    assert sorted(tier.store.blobs.names(LATER)) == sorted(each.file_id for each in stored)
    assert tier.store.blobs.delete_parts(LATER) == 0
