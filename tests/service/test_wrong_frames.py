"""Frames with values out of their ranges, or at their ends, on every stream between tiers, against real servers.

A wrong frame ends the stream of its sender alone, with a text that names the field. Other frames end no stream.
"""

import asyncio
import itertools
import random
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

import grpc
import pytest
from structlog.testing import capture_logs

from auth_server import DEV_KEY, auth_process
from edge_mesh import KEY, edge_mesh, text_of
from frame_samples import random_frame, wrong_frames
from penstock.chassis.channels import channel
from penstock.chassis.errors import error_from_rpc
from penstock.chassis.lifecycle import background
from penstock.chassis.streams.link import Link
from penstock.mesh.limits.bounds import FRAMES, SLOTS
from penstock.mesh.v1 import admission_pb2, queue_pb2, region_pb2, region_quota_pb2, scheduler_pb2, worker_pb2
from penstock.mesh.v1.admission_pb2_grpc import AdmissionServiceStub
from penstock.mesh.v1.queue_pb2_grpc import QueueServiceStub
from penstock.mesh.v1.region_pb2_grpc import RegionServiceStub
from penstock.mesh.v1.region_quota_pb2_grpc import RegionQuotaServiceStub
from penstock.mesh.v1.scheduler_pb2_grpc import SchedulerServiceStub
from penstock.mesh.v1.worker_pb2_grpc import WorkerServiceStub
from penstock.v1.inference_pb2 import SessionRequest
from penstock.v1.inference_pb2_grpc import InferenceStub
from penstock.v1.stream_pb2 import Heartbeat, Hello
from queue_shards import shard_of
from queue_streams import StreamClient, edge_at, scheduler_at, ticket
from region_auths import create_key, two_regions, wait_until
from scheduler_streams import TIMEOUT_S, scheduler_of, shard_server, worker_at
from tiny_model import write_tiny_model
from worker_mesh import connected_edge, running_worker

SEEDS = range(12)  # streams of random frames for each kind of stream
FRAMES_PER_STREAM = 40
CRASHES = ("handler_crashed", "frame_failed", "unmapped_error")
PROFILE = {"model": "m", "card_digest": "d", "slots": 2, "kv_blocks": 64, "block_size": 16, "context_length": 4_096}


@dataclass
class Target:
    """A real server, a method of it, and a check that a neighbour on the same server is served."""

    address: str
    method: object  # stub -> method
    frame_type: type
    check_neighbour: object
    first_frames: tuple = ()  # after the hello

    @asynccontextmanager
    async def stream(self, **hello):
        async with channel(self.address) as to_server:
            call = self.method(to_server)(wait_for_ready=True)
            fields = {"protocol": 1, "instance_id": "hostile", "tier": "client", "address": "h:1", **hello}
            await call.write(self.frame_type(hello=Hello(**fields)))
            try:
                yield call
            finally:
                call.cancel()

    async def send(self, *frames, **hello):
        """Send frames on a new stream. Return the error that ends it; None if it stays open."""
        async with self.stream(**hello) as call:
            try:
                await read_kind(call, "hello")
                for frame in (*self.first_frames, *frames):
                    await call.write(frame)
                await call.done_writing()
                async with asyncio.timeout(TIMEOUT_S):
                    while await call.read() is not grpc.aio.EOF:
                        pass
                await call.code()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            return await error_of(call)


async def error_of(call):
    """Return the error that ended a call; None if it ended well."""
    async with asyncio.timeout(TIMEOUT_S):
        code = await call.code()
        if code is grpc.StatusCode.OK:
            return None
        leading, trailing = await call.initial_metadata(), await call.trailing_metadata()
        return error_from_rpc(grpc.aio.AioRpcError(code, leading, trailing, await call.details()))


async def read_kind(call, kind):
    async with asyncio.timeout(TIMEOUT_S):
        while (frame := await call.read()) is not grpc.aio.EOF and frame.WhichOneof("frame") != kind:
            pass


@asynccontextmanager
async def admit():
    async with auth_process() as found:
        hello = Hello(protocol=1, instance_id="edge-1", tier="edge")

        def link_of(**callbacks):
            return Link("neighbour", found.stub.Admit, admission_pb2.AdmitRequest, hello, **callbacks)

        neighbour = StreamClient(link_of, admission_pb2.AdmitRequest)
        credential = admission_pb2.Credential(bearer=DEV_KEY, loopback=True)

        async def check():
            request_id = f"request-{random.random()}"
            neighbour.send(identify=admission_pb2.Identify(request_id=request_id, credential=credential))
            assert (await neighbour.receive("identified")).request_id == request_id
            assert not neighbour.down.is_set()

        async with background(neighbour.link.run()):
            await neighbour.up.wait()
            yield Target(found.address, lambda to: AdmissionServiceStub(to).Admit, admission_pb2.AdmitRequest, check)


