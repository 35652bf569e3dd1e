"""Many requests on one stream of a real edge."""

import asyncio
import threading

import grpc
import pytest

from edge_mesh import KEY, KV_BLOCKS, edge_mesh, hello, text_of, token_at
from edge_sessions import session
from penstock.chassis.errors import Overloaded, error_from_rpc
from penstock.chassis.streams import endpoint, link
from penstock.edge.models import planner
from penstock.v1.inference_pb2 import (
    GenerateRequest,
    Sampling,
    SessionGenerate,
    SessionRequest,
    SessionResponse,
)


async def test_requests_of_a_session_run_concurrently():
    async with edge_mesh() as mesh, session(mesh) as client:
        for handle in range(8):
            client.generate(handle, max_output_tokens=5 + handle)
        ends = [await client.next_frame("finished") for _ in range(8)]
        assert {end.handle for end in ends} == set(range(8))
        assert dict(client.texts) == {handle: text_of(5 + handle) for handle in range(8)}
        assert client.ids[7] == [token_at(index) for index in range(12)]
        assert {end.handle: end.finished.usage.output_tokens for end in ends} == {n: 5 + n for n in range(8)}


async def test_tokens_that_come_together_leave_in_one_frame():
    async with edge_mesh() as mesh, session(mesh) as client:
        mesh.workers[0].sends_one_frame = True
        client.generate(1, max_output_tokens=30)
        await client.next_frame("finished")
        assert client.steps == 1
        assert client.texts[1] == text_of(30)


async def test_logprobs_are_parallel_to_tokens_even_beside_requests_without_them():
    async with edge_mesh() as mesh, session(mesh) as client:
        client.generate(1, max_output_tokens=3, sampling=Sampling(logprobs=True))
        client.generate(2, max_output_tokens=3)
        await client.next_frame("finished")
        await client.next_frame("finished")
        assert client.logprobs[1] == [-0.5] * 3
        assert set(client.logprobs[2]) <= {0.0}


async def test_a_cancel_is_acknowledged_with_the_workers_figures_and_other_requests_continue():
    async with edge_mesh() as mesh, session(mesh) as client:
        mesh.workers[0].pause_at_index = 3
        client.generate(1, max_output_tokens=10)
        client.generate(2, max_output_tokens=10)
        handles = [await mesh.workers[0].paused.get() for _ in range(2)]
        client.cancel(1)
        client.cancel(1)
        client.cancel(99)
        cancelled = await client.next_frame("cancelled")
        assert (cancelled.handle, cancelled.output_tokens, cancelled.kv_blocks_freed) == (1, 3, KV_BLOCKS)
        cancelled = await mesh.workers[0].cancels.get()
        mesh.workers[0].send_tokens(next(handle for handle in handles if handle != cancelled))
        finished = await client.next_frame("finished")
        assert (finished.handle, client.texts[2]) == (2, text_of(10))
        assert mesh.workers[0].cancels.empty()


async def test_operators_see_how_soon_cancels_are_acknowledged(receiver):
    async with edge_mesh() as mesh, session(mesh) as client:
        mesh.workers[0].pause_at_index = 3
        client.generate(1, max_output_tokens=10)
        await mesh.workers[0].paused.get()
        client.cancel(1)
        await client.next_frame("cancelled")
    seen = await asyncio.to_thread(
        receiver.wait_for_metric,
        "penstock.cancel.acknowledged",
        lambda metric: sum(point.count for point in metric.histogram.data_points) >= 1,
    )
    assert seen.unit == "s"


async def test_an_error_affects_one_request_of_a_session_only():
    async with edge_mesh() as mesh, session(mesh) as client:
        mesh.queue.sheds.append(Overloaded("full", reason="QUEUE_FULL", retry_after=2.0))
        client.generate(1)
        failed = await client.next_frame("failed")
        assert (failed.handle, failed.failure.reason, failed.failure.retry_after.seconds) == (1, "QUEUE_FULL", 2)
        client.generate(1, sampling=Sampling(temperature=-1))
        assert (await client.next_frame("failed")).failure.field_violations[0].field == "sampling.temperature"
        client.generate(1, max_output_tokens=2)
        assert (await client.next_frame("finished")).handle == 1


async def test_a_session_that_is_cut_cancels_what_runs_on_it():
    async with edge_mesh() as mesh:
        async with session(mesh) as client:
            mesh.workers[0].pause_at_index = 3
            client.generate(1, max_output_tokens=10)
            await mesh.workers[0].paused.get()
        assert (await mesh.auth.settles.get()).outcome == "cancelled"


