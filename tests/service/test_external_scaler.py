"""KEDA's calls of a scheduler that has streams to queue shards, over gRPC."""

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import grpc
import pytest

from dispatch_mesh import book_of, demand_of
from penstock.chassis.errors import error_from_rpc
from penstock.chassis.lifecycle import background
from penstock.chassis.server.server import serving
from penstock.chassis.streams.protocol import HIGHEST_VERSION
from penstock.keda import externalscaler_pb2 as pb
from penstock.keda.externalscaler_pb2_grpc import ExternalScalerStub, add_ExternalScalerServicer_to_server
from penstock.mesh.v1.queue_pb2 import HeldModel, HeldRequests, SubmitRequest
from penstock.mesh.v1.queue_pb2_grpc import QueueServiceStub, add_QueueServiceServicer_to_server
from penstock.queue.service import QueueService
from penstock.scheduler.autoscaling.external_scaler import METRIC_NAME, ExternalScaler
from penstock.scheduler.autoscaling.fleet_demand import FleetDemand
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.leases import LeaseBook
from penstock.scheduler.service import SchedulerService
from penstock.v1.stream_pb2 import Hello

TIMEOUT_S = 10.0
SCALED_OBJECT = pb.ScaledObjectRef(name="worker", namespace="penstock", scalerMetadata={"model": "m"})


def hello(tier, name):
    return Hello(protocol=HIGHEST_VERSION, instance_id=name, tier=tier)


@asynccontextmanager
async def shard_at(name, listen="127.0.0.1:0"):
    book = book_of()
    service = QueueService(book, demand_of(book), hello("queue", name), now=time.monotonic)
    registration = add_QueueServiceServicer_to_server, service
    loops = background(service.tick(), service.report_demand())
    async with serving(listen, [registration], drain_grace=0.2) as server, loops:
        yield server.address
        service.drain()


@asynccontextmanager
async def scaler_of(*queues):
    """A client of the scaler of a scheduler."""
    demand, dispatcher = FleetDemand(), Dispatcher(leases=LeaseBook(ttl=5.0, prefix="s"), look_ahead=0)
    service = SchedulerService(dispatcher, queues, hello("scheduler", "scheduler-1"), demand)
    scaler = ExternalScaler(demand, now=time.monotonic)
    async with (
        serving("127.0.0.1:0", [(add_ExternalScalerServicer_to_server, scaler)], drain_grace=0.2) as server,
        background(service.run(), service.tick()),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        yield ExternalScalerStub(channel)
        scaler.drain()


@asynccontextmanager
async def holding(queue, requests=3):
    """An edge that holds requests for the model `m`."""
    async with grpc.aio.insecure_channel(queue) as channel:
        call = QueueServiceStub(channel).Submit()
        await call.write(SubmitRequest(hello=hello("edge", "edge-1")))
        held = HeldRequests(models=[HeldModel(model="m", requests=requests)])
        await call.write(SubmitRequest(held_requests=held))
        yield
        call.cancel()


async def answer(call):
    """Return the answer once the demand is known."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                assert error_from_rpc(error).reason == "DEMAND_UNKNOWN"  # noqa: PT017  # retried
                await asyncio.sleep(0.02)


async def test_a_model_without_work_needs_no_worker():
    async with shard_at("queue-1") as queue, scaler_of(queue) as scaler:
        assert not (await answer(partial(scaler.IsActive, SCALED_OBJECT))).result
        metrics = await scaler.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=SCALED_OBJECT, metricName=METRIC_NAME))
        assert [(each.metricName, each.metricValue) for each in metrics.metricValues] == [(METRIC_NAME, 0)]


async def test_the_target_is_one_worker_per_replica():
    async with scaler_of() as scaler:
        found = await scaler.GetMetricSpec(SCALED_OBJECT)
    assert [(each.metricName, each.targetSize, each.targetSizeFloat) for each in found.metricSpecs] == [
        (METRIC_NAME, 1, 1.0)
    ]


async def test_the_first_held_request_is_streamed_and_two_schedulers_agree():
    async with shard_at("queue-1") as queue, scaler_of(queue) as scaler, scaler_of(queue) as other:
        await answer(partial(scaler.IsActive, SCALED_OBJECT))
        await answer(partial(other.IsActive, SCALED_OBJECT))
        stream = scaler.StreamIsActive(SCALED_OBJECT)
        assert not (await stream.read()).result
        async with holding(queue):
            async with asyncio.timeout(TIMEOUT_S):
                assert (await stream.read()).result
            request = pb.GetMetricsRequest(scaledObjectRef=SCALED_OBJECT, metricName=METRIC_NAME)
            values = [(await each.GetMetrics(request)).metricValues[0].metricValueFloat for each in (scaler, other)]
            assert values == [1.0, 1.0]
        async with asyncio.timeout(TIMEOUT_S):
            assert not (await stream.read()).result, "the edge that held it has left"


@pytest.mark.parametrize("call", ["IsActive", "StreamIsActive", "GetMetrics"])
async def test_a_shard_that_cannot_be_reached_is_an_error(call):
    async with shard_at("queue-1") as queue, scaler_of(queue, "127.0.0.1:1") as scaler:
        request = pb.GetMetricsRequest(scaledObjectRef=SCALED_OBJECT) if call == "GetMetrics" else SCALED_OBJECT
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            found = getattr(scaler, call)(request)
            await (found.read() if call == "StreamIsActive" else found)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert error_from_rpc(raised.value).reason == "DEMAND_UNKNOWN"


async def test_a_stream_ends_with_an_error_when_a_shard_is_lost():
    async with AsyncExitStack() as present, shard_at("queue-2") as other:
        lost = await present.enter_async_context(shard_at("queue-1"))
        async with scaler_of(lost, other) as scaler:
            await answer(partial(scaler.IsActive, SCALED_OBJECT))
            stream = scaler.StreamIsActive(SCALED_OBJECT)
            assert not (await stream.read()).result
            await present.aclose()
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                async with asyncio.timeout(TIMEOUT_S):
                    await stream.read()
    assert error_from_rpc(raised.value).reason == "DEMAND_UNKNOWN"


async def test_two_addresses_of_one_shard_count_once():
    async with shard_at("queue-1") as queue, holding(queue):
        port = queue.rpartition(":")[2]
        async with scaler_of(queue, f"localhost:{port}") as scaler:
            request = pb.GetMetricsRequest(scaledObjectRef=SCALED_OBJECT, metricName=METRIC_NAME)
            assert (await answer(partial(scaler.GetMetrics, request))).metricValues[0].metricValueFloat == 1.0


async def test_a_trigger_without_a_model_is_refused():
    async with scaler_of() as scaler:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await scaler.GetMetricSpec(pb.ScaledObjectRef(name="worker"))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_from_rpc(raised.value).reason == "SCALED_MODEL_MISSING"
