"""A shard and a scheduler log the processes that connect and leave, and what is lost with them."""

import asyncio

from structlog.testing import capture_logs

from queue_shards import shard_of
from queue_streams import edge_at, scheduler_at, ticket
from scheduler_streams import scheduler_of, shard_server, worker_at


def only(logs, *events):
    return [each for each in logs if each["event"] in events]


async def logged(logs, event):
    """Wait for a line, and return it."""
    async with asyncio.timeout(10):
        while not (found := only(logs, event)):  # noqa: ASYNC110  # a line sets no event
            await asyncio.sleep(0.01)
    return found[0]


async def test_a_scheduler_logs_workers_that_attach_and_are_lost_and_a_model_without_any():
    with capture_logs() as logs:
        async with shard_server("queue-1") as shard, scheduler_of(shard) as scheduler:
            async with worker_at(scheduler.address, "w1", kv_blocks=10):
                attached = await logged(logs, "worker_attached")
            lost = await logged(logs, "worker_lost")
            without = await logged(logs, "model_without_workers")
    assert (attached["worker_id"], attached["model"], attached["slots"], attached["workers"]) == ("w1", "m@d", 2, 1)
    assert attached["adopted"] == 0
    assert (lost["worker_id"], lost["workers"], lost["log_level"]) == ("w1", 0, "warning")
    assert without["model"] == "m@d"


async def test_a_worker_that_ends_its_stream_is_detached_and_not_lost():
    with capture_logs() as logs:
        async with (
            shard_server("queue-1") as shard,
            scheduler_of(shard) as scheduler,
            worker_at(scheduler.address, "w1") as worker,
        ):
            await logged(logs, "worker_attached")
            worker.link.end("drains")
            detached = await logged(logs, "worker_detached")
    assert (detached["worker_id"], detached["because"], detached["log_level"]) == ("w1", "drains", "info")
    assert not only(logs, "worker_lost")


async def test_a_shard_logs_its_peers_and_the_models_that_they_serve():
    with capture_logs() as logs:
        async with shard_of() as shard:
            async with scheduler_at(shard.address, "scheduler-1", models=("m",)):
                assert (await logged(logs, "model_served"))["model"] == ticket("a").model
                async with edge_at(shard.address, "edge-1"):
                    await asyncio.sleep(0)
                lost_edge = await logged(logs, "peer_lost")
            lost_model = await logged(logs, "model_lost")
    assert [each["peer"] for each in only(logs, "peer_connected")] == ["scheduler-1", "edge-1"]
    assert (lost_edge["peer"], lost_edge["connected"]) == ("edge-1", 0)
    assert lost_model["model"] == ticket("a").model


async def test_rejections_are_summed_up_in_one_line():
    with capture_logs() as logs:
        async with (
            shard_of(max_depth=1) as shard,
            scheduler_at(shard.address, models=("m",)),
            edge_at(shard.address) as edge,
        ):
            edge.enqueue(*(ticket(each) for each in "abcd"))
            for _ in range(3):
                await edge.receive("shed")
            line = await logged(logs, "tickets_shed")
    assert (line["tickets"], line["reasons"]) == (3, {"QUEUE_FULL": 3})
    assert line["tenants"] == {ticket("a").tenant_id: 3}
    assert len(only(logs, "tickets_shed")) == 1
