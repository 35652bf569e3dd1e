"""A mesh of real processes that a client of the scaler starts from 0 and stops to 0, as KEDA does."""

import asyncio
import signal
from contextlib import AsyncExitStack, asynccontextmanager

import grpc

from command import run_models
from mesh import TIMEOUT_S, greedy, read_answer, running_mesh, stub_client
from penstock.chassis.channels import channel
from penstock.chassis.errors import error_from_rpc
from penstock.keda import externalscaler_pb2 as pb
from penstock.keda.externalscaler_pb2_grpc import ExternalScalerStub
from penstock.scheduler.autoscaling.external_scaler import METRIC_NAME, MODEL_KEY
from penstock.v1.inference_pb2 import ListModelsRequest

WORKER = "worker-1"
TOKENS = 64
LONG_TOKENS = 400
REQUESTS = 8


class Keda:
    """The calls of KEDA to every scheduler of a mesh."""

    def __init__(self, stubs, model):
        self.stubs = stubs
        self.scaled_object = pb.ScaledObjectRef(name="worker", namespace="test", scalerMetadata={MODEL_KEY: model})

    async def workers(self):
        """Return the answer of each scheduler; the reason of the error if it has none."""
        return [await self._workers(each) for each in self.stubs]

    async def _workers(self, stub):
        request = pb.GetMetricsRequest(scaledObjectRef=self.scaled_object, metricName=METRIC_NAME)
        try:
            response = await stub.GetMetrics(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return error_from_rpc(error).reason
        return response.metricValues[0].metricValue

    async def until(self, *expected):
        """Wait until the answers of all schedulers are one of `expected`."""
        async with asyncio.timeout(TIMEOUT_S):
            while not set(await self.workers()) <= set(expected):  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.05)

    async def until_active(self, *, is_active):
        """Wait until a new stream of each scheduler reports this."""
        await self.until(0, 1)  # a scheduler that has just started does not know
        for stub in self.stubs:
            async with asyncio.timeout(TIMEOUT_S):
                async for response in stub.StreamIsActive(self.scaled_object):
                    if response.result == is_active:
                        break


@asynccontextmanager
async def keda_of(mesh, model):
    async with AsyncExitStack() as stack:
        addresses = [each.address for each in mesh.plan.processes_of("scheduler")]
        channels = [await stack.enter_async_context(channel(address)) for address in addresses]
        yield Keda([ExternalScalerStub(each) for each in channels], model)


def process_of(mesh, name):
    return next(each for each in mesh.processes.children if each.spec.name == name).process


async def kill(mesh, *names):
    for name in names:
        process_of(mesh, name).kill()
    for name in names:
        await process_of(mesh, name).wait()


async def drain_worker(mesh):
    """Stop the worker as Kubernetes does, and wait until it has ended."""
    worker = process_of(mesh, WORKER)
    worker.send_signal(signal.SIGTERM)
    async with asyncio.timeout(TIMEOUT_S):
        assert await worker.wait() == 0


async def test_workers_start_from_0_and_stop_to_0_without_a_lost_request(tiny_model):
    options = {"queues": 2, "schedulers": 2, "engine": "sim", "model": tiny_model, "insecure": True}
    async with running_mesh(**options) as mesh, stub_client(mesh) as client:
        [model] = (await client.stub.ListModels(ListModelsRequest(), metadata=client.metadata)).models
        await run_models(mesh, "declare", model.name, "--load-time", "5")
        async with keda_of(mesh, model.name) as keda:
            await keda.until(0)
            await drain_worker(mesh)
            await keda.until(0)
            # Schedulers die at 0, where no worker names the model, and forget nothing.
            names = [each.name for each in mesh.plan.processes_of("scheduler")]
            await kill(mesh, *names)
            for name in names:
                await mesh.restart(name)
            calls = [client.generate(model=model.name, **greedy(f"prompt {n}", TOKENS)) for n in range(REQUESTS)]
            reading = [asyncio.ensure_future(read_answer(each)) for each in calls]
            await keda.until_active(is_active=True)
            await keda.until(1)
            await mesh.restart(WORKER)
            answers = await asyncio.gather(*reading)
            assert [len(each.token_ids) for each in answers] == [TOKENS] * REQUESTS
            # The only worker drains under an answer, which ends whole.
            call, has_begun = client.generate(model=model.name, **greedy("long", LONG_TOKENS)), asyncio.Event()
            reading = asyncio.ensure_future(read_answer(call, has_begun))
            await asyncio.wait_for(has_begun.wait(), TIMEOUT_S)
            await drain_worker(mesh)
            assert (await reading).indexes == list(range(LONG_TOKENS))
            await keda.until_active(is_active=False)


async def test_a_lost_shard_is_an_error_until_it_reports_again(tiny_model):
    options = {"queues": 2, "schedulers": 2, "engine": "sim", "model": tiny_model, "insecure": True}
    async with running_mesh(**options) as mesh, keda_of(mesh, "any") as keda:
        await keda.until(0)
        shard = mesh.plan.processes_of("queue")[1].name
        await kill(mesh, shard)
        await keda.until("DEMAND_UNKNOWN")
        await mesh.restart(shard)
        await keda.until(0)
