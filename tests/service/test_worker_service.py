"""A worker over real streams, its engine in a process of its own."""

import asyncio
import json
import zlib
from contextlib import AsyncExitStack

import grpc
import pytest

from free_ports import free_port
from penstock.chassis.channels import channel
from penstock.chassis.errors import error_from_rpc
from penstock.chassis.streams.link import Link
from penstock.edge.upstreams.hashing import block_hashes
from penstock.mesh.v1.worker_pb2 import GetModelCardRequest
from penstock.mesh.v1.worker_pb2_grpc import WorkerServiceStub
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, Sampling
from penstock.worker.config import EngineKind
from penstock.worker.scheduler_session.client import STARTED_DELAY_S
from tiny_model import write_tiny_model
from worker_mesh import connected_edge, engine_processes, fake_scheduler, running_worker

MOST_CANCELS = 60  # about every second one arrives during a step


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


SALT = b"s" * 16
POISON_TOKEN = 99
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16_384))


def seconds(duration):
    return duration.ToTimedelta().total_seconds()


async def test_tokens_come_in_order_and_once_and_then_the_end(model):
    async with running_worker(model) as worker, connected_edge(worker.address) as edge:
        worker.scheduler.expect("lease 1")
        edge.start(1, tokens=12)
        tokens, ends = await edge.read_answers(1)
        assert [index for index, _ in tokens[1]] == list(range(12))
        assert (ends[1].reason, ends[1].output_tokens) == (FINISH_REASON_LENGTH, 12)
        assert seconds(ends[1].times.prefill) > 0
        assert seconds(ends[1].times.decode) > 0
        events = [await worker.scheduler.next_lease_event() for _ in range(2)]
        assert events == [("started", "lease 1"), ("released", "lease 1")]
        figures = await worker.wait_at_rest()
        assert (figures["tokens_generated"], figures["cancels"]) == (12, 0)
        assert figures["tokens_prefilled"] > 0


async def test_the_start_of_a_lease_may_be_delayed_and_its_end_is_sent_at_once(model, monkeypatch):
    delays, send = {}, Link.send

    def record(link, frame, *, max_delay_s=0.0):
        delays[frame.WhichOneof("frame")] = max_delay_s
        return send(link, frame, max_delay_s=max_delay_s)

    monkeypatch.setattr(Link, "send", record)
    async with running_worker(model) as worker, connected_edge(worker.address) as edge:
        worker.scheduler.expect("lease 1")
        edge.start(1, tokens=1)
        await edge.read_answers(1)
        events = [await worker.scheduler.next_lease_event() for _ in range(2)]
    assert events == [("started", "lease 1"), ("released", "lease 1")]
    assert (delays["started"], delays["released"]) == (STARTED_DELAY_S, 0.0)


async def test_the_scheduler_receives_the_progress_of_leases_and_cached_blocks(model):
    async with running_worker(model) as worker, connected_edge(worker.address) as edge:
        scheduler, prompt = worker.scheduler, list(range(1, 40))
        for handle in (1, 2):  # one after the other
            scheduler.expect(f"lease {handle}")
            edge.start(handle, prompt=prompt, tokens=12, cache_salt=SALT)
            await edge.read_to_end(handle)
            await scheduler.next_lease_event(), await scheduler.next_lease_event()
        assert scheduler.served["lease 1"][-1] == (39, 12)
        assert scheduler.served["lease 2"][-1] == (39 - 2 * 16, 12)  # its beginning was in the cache
        assert scheduler.served["lease 1"] == sorted(scheduler.served["lease 1"])
        assert set(block_hashes(prompt, 16, SALT)) <= scheduler.cached_blocks


async def test_runs_of_one_edge_share_a_frame_per_step(model):
    async with running_worker(model) as worker, connected_edge(worker.address) as edge:
        for handle in range(1, 5):
            worker.scheduler.expect(f"lease {handle}")
            edge.start(handle, tokens=40)
        shared = 0
        ended = 0
        while ended < 4:
            frame = await edge.next_frame()
            shared += len(frame.step.handles) == 4
            ended += frame.HasField("finished")
        assert shared > 20