async def test_a_session_whose_client_does_not_read_is_closed_and_its_requests_are_cancelled(monkeypatch):
    monkeypatch.setattr(endpoint, "FLUSH_TIMEOUT_S", 0.02)
    monkeypatch.setattr("penstock.edge.api.grpc.session.MAX_STALLED_FLUSHES", 3)
    write, is_stuck = link.Peer.write, False

    async def write_until_stuck(self, to_client):
        async def take(frame):
            if is_stuck and isinstance(frame, SessionResponse):
                await asyncio.Event().wait()
            await to_client(frame)

        await write(self, take)

    monkeypatch.setattr(link.Peer, "write", write_until_stuck)
    async with edge_mesh() as mesh, session(mesh) as client, session(mesh) as other:
        mesh.workers[0].pause_at_index = 3
        client.generate(1, max_output_tokens=10)
        await mesh.workers[0].paused.get()
        is_stuck = True
        mesh.workers[0].pause_at_index = 6
        client.generate(2, max_output_tokens=10)
        assert len({await mesh.workers[0].cancels.get() for _ in range(2)}) == 2
        assert {(await mesh.auth.settles.get()).outcome for _ in range(2)} == {"cancelled"}
        is_stuck = False
        mesh.workers[0].pause_at_index = None
        other.generate(1, max_output_tokens=4)
        await other.next_frame("finished")
        assert other.texts[1] == text_of(4)


async def test_a_session_continues_after_end_until_the_last_answer():
    async with edge_mesh() as mesh, session(mesh) as client:
        mesh.workers[0].pause_at_index = 3
        client.generate(1, max_output_tokens=10)
        handle = await mesh.workers[0].paused.get()
        client.link.end("no more")
        mesh.workers[0].send_tokens(handle)
        assert (await client.next_frame("finished")).handle == 1
        assert client.texts[1] == text_of(10)
        assert await client.next_frame("down")


async def test_a_handle_used_twice_ends_the_session():
    async with edge_mesh() as mesh:
        mesh.queue.holds_tickets = True
        call = mesh.inference.Session(metadata=KEY)
        await call.write(SessionRequest(hello=hello("client", "c1")))
        for _ in range(2):
            await call.write(SessionRequest(generate=SessionGenerate(handle=1, request=GenerateRequest(text="hi"))))
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            while await call.read() is not grpc.aio.EOF:
                pass
        assert error_from_rpc(failure.value).reason == "HANDLE_IN_USE"


async def test_an_internal_error_ends_one_request_and_not_its_session(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a secret of the edge")

    async with edge_mesh() as mesh, session(mesh) as client:
        with monkeypatch.context() as patch:
            patch.setattr("penstock.edge.models.planner.plan_generation", fail)
            client.generate(1)
            failure = (await client.next_frame("failed")).failure
            assert (failure.reason, failure.message) == ("INTERNAL", "internal error")
        client.generate(1, max_output_tokens=2)
        assert (await client.next_frame("finished")).handle == 1


async def test_a_request_cancelled_before_its_prompt_is_tokenized_costs_no_tokenizing(monkeypatch):
    begun, may_continue, planned = asyncio.Event(), threading.Event(), []
    loop, plan_for = asyncio.get_running_loop(), planner.plan_generation

    def plan_slowly(spec, *args, **options):
        planned.append(spec.request_id)
        loop.call_soon_threadsafe(begun.set)
        may_continue.wait()
        return plan_for(spec, *args, **options)

    monkeypatch.setattr(planner, "plan_generation", plan_slowly)
    monkeypatch.setattr(planner, "MAX_INLINE_PROMPT_CHARS", -1)  # every prompt is tokenized in a thread
    async with edge_mesh(tokenizer_threads=1) as mesh, session(mesh) as client:
        client.generate(1, request_id="first", max_output_tokens=2)
        await begun.wait()
        for handle in range(2, 20):
            client.generate(handle, request_id=f"cancelled-{handle}")
            client.cancel(handle)
        for _ in range(2, 20):
            await client.next_frame("cancelled")
        may_continue.set()
        assert (await client.next_frame("finished")).handle == 1
        client.generate(2, request_id="last", max_output_tokens=2)
        assert (await client.next_frame("finished")).handle == 2
    assert planned == ["first", "last"]


async def test_a_session_without_hello_ends_with_a_reason(monkeypatch):
    monkeypatch.setattr(link, "HELLO_TIMEOUT_S", 0.05)
    async with edge_mesh() as mesh:
        call = mesh.inference.Session(metadata=KEY)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            while await call.read() is not grpc.aio.EOF:
                pass
        error = error_from_rpc(failure.value)
        assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "HELLO_MISSING")
