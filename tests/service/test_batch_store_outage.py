"""PostgreSQL is away for longer than the leases of chunks: no line is lost, and none runs twice."""

import asyncio
import json
import time
from contextlib import suppress

from batch_jobs import run_job
from chunk_memory import FakeEdges
from penstock.batch.config import BatchConfig
from penstock.batch.jobs.batch import Batch, Status
from penstock.batch.runner import runner as runner_module
from penstock.batch.runner.runner import BatchRunner
from penstock.batch.store.job_worker import JobWorker
from penstock.batch.store.opening import opened_store
from penstock.batch.store.operations import StoredFile
from penstock.v1.batches_pb2 import FILE_PURPOSE_BATCH
from stores import PostgresStore, administer

LINES = 600
ENDPOINT = "/v1/embeddings"


async def contents():
    for number in range(LINES):
        call = {"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": {}}
        yield json.dumps(call).encode() + b"\n"


async def divided(store):
    """Store a batch whose lines run."""
    now = time.time()
    await store.add_file(StoredFile("file-1", "acme", "a", FILE_PURPOSE_BATCH, 0, now, now + 9_000.0), contents())
    whose = {"tenant_id": "acme", "key_id": "k", "delegation": b"d", "input_file_id": "file-1", "endpoint": ENDPOINT}
    batch = Batch(batch_id="batch_1", window=9_000.0, output_ttl=9_000.0, created_at=now, **whose)
    await store.run(store.operations.create, batch)
    assert await run_job(JobWorker(store))


async def until(condition):
    async with asyncio.timeout(60.0):
        while not condition():  # noqa: ASYNC110  # the runner has no event for tests
            await asyncio.sleep(0.01)


async def test_replicas_commit_what_ended_meanwhile_and_run_no_line_of_each_other(database, tmp_path, monkeypatch):
    monkeypatch.setattr(runner_module, "MAX_CLAIMED", 1)
    monkeypatch.setattr(runner_module, "RENEW_INTERVAL_S", 0.1)
    config = BatchConfig(store=database, folder=str(tmp_path))
    edges = [FakeEdges(), FakeEdges()]
    for each in edges:
        each.is_answering = False
    with opened_store(config, time.time) as one, opened_store(config, time.time) as two:
        await divided(one)
        runners = [BatchRunner("r", store, to) for store, to in zip((one, two), edges, strict=True)]
        running = [asyncio.create_task(each.run()) for each in runners]
        await until(lambda: all(each.started for each in edges))
        with PostgresStore(database).unreachable():
            for each in edges:
                each.is_answering = True
                for line in list(each.started):
                    each.answer(line.handle)
            await until(lambda: all(each.figures["lines_waiting"] == 0 for each in runners))
            await until(lambda: not any(each.can_commit for each in runners))  # each has noticed the outage
            assert sum(each.answered for each in runners) == 0
        administer(database, "UPDATE chunks SET lease_until = 0")  # as if it had been away for longer than a lease
        await until(lambda: sum(each.answered for each in runners) == LINES)
        for each in running:
            each.cancel()
            with suppress(asyncio.CancelledError):
                await each
        batch = await one.run(one.operations.find, "acme", "batch_1")
        assert (batch.completed, batch.failed) == (LINES, 0)
        assert batch.status in (Status.IN_PROGRESS, Status.FINALIZING)  # its last chunk may not be released yet
    started = [line.number for each in edges for line in each.started]
    assert sorted(started) == list(range(LINES))