async def test_a_resumed_run_continues_with_the_same_text(model):
    async with running_worker(model, engine="torch", dtype="float32") as worker, connected_edge(worker.address) as edge:
        worker.scheduler.expect("lease 1")
        edge.start(1, tokens=20)
        whole = [token for _, token in (await edge.read_answers(1))[0][1]]
        worker.scheduler.expect("lease 2")
        edge.start(2, prompt=[5, 6, 7, *whole[:8]], emitted=8, tokens=12)
        rest = (await edge.read_answers(2))[0][2]
        assert rest == list(enumerate(whole))[8:]


async def test_a_start_may_overtake_the_announcement_of_its_lease(model):
    async with running_worker(model) as worker, connected_edge(worker.address) as edge:
        edge.start(1)
        await worker.wait_for_figures(lambda figures: figures["runs_parked"] == 1)
        worker.scheduler.expect("lease 1")
        assert (await edge.read_to_end(1)).output_tokens == 4


async def test_an_unknown_lease_is_rejected_after_the_announce_timeout(model):
    async with running_worker(model, lease_announce_timeout=0.2) as worker, connected_edge(worker.address) as edge:
        edge.start(1)
        response = await edge.read_to_end(1)
        assert (response.failure.code, response.failure.reason) == (grpc.StatusCode.ABORTED.value[0], "LEASE_LOST")
        await worker.wait_at_rest()


async def test_a_revoked_lease_is_rejected_at_once(model):
    async with running_worker(model, lease_announce_timeout=60.0) as worker, connected_edge(worker.address) as edge:
        worker.scheduler.expect("lease 1")
        worker.scheduler.revoke("lease 1")
        await worker.wait_at_rest()
        edge.start(1)
        assert (await edge.read_to_end(1)).failure.reason == "LEASE_LOST"


async def test_figures_show_the_latency_and_the_waste_of_cancels(receiver, model):
    """A cancel during a step wastes a token, so the test cancels runs until one has."""
    slow, left = {"engine": EngineKind.SIM, "sim_base_s": 0.02}, 0
    async with running_worker(model, **slow) as worker, connected_edge(worker.address) as edge:
        wasted_tokens = 0
        while not wasted_tokens and left < MOST_CANCELS:
            left += 1
            worker.scheduler.expect(f"lease {left}")
            edge.start(left, tokens=200, ignore_eos=True)
            await edge.wait_first_token(left)
            edge.cancel(left)
            await edge.read_to_end(left)
            wasted_tokens = (await worker.wait_at_rest())["tokens_wasted_after_cancel"]
    assert wasted_tokens == 1, "the running step generates one more token, and no later step does"
    await asyncio.to_thread(
        receiver.wait_for_metric,
        "penstock.cancel.engine_latency",
        lambda metric: sum(point.count for point in metric.histogram.data_points) >= left,
    )
    await asyncio.to_thread(
        receiver.wait_for_metric,
        "penstock.cancel.wasted_tokens",
        lambda metric: sum(point.as_int for point in metric.sum.data_points) >= 1,
    )


