"""The runner of batches over a store in memory: each line once, cancel, and drain."""

import asyncio
from contextlib import asynccontextmanager, suppress

from chunk_memory import ChunkMemory, FakeEdges, chunk_of
from penstock.batch.jobs.chunks import ChunkKey, ChunkState
from penstock.batch.runner import runner as runner_module
from penstock.batch.runner.held import MAX_UNCONFIRMED_S
from penstock.batch.runner.runner import MAX_COMMITTED, RENEW_INTERVAL_S, TICK_S, BatchRunner
from penstock.mesh.v1 import batch_pb2 as pb


def chunk(first, lines, *, content=None):
    return chunk_of("batch_1", lines, first=first, content=content)


@asynccontextmanager
async def running(store, edges):
    runner = BatchRunner("replica", store, edges)
    task = asyncio.create_task(runner.run())
    try:
        yield runner
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(condition):
    async with asyncio.timeout(20.0):
        while not condition():  # noqa: ASYNC110  # the runner has no event for tests
            await asyncio.sleep(0.01)


async def test_each_line_is_committed_once_and_its_chunk_released():
    store, edges = ChunkMemory([chunk(0, 300), chunk(300, 300)]), FakeEdges()
    async with running(store, edges) as runner:
        await until(lambda: len(store.released) == 2)
        assert (runner.answered, runner.failed) == (600, 0)
    assert set(store.commits.values()) == {1}
    assert len(store.commits) == len(edges.started) == 600


async def test_lines_that_start_again_are_counted_by_cause():
    store, edges = ChunkMemory([chunk(0, 3)]), FakeEdges()
    edges.is_answering = False
    async with running(store, edges) as runner:
        await until(lambda: len(edges.started) == 3)
        for line, verdict in zip(edges.started[:2], (pb.LINE_VERDICT_LATER, pb.LINE_VERDICT_LOST), strict=True):
            edges.on_ended("edge", pb.LineEnded(number=line.handle, verdict=verdict))
        edges.on_lost("edge")
        found = runner.figures
        assert (found["lines_deferred"], found["lines_lost"], found["lines_of_lost_edges"]) == (1, 1, 1)


async def test_a_runner_at_rest_waits_for_a_signal_or_the_end_of_a_lease(monkeypatch):
    monkeypatch.setattr(runner_module, "LOOK_INTERVAL_S", 1_000.0)
    store, edges = ChunkMemory([]), FakeEdges()
    async with running(store, edges):
        await until(lambda: store.claims)
        store.free[ChunkKey("batch_1", 0)] = chunk(0, 3)
        store.chunks_due.set()
        await until(lambda: store.released)
        store.free[ChunkKey("batch_1", 3)] = chunk(3, 3)
        edges.on_up()
        await until(lambda: len(store.released) == 2)
        looks = edges.looks
        await asyncio.sleep(10 * TICK_S)
        assert edges.looks <= looks + 2  # of a tick that was due, and of the claim after the last one
        store.next_lease_s = TICK_S
        store.chunks_due.set()
        claims = store.claims
        await until(lambda: store.claims == claims + 2)
        store.free[ChunkKey("batch_1", 6)] = chunk(6, 3)
        await until(lambda: len(store.released) == 3)


async def test_bad_lines_are_errors_and_start_nowhere():
    store, edges = ChunkMemory([chunk(0, 5, content=b"{")]), FakeEdges()
    async with running(store, edges) as runner:
        await until(lambda: store.released)
        assert (runner.answered, runner.failed) == (0, 5)
    assert edges.started == []


async def test_a_cancelled_batch_stops_its_lines_and_starts_no_other():
    store, edges = ChunkMemory([chunk(0, 50)]), FakeEdges()
    edges.is_answering = False
    async with running(store, edges):
        await until(lambda: edges.started)
        store.state = ChunkState.STOPPED
        await until(lambda: edges.stopped)
        assert edges.stopped == edges.started
        sent = len(edges.started)
        for line in list(edges.started):
            edges.answer(line.handle)
        await until(lambda: store.released)
    assert len(store.stored) == len(edges.started) == sent < 50