async def check_ticket_passes(shard, scheduler, edge_stream):
    """The tick loop of the shard is alive, and a ticket goes its way."""
    ticks = shard.ticks
    name = f"t-{random.random()}"
    scheduler.credit(1, max_ticket_tokens=1_000)
    edge_stream.enqueue(ticket(name))
    async with asyncio.timeout(TIMEOUT_S):
        while (await scheduler.receive("offer")).ticket.ticket_id != name:
            pass
        scheduler.place(name)
        while (await edge_stream.receive("leased")).lease.ticket_id != name:
            pass
        while shard.ticks == ticks:  # noqa: ASYNC110  # a tick has no event
            await asyncio.sleep(0.01)


@asynccontextmanager
async def shard_and_peers():
    async with AsyncExitStack() as stack:
        shard = await stack.enter_async_context(shard_of())
        shard.ticks, tick = 0, shard.book.tick

        def counted(now):
            shard.ticks += 1
            return tick(now)

        shard.book.tick = counted
        scheduler = await stack.enter_async_context(scheduler_at(shard.address, "scheduler-1"))
        edge_stream = await stack.enter_async_context(edge_at(shard.address))
        yield shard, lambda: check_ticket_passes(shard, scheduler, edge_stream)


@asynccontextmanager
async def submit():
    async with shard_and_peers() as (shard, check):
        yield Target(shard.address, lambda to: QueueServiceStub(to).Submit, queue_pb2.SubmitRequest, check)


@asynccontextmanager
async def dispatch():
    async with shard_and_peers() as (shard, check):
        yield Target(shard.address, lambda to: QueueServiceStub(to).Dispatch, queue_pb2.DispatchRequest, check)


@asynccontextmanager
async def attach():
    async with (
        shard_server("queue-1") as one,
        shard_server("queue-2") as other,
        scheduler_of(one, other) as scheduler,
        worker_at(scheduler.address) as worker,
    ):
        await one.catalog_of("m")

        async def check():
            name = f"t-{random.random()}"
            for _ in range(2):  # statistics are sent by the tick, and once a second if they do not change
                while (await one.receive("pool_stats")).model != "m@d":
                    pass
            assert other.peer.close_reason == ""
            one.offer(ticket(name, model="m@d", expected_worker="w1"))
            while (lease := (await one.receive("place")).lease).ticket_id != name:
                pass
            worker.started(lease.lease_id), worker.released(lease.lease_id)

        yield Target(
            scheduler.address,
            lambda to: SchedulerServiceStub(to).Attach,
            scheduler_pb2.AttachRequest,
            check,
            (scheduler_pb2.AttachRequest(profile=scheduler_pb2.Profile(**PROFILE | {"model": "hostile"})),),
        )


@asynccontextmanager
async def execute(model):
    async with running_worker(model) as worker, connected_edge(worker.address) as neighbour:
        handles = iter(range(1, 1_000))

        async def check():
            handle = next(handles)
            worker.scheduler.expect(f"lease {handle}")
            neighbour.start(handle, tokens=3)
            assert (await neighbour.read_to_end(handle)).output_tokens == 3

        yield Target(worker.address, lambda to: WorkerServiceStub(to).Execute, worker_pb2.ExecuteRequest, check)


@asynccontextmanager
async def guests():
    async with edge_mesh() as mesh:

        async def check():
            texts = [each.delta.text async for each in mesh.generate(max_output_tokens=3)]
            assert "".join(texts) == text_of(3)

        frame_type = region_pb2.RegionServiceRunRequest
        yield Target(mesh.address, lambda to: RegionServiceStub(to).Run, frame_type, check)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@asynccontextmanager
async def follow():
    async with two_regions() as (eu, us, _):
        digest = eu.authorizer.keys.secrets_digest(eu.authorizer.mesh_secret)
        join = region_quota_pb2.RegionJoin(region="us", secrets_digest=digest)
        frame_type, names = region_quota_pb2.FollowRequest, itertools.count()

        async def check():
            tenant_id = f"tenant-{next(names)}"
            await create_key(eu, tenant_id)
            await wait_until(lambda: us.authorizer.reservations.quota(tenant_id) and us.role.follower.is_following)

        yield Target(
            eu.address, lambda to: RegionQuotaServiceStub(to).Follow, frame_type, check, (frame_type(join=join),)
        )


