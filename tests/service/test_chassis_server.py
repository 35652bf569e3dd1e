"""Every server: its address, health, admin and drain."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from structlog.testing import capture_logs

from inference_server import inference_server
from operators import operators_at_socket
from penstock.chassis.config import ConfigError
from penstock.chassis.errors import error_from_rpc
from penstock.chassis.lifecycle import current_stop, request_stop, stop_requested
from penstock.chassis.server.admin import AdminService
from penstock.chassis.server.call_metrics import CallCounter
from penstock.chassis.server.health import Health
from penstock.chassis.server.server import Server, advertised_address, serving
from penstock.v1.admin_pb2 import (
    DrainRequest,
    GetSnapshotRequest,
    ListKeysRequest,
    WatchSnapshotRequest,
)
from penstock.v1.admin_pb2_grpc import AdminStub
from penstock.v1.inference_pb2 import CountTokensRequest, CountTokensResponse, GenerateRequest, GenerateResponse
from penstock.v1.inference_pb2_grpc import InferenceStub

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN


@asynccontextmanager
async def administered(**options):
    """A server with nothing but operations, and a channel to its operators' listener."""
    admin = AdminService("demo", "demo-1", lambda: {"waiting": 3.0}, lambda: {"rows": [{"a": 1}]})
    with operators_at_socket() as operators:
        async with (
            serving("127.0.0.1:0", [], admin=admin, operators=operators, **options) as server,
            grpc.aio.insecure_channel(server.admin_address) as channel,
        ):
            yield channel, server


@asynccontextmanager
async def health_of(server):
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield HealthStub(channel)


async def count(request, context):
    return CountTokensResponse(prompt_tokens=7)


async def test_a_server_on_any_port_logs_its_port():
    with capture_logs() as logs:
        async with inference_server(CountTokens=count) as (stub, server):
            assert (await stub.CountTokens(CountTokensRequest())).prompt_tokens == 7
            assert server.port > 0
    [listening] = [each for each in logs if each["event"] == "listening"]
    assert (listening["address"], listening["port"]) == (server.address, server.port)
    assert logs[-1]["event"] == "drained"


async def test_a_port_that_is_taken_is_an_error_and_not_shared():
    async with serving("127.0.0.1:0", []) as first:
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{first.port}"):
            async with serving(f"127.0.0.1:{first.port}", []):
                pass


@pytest.mark.parametrize(
    ("listen", "advertise", "address"),
    [
        ("127.0.0.1:0", "", "127.0.0.1:7003"),
        ("0.0.0.0:7003", "", "127.0.0.1:7003"),
        ("[::]:7003", "", "[::1]:7003"),
        ("0.0.0.0:7003", "10.1.2.3", "10.1.2.3:7003"),
        ("0.0.0.0:7003", "queue-0.queue:8003", "queue-0.queue:8003"),
        ("[::]:7003", "[fd00::5]", "[fd00::5]:7003"),
        ("unix:/run/queue", "", "unix:/run/queue"),
    ],
)
def test_the_advertised_address_is_reachable(listen, advertise, address):
    assert advertised_address(listen, 7003, advertise) == address


async def test_health_answers_for_the_server_and_each_of_its_services():
    async with inference_server(CountTokens=count) as (_, server), grpc.aio.insecure_channel(server.address) as channel:
        health = HealthStub(channel)
        for service in ("", "readiness", "liveness", "penstock.v1.Inference"):
            assert (await health.Check(HealthCheckRequest(service=service))).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await health.Check(HealthCheckRequest(service="penstock.v1.Nothing"))
        assert failure.value.code() is grpc.StatusCode.NOT_FOUND
        unknown = await health.Watch(HealthCheckRequest(service="penstock.v1.Nothing")).read()
        assert unknown.status == SERVICE_UNKNOWN


async def test_a_server_may_listen_before_it_is_ready():
    async with administered(is_ready=False) as (_, server), health_of(server) as health:
        watch = health.Watch(HealthCheckRequest())
        assert (await watch.read()).status == NOT_SERVING
        server.set_ready(is_ready=True)
        assert (await watch.read()).status == SERVING
        server.set_ready(is_ready=False)
        assert (await watch.read()).status == NOT_SERVING


async def test_a_snapshot_has_the_figures_of_the_process_and_of_the_tier():
    async with administered() as (channel, _):
        snapshot = (await AdminStub(channel).GetSnapshot(GetSnapshotRequest())).snapshot
    assert (snapshot.tier, snapshot.instance_id, snapshot.draining) == ("demo", "demo-1", False)
    process = {"cpu_seconds", "rss_bytes", "open_fds", "asyncio_tasks", "open_streams", "uptime_seconds"}
    assert process <= set(snapshot.figures)
    assert snapshot.figures["rss_bytes"] > 10e6
    assert snapshot.figures["asyncio_tasks"] >= 1
    assert snapshot.figures["waiting"] == 3
    assert snapshot.tables["rows"][0]["a"] == 1


async def test_a_watcher_gets_snapshot_after_snapshot():
    async with administered() as (channel, _):
        request = WatchSnapshotRequest()
        request.interval.FromMilliseconds(100)
        watch = AdminStub(channel).WatchSnapshot(request)
        cpu = [(await watch.read()).snapshot.figures["uptime_seconds"] for _ in range(3)]
    assert cpu == sorted(cpu)
    assert len(set(cpu)) == 3