async def test_a_cancel_is_acknowledged_with_the_blocks_it_freed(model):
    async with running_worker(model) as worker, connected_edge(worker.address) as edge:
        worker.scheduler.expect("lease 1")
        edge.start(1, prompt=[5] * 40, tokens=400)
        await edge.wait_first_token(1)
        edge.cancel(1)
        stopped = await edge.read_to_end(1)
        assert stopped.kv_blocks_freed == -(-(40 + stopped.output_tokens) // 16)
        assert stopped.step > 0
        figures = await worker.wait_at_rest()
        assert figures["cancels"] == 1
        assert figures["tokens_wasted_after_cancel"] <= 1
        events = [await worker.scheduler.next_lease_event() for _ in range(2)]
        assert events == [("started", "lease 1"), ("released", "lease 1")]


async def test_a_cut_stream_stops_its_runs_and_no_other_edge_notices(model):
    async with running_worker(model) as worker, connected_edge(worker.address) as staying:
        async with connected_edge(worker.address) as leaving:
            for handle, edge in ((1, leaving), (2, leaving), (3, staying)):
                worker.scheduler.expect(f"lease {handle}")
                edge.start(handle, tokens=100)
            await leaving.wait_first_token(2)
            assert (await worker.figures())["edge_streams"] == 2
        tokens, ends = await staying.read_answers(3)
        assert [index for index, _ in tokens[3]] == list(range(100))
        assert ends[3].output_tokens == 100
        figures = await worker.wait_at_rest()
        assert figures["edge_streams"] == 1
        assert figures["tokens_generated"] < 300


async def test_a_run_for_another_model_is_rejected_and_its_lease_is_free_again(model):
    async with running_worker(model) as worker, connected_edge(worker.address) as edge:
        for lease, other in (("lease 1", "tiny@other"), ("lease 2", ""), ("lease 3", "tiny")):
            worker.scheduler.expect(lease)
            edge.start(1, lease, model=other)
            failed = await edge.read_to_end(1)
            assert (failed.failure.reason, failed.never_ran) == ("MODEL_MISMATCH", True)
        figures = await worker.wait_at_rest()
        assert figures["tokens_generated"] == 0


async def test_a_run_too_large_for_the_model_fails_with_the_numbers(model):
    async with running_worker(model) as worker, connected_edge(worker.address) as edge:
        worker.scheduler.expect("lease 1")
        edge.start(1, prompt=[5] * 500, tokens=100)
        failure = (await edge.read_to_end(1)).failure
        assert (failure.code, failure.reason) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], "PROMPT_TOO_LONG")
        assert dict(failure.metadata) == {
            "prompt_tokens": "500",
            "max_output_tokens": "100",
            "context_length": str(worker.profile.context_length),
        }


async def test_a_deadline_ends_a_run_before_and_after_its_first_token(model):
    async with running_worker(model, sim_base_s=0.05) as worker, connected_edge(worker.address) as edge:
        worker.scheduler.expect("lease 1")
        edge.start(1, time_left_nanos=1)
        assert (await edge.read_to_end(1)).failure.reason == "DEADLINE"
        worker.scheduler.expect("lease 2")
        edge.start(2, tokens=400, time_left_nanos=1_000_000_000)
        tokens, ends = await edge.read_answers(2)
        assert 0 < len(tokens[2]) < 400
        assert ends[2].failure.reason == "DEADLINE"
        await worker.wait_at_rest()


async def test_an_edge_that_does_not_read_loses_its_stream_and_delays_no_other(model):
    runs = 32  # enough tokens per frame to fill the window well before the answers end
    # Room for 1 s of the other edge's tokens, because the loop of this process can be late.
    many = {"max_outbox_frames": 250, "slots": runs + 1, "kv_blocks": 2_000, "sim_base_s": 0.004}
    async with (
        running_worker(model, **many) as worker,
        connected_edge(worker.address) as edge,
        connected_edge(worker.address, *SMALL_WINDOW) as slow,
    ):
        slow.link._read = stuck
        slow.link.end("start over")  # the next stream has no reader
        await slow.down.get()
        await slow.up.get()
        for handle in range(runs):
            worker.scheduler.expect(f"slow {handle}")
            slow.start(handle, f"slow {handle}", tokens=450, sampling=Sampling(temperature=0.0, logprobs=True))
        worker.scheduler.expect("lease 99")
        edge.start(99, tokens=450)
        tokens, _ = await edge.read_answers(99)
        assert [index for index, _ in tokens[99]] == list(range(450))
        figures = await worker.wait_at_rest()
        assert figures["tokens_generated"] < (runs + 1) * 450


async def stuck(call, end):
    await asyncio.Event().wait()


async def test_the_scheduler_receives_the_profile_and_the_load(model):
    async with running_worker(model) as worker, connected_edge(worker.address) as edge:
        card = (await worker.stub.GetModelCard(GetModelCardRequest())).card
        assert (worker.profile.model, worker.profile.card_digest) == (card.name, card.digest)
        assert (worker.profile.slots, worker.profile.kv_blocks, worker.profile.block_size) == (8, 64, 16)
        worker.scheduler.expect("lease 1")
        edge.start(1, prompt=[5] * 40, tokens=24)
        await edge.read_to_end(1)
        reports = await worker.scheduler.reports_until(
            lambda report: report.running == 0 and report.tokens_per_second > 0
        )
        assert min(report.free_kv_blocks for report in reports) == 60  # what it holds and what it may grow to
        assert max(report.running for report in reports) == 1
        assert reports[-1].free_kv_blocks == 64
        assert len(reports) <= (await worker.figures())["engine_steps"] + 1


