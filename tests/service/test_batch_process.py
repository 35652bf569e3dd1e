"""The process of the batch tier: it runs a batch on edges, and leaves its lines to the next process when it drains."""

import asyncio
import signal
import sqlite3
from contextlib import closing

import orjson
import pytest

from line_edges import TIMEOUT_S, batch_caller, line_edge
from penstock.batch.config import BatchConfig
from penstock.chassis.config import ConfigError, load
from penstock.v1 import batches_pb2 as pb
from tier_process import address_of, tier_process

ENDPOINT = "/v1/embeddings"
LINES = 600  # of several chunks


def content(lines=LINES):
    rows = ({"custom_id": f"c{each}", "method": "POST", "url": ENDPOINT, "body": {}} for each in range(lines))
    return b"\n".join(map(orjson.dumps, rows))


def batch_process(folder, edge):
    return tier_process("batch", STORE=str(folder / "db"), FOLDER=str(folder / "files"), EDGES=edge.address)


def leases_in(path):
    with closing(sqlite3.connect(path)) as connection:
        return {until for (until,) in connection.execute("SELECT lease_until FROM chunks")}


def test_a_batch_tier_without_edges_does_not_start():
    with pytest.raises(ConfigError, match="PENSTOCK_BATCH_EDGES"):
        load(BatchConfig, "batch", {"PENSTOCK_BATCH_EDGES": ""})


async def test_a_drained_process_leaves_its_lines_to_the_next_one(tmp_path):
    """The first process answers nothing and ends with no lease; the second one answers each line."""
    async with line_edge() as edge:
        edge.is_answering = False
        async with batch_process(tmp_path, edge) as process, batch_caller(await address_of(process)) as caller:
            file = await caller.upload(content())
            batch = await caller.create(file.id, ENDPOINT)
            async with asyncio.timeout(TIMEOUT_S):
                while not edge.started:  # noqa: ASYNC110  # an event of another process
                    await asyncio.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == 0
            assert edge.stopped == len(edge.started)
        assert leases_in(tmp_path / "db") == {0.0}
        edge.is_answering = True
        async with batch_process(tmp_path, edge) as process, batch_caller(await address_of(process)) as caller:
            ended = await caller.wait(batch.id, pb.BATCH_STATUS_COMPLETED)
            rows = [orjson.loads(each) for each in (await caller.read(ended.output_file_id)).splitlines()]
    assert (ended.lines.total, ended.lines.completed, ended.lines.failed) == (LINES, LINES, 0)
    assert [each["custom_id"] for each in rows] == [f"c{each}" for each in range(LINES)]
    assert edge.peer.hello.tier == "batch"
