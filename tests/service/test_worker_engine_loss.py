"""A worker whose engine dies, hangs or crashes over a request, over real streams."""

import grpc
import pytest

from tiny_model import write_tiny_model
from worker_mesh import connected_edge, engine_processes, running_worker

POISON_TOKEN = 99


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


async def test_a_dead_engine_ends_its_runs_at_once_and_is_replaced(model):
    async with running_worker(model) as worker, connected_edge(worker.address) as edge:
        worker.scheduler.expect("lease 1")
        edge.start(1, tokens=400)
        await edge.wait_first_token(1)
        [engine] = engine_processes()
        engine.kill()
        _, ends = await edge.read_answers(1)
        assert (ends[1].failure.code, ends[1].failure.reason) == (
            grpc.StatusCode.UNAVAILABLE.value[0],
            "ENGINE_DIED",
        )
        assert await worker.scheduler.ended_streams.get()  # without an engine, the worker ends its stream
        await worker.scheduler.profiles.get()
        worker.scheduler.expect("lease 2")
        edge.start(2)
        assert (await edge.read_to_end(2)).output_tokens == 4
        assert (await worker.wait_at_rest())["restarts"] == 1


async def test_an_engine_that_hangs_is_replaced(model):
    async with running_worker(model, engine_stall_timeout=0.5) as worker, connected_edge(worker.address) as edge:
        worker.scheduler.expect("lease 1")
        edge.start(1, tokens=400)
        await edge.wait_first_token(1)
        [engine] = engine_processes()
        engine.suspend()
        assert (await edge.read_to_end(1)).output_tokens == 400, "the next engine continues the run"
        assert [each.pid for each in engine_processes()] != [engine.pid]


async def test_a_request_crashes_at_most_two_engines(model):
    options = {"engine": "sim", "sim_crash_token_id": POISON_TOKEN}
    async with running_worker(model, **options) as worker, connected_edge(worker.address) as edge:
        worker.scheduler.expect("lease 1")
        worker.scheduler.expect("lease 2")
        edge.start(1, tokens=400)
        await edge.wait_first_token(1)
        edge.start(2, prompt=[5, POISON_TOKEN])
        _, ends = await edge.read_answers(1, 2)
        assert ends[1].output_tokens == 400  # it was a suspect too, and lost some time
        assert (ends[2].failure.code, ends[2].failure.reason) == (
            grpc.StatusCode.INTERNAL.value[0],
            "ENGINE_CRASHED",
        )
        await worker.scheduler.profiles.get()
        worker.scheduler.expect("lease 3")
        edge.start(3)
        assert (await edge.read_to_end(3)).output_tokens == 4
        assert (await worker.wait_at_rest())["restarts"] == 2


async def test_a_worker_with_a_suspect_is_attached_without_capacity_and_reports_it(model):
    options = {"engine": "sim", "sim_crash_token_id": POISON_TOKEN}
    async with running_worker(model, **options) as worker, connected_edge(worker.address) as edge:
        worker.scheduler.expect("lease 1")
        edge.start(1, prompt=[5, POISON_TOKEN], fingerprint=7)
        profiles = [await worker.scheduler.profiles.get()]
        while not profiles[-1].model:
            profiles.append(await worker.scheduler.profiles.get())
        assert len(profiles) > 1
        assert all([report.fingerprint for report in each.poison_reports] == [7] for each in profiles)
        assert not profiles[0].poison_reports[0].is_confirmed
        assert profiles[-1].poison_reports[0].is_confirmed
        assert [kind for kind, _ in [await worker.scheduler.next_lease_event()]] == ["started"]
