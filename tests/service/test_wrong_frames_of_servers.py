"""Frames out of range, or at the ends of their ranges, from the server end of every stream between tiers.

The client end cuts the stream of the wrong server, reconnects, and goes on with the others.
"""

import asyncio
import math
import random
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from chunk_memory import ChunkMemory, chunk_of
from edge_mesh import FakeWorker, edge_mesh, text_of
from frame_samples import random_frame, wrong_frames
from line_edges import line_edge
from penstock.batch.runner.edges import EdgeLinks
from penstock.batch.runner.runner import BatchRunner
from penstock.chassis.lifecycle import background
from penstock.chassis.streams.protocol import hello_of
from penstock.mesh.v1.admission_pb2 import AdmitResponse
from penstock.mesh.v1.batch_pb2 import RunResponse
from penstock.mesh.v1.queue_pb2 import DispatchResponse, SubmitResponse
from penstock.mesh.v1.region_pb2 import RegionServiceRunResponse
from penstock.mesh.v1.scheduler_pb2 import AttachResponse
from penstock.mesh.v1.worker_pb2 import ExecuteResponse, Step
from penstock.v1.inference_pb2 import Sampling
from queue_streams import ticket
from region_edges import region_edge
from scheduler_streams import TIMEOUT_S, scheduler_of, shard_server, worker_at
from tiny_model import write_tiny_model
from worker_mesh import connected_edge, running_worker

SEEDS = range(6)
FRAMES_PER_STREAM = 40
COMMANDS = ("drain", "store_state")  # which a client obeys, as it should
CRASHES = ("handler_crashed", "frame_failed", "unmapped_error")


@dataclass
class WrongServer:
    """The server end of a stream of a real client, which the test drives."""

    frame_type: type
    peer: object  # () -> the present server end of the stream; None if it is down
    check_neighbour: object

    async def next_peer(self, former=None):
        async with asyncio.timeout(TIMEOUT_S):
            while (peer := self.peer()) is None or peer is former or peer.close_reason:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.005)
        return peer


@asynccontextmanager
async def shard_of_a_scheduler():
    async with AsyncExitStack() as stack:
        honest, wrong = [await stack.enter_async_context(shard_server(f"queue-{number}")) for number in (1, 2)]
        scheduler = await stack.enter_async_context(scheduler_of(honest, wrong))
        worker = await stack.enter_async_context(worker_at(scheduler.address))
        await honest.catalog_of("m")

        async def check():
            name = f"t-{random.random()}"
            for _ in range(2):  # the tick sends them
                while (await honest.receive("pool_stats")).model != "m@d":
                    pass
            honest.offer(ticket(name, model="m@d"))
            while (lease := (await honest.receive("place")).lease).ticket_id != name:
                pass
            worker.started(lease.lease_id), worker.released(lease.lease_id)

        yield WrongServer(DispatchResponse, lambda: wrong.peer, check)


@asynccontextmanager
async def scheduler_of_a_worker(model):
    async with running_worker(model) as worker, connected_edge(worker.address) as edge:
        handles = iter(range(1, 1_000))

        async def check():
            handle = next(handles)
            worker.scheduler.expect(f"lease {handle}")
            edge.start(handle, tokens=3)
            assert (await edge.read_to_end(handle)).output_tokens == 3

        yield WrongServer(AttachResponse, lambda: worker.scheduler.peer, check)


async def check_answer(mesh):
    assert "".join([each.delta.text async for each in mesh.generate(model="tiny", max_output_tokens=3)]) == text_of(3)


def only(peers):
    return next(iter(peers), None)


@asynccontextmanager
async def auth_of_an_edge():
    async with edge_mesh() as mesh:
        yield WrongServer(AdmitResponse, lambda: only(mesh.auth.peers), lambda: check_answer(mesh))


@asynccontextmanager
async def shard_of_an_edge():
    async with edge_mesh(shards=2) as mesh:
        await check_answer(mesh)
        yield WrongServer(SubmitResponse, lambda: only(mesh.queues[1].peers), lambda: check_answer(mesh))


@asynccontextmanager
async def worker_of_an_edge():
    async with edge_mesh(fakes=[FakeWorker("w1")]) as mesh:
        await check_answer(mesh)
        yield WrongServer(ExecuteResponse, lambda: only(mesh.workers[0].peers), lambda: check_answer(mesh))


@asynccontextmanager
async def edge_of_a_batch_process():
    """An honest edge runs the lines of the neighbour's chunk, because the wrong one answers none."""
    async with line_edge("edge-1") as honest, line_edge("edge-2") as wrong:
        wrong.is_answering = False
        store, names = ChunkMemory([]), iter(range(1, 1_000))
        edges = EdgeLinks((honest.address, wrong.address), hello_of("batch", "batch-1"))
        runner = BatchRunner("batch-1", store, edges)

        async def check():
            name = f"batch_{next(names)}"
            claimed, lines = chunk_of(name, 1)
            store.free[claimed.key] = claimed, lines
            async with asyncio.timeout(TIMEOUT_S):
                while claimed.key not in store.released:
                    if wrong.peer:
                        wrong.answer_all()
                    await asyncio.sleep(0.01)
            assert set(store.commits.values()) == {1}

        async with background(edges.run(), runner.run()):
            yield WrongServer(RunResponse, lambda: wrong.peer, check)