@pytest.mark.parametrize("milliseconds", [0, 99, 60_001])
async def test_a_watch_interval_out_of_bounds_is_rejected(milliseconds):
    async with administered() as (channel, _):
        request = WatchSnapshotRequest()
        request.interval.FromMilliseconds(milliseconds)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await AdminStub(channel).WatchSnapshot(request).read()
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_keys_are_rejected_with_the_tier_that_serves_them():
    async with administered() as (channel, _):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await AdminStub(channel).ListKeys(ListKeysRequest())
    assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "auth" in failure.value.details()


async def test_drain_by_admin_stops_the_process_within_the_grace_period():
    async with administered() as (channel, _):
        request = DrainRequest()
        request.grace.FromMilliseconds(1500)
        answer = await AdminStub(channel).Drain(request)
        stop = await stop_requested()
        assert (answer.running, stop.reason, stop.grace) == (0, "Admin.Drain", 1.5)
        assert (await AdminStub(channel).GetSnapshot(GetSnapshotRequest())).snapshot.draining


@pytest.mark.parametrize("seconds", [-1, 86_401, 2**63 - 1])
async def test_a_grace_period_out_of_bounds_is_rejected_and_drains_nothing(seconds):
    async with administered() as (channel, _):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await AdminStub(channel).Drain(DrainRequest(grace=Duration(seconds=seconds)))
        assert error_from_rpc(failure.value).field_violations[0].field == "grace"
        assert not current_stop().is_requested


class Gate:
    """A Generate handler that streams one frame and then waits for the test."""

    def __init__(self):
        self.opened = asyncio.Event()
        self.left = asyncio.Event()

    async def generate(self, request, context):
        try:
            yield GenerateResponse()
            await self.opened.wait()
            yield GenerateResponse()
        finally:
            self.left.set()


@asynccontextmanager
async def draining(gate, **stop):
    """A server with one running call that is being drained; yields the call, a channel and the draining server."""
    inside, leave = asyncio.Event(), asyncio.Event()
    found = {}

    async def serve():
        async with inference_server(Generate=gate.generate) as (stub, server):
            found.update(stub=stub, server=server)
            inside.set()
            await leave.wait()

    serving_task = asyncio.create_task(serve())
    await inside.wait()
    async with grpc.aio.insecure_channel(found["server"].address) as channel:
        call = InferenceStub(channel).Generate(GenerateRequest())
        await call.read()
        watch = HealthStub(channel).Watch(HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        request_stop("test", **stop)
        assert (await watch.read()).status == NOT_SERVING
        leave.set()
        yield call, channel, serving_task


async def test_a_drain_lets_running_calls_end_and_accepts_no_new_ones():
    gate = Gate()
    with capture_logs() as logs:
        async with draining(gate) as (call, channel, serving_task):
            async with asyncio.timeout(30):
                with pytest.raises(grpc.aio.AioRpcError):
                    while True:  # until the server stops, because its block has ended
                        await HealthStub(channel).Check(HealthCheckRequest())
            gate.opened.set()
            assert isinstance(await call.read(), GenerateResponse)
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK
            await serving_task
    [drained] = [each for each in logs if each["event"] == "drained"]
    assert (drained["working"], drained["cancelled"]) == (1, 0)


async def test_a_call_that_outlasts_the_grace_period_is_cancelled_and_cleans_up_before_the_server_ends():
    gate = Gate()
    with capture_logs() as logs:
        async with draining(gate, grace=0.2) as (call, _, serving_task):
            await serving_task
            assert gate.left.is_set()
            with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
                while await call.read() is not grpc.aio.EOF:
                    pass
                raise asyncio.CancelledError
    [drained] = [each for each in logs if each["event"] == "drained"]
    assert (drained["working"], drained["cancelled"]) == (1, 1)


async def test_a_stop_makes_the_server_unready_at_once_and_permanently():
    async with administered() as (_, server), health_of(server) as health:
        watch = health.Watch(HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        request_stop("test")
        assert (await watch.read()).status == NOT_SERVING
        server.set_ready(is_ready=True)
        assert (await health.Check(HealthCheckRequest())).status == NOT_SERVING
        assert (await health.Check(HealthCheckRequest(service="liveness"))).status == SERVING


class Core:
    """gRPC's server with one call that never ends. Cancelling its calls after its end would read freed memory."""

    def __init__(self):
        self.is_over, self.is_gone, self.was_cancelled_when_gone = asyncio.Event(), asyncio.Event(), False

    async def stop(self, grace):
        if grace is not None:
            try:
                await asyncio.wait_for(self.is_over.wait(), grace)
            except TimeoutError:
                await self.is_gone.wait()  # the worst time for another stop
                self.was_cancelled_when_gone = True
        self.is_over.set()
        self.is_gone.set()


@pytest.mark.parametrize("grace", [0.0, 0.01])
async def test_the_end_of_the_grace_period_does_not_race_with_the_end_of_the_server(grace):
    core, calls = Core(), CallCounter()
    calls.in_flight = 1
    calls.idle.clear()
    async with asyncio.timeout(30):
        await Server(core, Health([]), calls, "").drain(grace, asyncio.Event())
    assert core.is_gone.is_set()
    assert not core.was_cancelled_when_gone


async def test_a_second_drain_request_shortens_the_grace_period():
    gate = Gate()
    async with draining(gate, grace=3600) as (_, _, serving_task):
        request_stop("test")
        async with asyncio.timeout(30):
            await serving_task
    assert gate.left.is_set()


async def test_watchers_do_not_delay_a_drain():
    async with asyncio.timeout(30):
        async with administered(drain_grace=3600) as (channel, server), health_of(server) as health:
            watches = [
                health.Watch(HealthCheckRequest()),
                AdminStub(channel).WatchSnapshot(WatchSnapshotRequest()),
            ]
            for watch in watches:
                await watch.read()
