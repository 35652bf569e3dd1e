"""A process that commits results is killed: each result that it confirmed is there, once, and the rest runs again."""

import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from batch_jobs import run_job
from penstock.batch.config import BatchConfig
from penstock.batch.jobs.batch import Batch, Status
from penstock.batch.jobs.chunks import LineResult
from penstock.batch.store import jobs
from penstock.batch.store.job_worker import JobWorker
from penstock.batch.store.opening import opened_store
from penstock.batch.store.operations import StoredFile
from penstock.v1.batches_pb2 import FILE_PURPOSE_BATCH
from stores import administer

LEASE_S = 10.0
LINES = 600
CONFIRMED = 40  # results after which the process is killed

# Commits the lines of all chunks in groups of 4, and writes a line for each group that is committed.
COMMITTER = """
import asyncio, sys, time
sys.path.append("tests/harness")
from tests.service.test_batch_store_kill import config_in, opened_store, result
async def commit():
    with opened_store(config_in(*sys.argv[1:]), time.time) as store:
        for chunk in (await store.claim("a", 9, 60.0)).chunks:
            lines = await store.read_lines(chunk)
            for first in range(0, len(lines), 4):
                stored = await store.put_results([result(chunk, each.number) for each in lines[first : first + 4]])
                print(sum(stored), flush=True)
asyncio.run(commit())
"""


def config_in(store, folder):
    return BatchConfig(store=store, folder=f"{folder}/contents")


def end_leases(location):
    """Let the leases of all chunks end, as if their time had passed."""
    statement = "UPDATE chunks SET lease_until = 0"
    if location.startswith("postgresql"):
        administer(location, statement)
        return
    with closing(sqlite3.connect(location)) as connection:
        connection.execute(statement)
        connection.commit()


def result(chunk, number):
    return LineResult(chunk.key, chunk.epoch, number, False, b"%d" % number, 1, 1)


async def contents():
    yield b"{}\n" * LINES


async def test_a_killed_process_leaves_each_confirmed_result_once(stored, tmp_path):
    now, config = time.time(), config_in(stored.location, tmp_path)
    file = StoredFile("file-1", "acme", "a", FILE_PURPOSE_BATCH, 0, now, now + 9_000.0)
    whose = {"tenant_id": "acme", "key_id": "k", "delegation": b"d", "input_file_id": "file-1"}
    times = {"window": 900.0, "output_ttl": 900.0, "created_at": now}
    with opened_store(config, time.time) as store:
        await store.add_file(file, contents())
        await store.run(store.operations.create, Batch(batch_id="batch_1", endpoint="/", **whose, **times))
        assert await run_job(JobWorker(store))
    confirmed = 0
    with subprocess.Popen(  # noqa: ASYNC220  # the loop of the test has nothing else to do
        [sys.executable, "-c", COMMITTER, stored.location, str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as committer:
        while confirmed < CONFIRMED:
            confirmed += int(committer.stdout.readline())
        committer.kill()

    end_leases(stored.location)
    with opened_store(config, time.time) as store:
        found = (await store.run(store.operations.find, "acme", "batch_1")).completed
        assert CONFIRMED <= found <= LINES
        repeated = 0
        for chunk in (await store.claim("b", 9, LEASE_S)).chunks:
            lines = await store.read_lines(chunk)
            repeated += len(lines)
            assert all(await store.put_results([result(chunk, each.number) for each in lines]))
            await store.release([(chunk.key, chunk.epoch)])
        assert found + repeated == LINES
        assert await run_job(JobWorker(store))
        batch = await store.run(store.operations.find, "acme", "batch_1")
        assert (batch.status, batch.completed) == (Status.COMPLETED, LINES)
        output = await store.run(store.operations.find_file, "acme", batch.output_file_id)
        rows = b"".join([each async for each in store.read_file(output)]).split()
        assert rows == [b"%d" % number for number in range(LINES)]
        assert await store.run(jobs.claim_job, LEASE_S) is None