@asynccontextmanager
async def region_of_an_edge():
    async with (
        region_edge() as (other, address),
        edge_mesh(regions=(f"us={address}",), allowed_regions=lambda _: ("us",)) as mesh,
    ):
        yield WrongServer(RegionServiceRunResponse, lambda: other.peer, lambda: check_answer(mesh))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


SERVERS = {
    "shard-scheduler": shard_of_a_scheduler,
    "auth-edge": auth_of_an_edge,
    "shard-edge": shard_of_an_edge,
    "worker-edge": worker_of_an_edge,
    "edge-batch": edge_of_a_batch_process,
    "region-edge": region_of_an_edge,
}


@pytest.fixture(params=[*SERVERS, "scheduler-worker"])
async def server(request, model):
    async with SERVERS[request.param]() if request.param in SERVERS else scheduler_of_a_worker(model) as found:
        yield found


async def test_each_field_out_of_its_range_cuts_the_stream_of_its_server_alone(server):
    paths, peer = [], None
    with capture_logs() as logs:
        for path, frame in wrong_frames(server.frame_type):
            peer = await server.next_peer(peer)
            assert peer.send(frame)
            paths.append(path)
        await server.next_peer(peer)
        await server.check_neighbour()
    assert [each for each in logs if each["event"] in CRASHES] == []
    reasons = [each["because"] for each in logs if each["event"] == "link_down" and " is " in each["because"]]
    assert [each.partition(" is ")[0] for each in reasons] == paths
    assert all("; allowed: " in each for each in reasons)
    rejected = [each["because"] for each in logs if each["event"] == "link_rejected"]
    assert rejected == reasons, "each is logged, because each is another one"


@pytest.mark.parametrize("is_within", [True, False], ids=["within", "beyond"])
async def test_random_frames_cut_the_stream_of_their_server_alone(server, is_within):
    with capture_logs() as logs:
        for seed in SEEDS:
            peer = await server.next_peer()
            rng = random.Random(f"{seed} {server.frame_type.__name__}")
            frames = [random_frame(server.frame_type, rng, is_within=is_within) for _ in range(FRAMES_PER_STREAM)]
            for frame in frames:
                if frame.WhichOneof("frame") not in COMMANDS:
                    peer.send(frame)
            if not is_within:
                await server.next_peer(peer)
        await server.check_neighbour()
    assert [each for each in logs if each["event"] in CRASHES] == []
    rejected = [each["because"] for each in logs if each["event"] == "link_rejected"]
    if is_within:
        assert [each for each in rejected if not each.startswith(("Step.handles, ", "Step.top_token_ids "))] == []


@pytest.mark.parametrize(
    ("arrays", "rejected"),
    [
        ({"handles": [1, 1], "token_ids": [5], "indexes": [0]}, "(2, 1, 1, 2)"),
        ({"handles": [1], "token_ids": [5], "indexes": []}, "(1, 1, 0, 1)"),
        ({"handles": [1, 1], "token_ids": [5, 5], "indexes": [0, 1], "logprobs": [0.5]}, "(2, 2, 2, 1)"),
        ({"handles": [1], "token_ids": [5], "indexes": [0], "top_token_ids": [5]}, "1 and 0 entries for 1 tokens"),
        (
            {"handles": [1] * 2, "token_ids": [5] * 2, "indexes": [0, 1], "top_token_ids": [5], "top_logprobs": [0.5]},
            "1 and 1 entries for 2 tokens",
        ),
        ({"handles": [], "token_ids": [], "indexes": [], "top_token_ids": [5], "top_logprobs": [0]}, "for 0 tokens"),
        ({"handles": [1], "token_ids": [2**32 - 1], "indexes": [0]}, ""),
        ({"handles": [1], "token_ids": [5], "indexes": [2**32 - 1]}, ""),
        ({"handles": [1], "token_ids": [5], "indexes": [0], "logprobs": [math.nan], "step": 2**64 - 1}, ""),
    ],
)
async def test_absurd_tokens_harm_their_run_at_most(arrays, rejected):
    """Steps are not checked in advance, because of their number."""
    async with edge_mesh(workers=2) as mesh:
        worker = mesh.workers[0]
        worker.pause_at_index = 0
        call = mesh.generate(model="tiny", max_output_tokens=3, sampling=Sampling(logprobs=True))
        handle = await worker.paused.get()
        worker.pause_at_index = None
        with capture_logs() as logs:
            step = Step(**{**arrays, "handles": [handle] * len(arrays["handles"])})
            only(worker.peers).send(ExecuteResponse(step=step))
            if not rejected:
                worker.send_tokens(handle)
            deltas = [each.delta async for each in call]
            await check_answer(mesh)
    assert sum(len(each.token_ids) for each in deltas) == 3
    assert [each for each in logs if each["event"] in CRASHES] == []
    found = [each["because"] for each in logs if each["event"] == "link_rejected"]
    assert len(found) == bool(rejected)
    assert all(rejected in each for each in found)