async def test_the_card_is_unavailable_while_the_model_loads(model):
    address = f"127.0.0.1:{free_port()}"
    loading = []

    async def get_card():
        async with channel(address) as to_worker:
            ready = WorkerServiceStub(to_worker).GetModelCard(GetModelCardRequest(), wait_for_ready=True)
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await ready
            loading.append(error_from_rpc(failure.value))

    getting_card = asyncio.create_task(get_card())
    async with running_worker(model, listen=address) as worker:
        await getting_card
        assert (loading[0].code, loading[0].reason) == (grpc.StatusCode.UNAVAILABLE, "LOADING")
        card = (await worker.stub.GetModelCard(GetModelCardRequest())).card
        assert (card.vocabulary_size, card.context_length, card.block_size) == (304, 512, 16)
        assert json.loads(zlib.decompress(card.tokenizer_json_zlib))["model"]["type"] == "BPE"


async def test_a_worker_attaches_to_the_next_scheduler_with_its_running_leases(model):
    async with AsyncExitStack() as first_lives:
        first, address = await first_lives.enter_async_context(fake_scheduler())
        long = {"sim_base_s": 0.02}
        async with (
            running_worker(model, first=(first, address), **long) as worker,
            connected_edge(worker.address) as edge,
        ):
            first.expect("lease 1")
            edge.start(1, tokens=200)
            await edge.wait_first_token(1)
            await first_lives.aclose()
            profile = await worker.scheduler.profiles.get()
            assert [(each.lease_id, each.kv_blocks) for each in profile.running] == [("lease 1", 13)]
            edge.cancel(1)
            assert (await edge.read_to_end(1)).output_tokens < 200
            assert await worker.scheduler.next_lease_event() == ("released", "lease 1")


async def test_a_drain_lets_runs_end_and_rejects_starts_without_a_lease(model):
    async with running_worker(model) as worker, connected_edge(worker.address) as edge:
        worker.scheduler.expect("lease 1")
        edge.start(1, tokens=60)
        await edge.wait_first_token(1)
        worker.scheduler.drain()
        assert await worker.scheduler.ended_streams.get()
        edge.start(2)
        _, ends = await edge.read_answers(1, 2)
        assert ends[1].output_tokens == 60
        assert ends[2].failure.reason == "DRAINING"
        assert (await edge.next_frame()).end.reason == "drained"
        await worker.running
        assert engine_processes() == []


async def test_runs_that_outlast_the_grace_period_are_returned(model):
    async with running_worker(model, drain_grace=0.1) as worker, connected_edge(worker.address) as edge:
        worker.scheduler.expect("lease 1")
        edge.start(1, tokens=450)
        await edge.wait_first_token(1)
        worker.scheduler.drain()
        frame = await edge.next_frame()
        while not frame.HasField("end"):
            assert frame.HasField("step")
            frame = await edge.next_frame()
        await worker.running


async def test_one_trace_shows_prefill_and_decode_with_their_tokens(model, receiver):
    trace_id = "9a" * 16  # no other test's: the receiver is the whole session's
    async with running_worker(model) as worker, connected_edge(worker.address) as edge:
        worker.scheduler.expect("lease 1")
        edge.start(1, prompt=[5] * 40, tokens=7, traceparent=f"00-{trace_id}-00f067aa0ba902b7-01")
        await edge.read_to_end(1)
    spans = receiver.wait_for_spans("worker.prefill", "worker.decode", trace_id=trace_id)
    prefill, decode = sorted(spans, key=lambda span: span.start_unix_nano)
    assert {prefill.parent_id, decode.parent_id} == {"00f067aa0ba902b7"}
    assert prefill.attributes["gen_ai.usage.input_tokens"] == 40
    assert decode.attributes["gen_ai.usage.output_tokens"] == 7
    assert prefill.end_unix_nano == decode.start_unix_nano