async def test_a_runner_whose_renewals_fail_starts_no_line_until_they_succeed():
    store, edges = ChunkMemory([chunk(0, 50)]), FakeEdges()
    edges.is_answering = False
    async with running(store, edges):
        await until(lambda: edges.started)
        store.is_away = True
        loop = asyncio.get_running_loop()
        away_since, sent = loop.time(), len(edges.started)
        await until(lambda: loop.time() > away_since + MAX_UNCONFIRMED_S + RENEW_INTERVAL_S)
        for line in edges.started[:sent]:
            edges.answer(line.handle)  # makes room in the window
        assert len(edges.started) == sent
        store.is_away = False
        await until(lambda: len(edges.started) > sent)


async def test_a_drain_beside_the_commits_of_run_loses_no_result():
    count = MAX_COMMITTED + 100
    store, edges = ChunkMemory([chunk(0, count, content=b"{")]), FakeEdges()
    store.commit_gate.clear()
    async with running(store, edges) as runner:
        await until(lambda: store.held)
        await asyncio.sleep(0.3)  # run waits for its first commit
        draining = asyncio.create_task(runner.drain())
        await asyncio.sleep(0)
        store.commit_gate.set()
        await draining
    assert len(store.commits) == count
    assert set(store.commits.values()) == {1}
    assert store.released == [ChunkKey("batch_1", 0)]


async def test_a_drain_gives_back_what_a_claim_was_about_to_take():
    store, edges = ChunkMemory([chunk(0, 50)]), FakeEdges()
    store.claim_gate.clear()
    async with running(store, edges) as runner:
        await until(lambda: store.claims)
        draining = asyncio.create_task(runner.drain())
        await asyncio.sleep(0)
        store.claim_gate.set()
        await draining
    assert (edges.started, store.released) == ([], [ChunkKey("batch_1", 0)])
    assert store.claims == 1


async def test_results_wait_for_a_store_that_is_away_and_leases_are_renewed_before_a_claim(monkeypatch):
    monkeypatch.setattr(runner_module, "RENEW_INTERVAL_S", 0.02)
    monkeypatch.setattr(runner_module, "CLAIM_INTERVAL_S", 0.01)
    monkeypatch.setattr(runner_module, "AWAY_GRACE_S", 0.2)
    store, edges = ChunkMemory([chunk(0, 20), chunk(20, 20)]), FakeEdges()
    edges.is_answering = False
    async with running(store, edges) as runner:
        await until(lambda: edges.started)
        store.is_away = edges.is_answering = True
        for line in list(edges.started):
            edges.answer(line.handle)
        store.free[ChunkKey("batch_1", 40)] = chunk(40, 20)
        await until(lambda: runner.figures["lines_waiting"] == 0)
        await until(lambda: not runner.can_commit)
        assert runner.answered == 0
        store.done.clear()
        store.is_away = False
        await until(lambda: len(store.released) == 3)
        assert "renew" in store.done[: store.done.index("claim")]
        assert (runner.answered, runner.can_commit) == (60, True)
    assert set(store.commits.values()) == {1}


async def test_results_are_committed_in_groups_of_bounded_size(monkeypatch):
    monkeypatch.setattr(runner_module, "MAX_COMMITTED", 10)
    monkeypatch.setattr(runner_module, "MAX_COMMITTED_BYTES", 500)
    store, edges = ChunkMemory([chunk(0, 40)]), FakeEdges()
    store.commit_gate.clear()
    async with running(store, edges):
        await until(lambda: len(edges.started) == 40)
        store.commit_gate.set()
        await until(lambda: store.released)
    assert max(map(len, store.groups)) <= 10
    assert max(sum(len(each.row) for each in group) for group in store.groups) <= 500
    assert sum(map(len, store.groups)) == 40


async def test_a_chunk_claimed_again_stops_the_lines_of_its_ended_lease():
    claimed, lines = chunk(0, 50)
    store, edges = ChunkMemory([(claimed, lines)]), FakeEdges()
    edges.is_answering = False
    async with running(store, edges):
        await until(lambda: edges.started)
        old = list(edges.started)
        store.free[claimed.key] = claimed._replace(epoch=2), lines
        await until(lambda: edges.stopped)
        assert edges.stopped == old
        edges.is_answering = True
        for line in old:
            edges.answer(line.handle)
        await until(lambda: store.released)
    assert {each.chunk.claimed.epoch for each in edges.started[len(old) :]} == {2}
    assert {each.epoch for each in store.stored.values()} == {2}
    assert len(store.stored) == 50