@pytest.fixture(params=["admit", "submit", "dispatch", "attach", "guests", "follow", "execute"])
async def target(request, model):
    servers = {"admit": admit, "submit": submit, "dispatch": dispatch, "attach": attach, "guests": guests}
    servers["follow"] = follow
    async with servers[request.param]() if request.param in servers else execute(model) as found:
        yield found


async def test_each_field_out_of_its_range_ends_the_stream_of_its_sender_alone(target):
    cases = list(wrong_frames(target.frame_type))
    with capture_logs() as logs:
        for path, frame in cases:
            is_first = path.startswith("Profile.")
            error = await Target(**{**vars(target), "first_frames": () if is_first else target.first_frames}).send(
                frame
            )
            assert error is not None, path
            assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "FRAME_OUT_OF_RANGE"), path
            assert error.message.startswith(f"{path} is "), (path, error.message)
            assert "; allowed: " in error.message
        await target.check_neighbour()
    assert [each for each in logs if each["event"] in CRASHES] == []
    assert [each["event"] for each in logs if each["event"] == "frame_out_of_range"] == ["frame_out_of_range"] * len(
        cases
    )


async def test_a_hello_out_of_range_ends_the_stream(target):
    for fields in ({"instance_id": "i" * 257}, {"address": "a b"}, {"tier": "T"}, {"zone": "z" * 257}):
        error = await target.send(**fields)
        assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "FRAME_OUT_OF_RANGE")
        assert error.message.startswith(f"Hello.{next(iter(fields))} is ")
    await target.check_neighbour()


async def test_a_bundle_of_too_many_frames_ends_the_stream(target):
    heartbeat = target.frame_type(heartbeat=Heartbeat())
    error = await target.send(target.frame_type(more=[heartbeat] * (FRAMES + 1)))
    assert error.message == f"{target.frame_type.__name__}.more has {FRAMES + 1} frames; allowed: at most {FRAMES}"
    assert await target.send(target.frame_type(more=[heartbeat] * FRAMES)) is None


async def test_a_wrong_frame_in_a_bundle_ends_the_stream(target):
    for path, frame in wrong_frames(target.frame_type):
        if not path.startswith("Profile."):
            error = await target.send(target.frame_type(more=[target.frame_type(heartbeat=Heartbeat()), frame]))
            assert error.message.startswith(f"{path} is ")
            return
    assert target.frame_type is worker_pb2.ExecuteRequest


@pytest.mark.parametrize("is_within", [True, False], ids=["within", "beyond"])
async def test_random_frames_harm_their_sender_alone(target, is_within):
    with capture_logs() as logs:
        for seed in SEEDS:
            rng = random.Random(f"{seed} {target.frame_type.__name__}")
            frames = [random_frame(target.frame_type, rng, is_within=is_within) for _ in range(FRAMES_PER_STREAM)]
            error = await target.send(target.frame_type(more=frames))
            assert error is None or error.code is grpc.StatusCode.INVALID_ARGUMENT, (seed, error.message)
            if is_within:
                # A field of a message between regions may fit its range and not the state of the stream.
                reasons = ("PROFILE_INVALID", "INVALID_ARGUMENT")
                assert error is None or error.reason in reasons, (seed, error.message)
        await target.check_neighbour()
    assert [each for each in logs if each["event"] in CRASHES] == []


async def test_a_worker_with_absurd_slots_does_not_end_its_scheduler():
    """Such a profile once ended the scheduler inside a tick."""
    async with attach() as target:
        profile = scheduler_pb2.AttachRequest(profile=scheduler_pb2.Profile(**PROFILE | {"slots": 2**32 - 1}))
        error = await replace(target, first_frames=()).send(profile)
        assert error.message == f"Profile.slots is 4294967295; allowed: 0 to {SLOTS}"
        await target.check_neighbour()


async def test_a_session_with_a_hello_out_of_range_ends_alone():
    async with edge_mesh() as mesh:
        target = Target(mesh.address, lambda to: partial(InferenceStub(to).Session, metadata=KEY), SessionRequest, None)
        error = await target.send(instance_id="i" * 257)
        assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "FRAME_OUT_OF_RANGE")
        assert "".join([each.delta.text async for each in mesh.generate(max_output_tokens=3)]) == text_of(3)
