"""An edge listens once it can serve, or after its startup timeout."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest

from edge_mesh import KEY, TIMEOUT_S, FakeAuth, FakeQueue, FakeWorker, served
from free_ports import free_port
from penstock.chassis.channels import channel
from penstock.chassis.errors import error_from_rpc
from penstock.edge.__main__ import edge
from penstock.edge.config import EdgeConfig
from penstock.mesh.v1.admission_pb2_grpc import add_AdmissionServiceServicer_to_server
from penstock.mesh.v1.queue_pb2_grpc import add_QueueServiceServicer_to_server
from penstock.mesh.v1.worker_pb2_grpc import add_WorkerServiceServicer_to_server
from penstock.v1.inference_pb2 import GenerateRequest, ListModelsRequest
from penstock.v1.inference_pb2_grpc import InferenceStub


class SlowCard(FakeWorker):
    """Reports requests for its card and answers them on the test's signal."""

    def __init__(self, name):
        super().__init__(name)
        self.requested, self.may_respond = asyncio.Event(), asyncio.Event()

    async def GetModelCard(self, request, context):
        self.requested.set()
        await self.may_respond.wait()
        return await super().GetModelCard(request, context)


async def listens(address):
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


@asynccontextmanager
async def tiers_behind(worker):
    async with AsyncExitStack() as stack:
        worker.address = await stack.enter_async_context(served(add_WorkerServiceServicer_to_server, worker))
        auth = await stack.enter_async_context(served(add_AdmissionServiceServicer_to_server, FakeAuth()))
        queue = await stack.enter_async_context(served(add_QueueServiceServicer_to_server, FakeQueue([worker])))
        yield {"auths": (auth,), "queues": (queue,), "instance_id": "e1", "drain_grace": 0.0}
        worker.may_respond.set()


async def test_an_edge_does_not_listen_before_it_can_serve():
    grpc_at, http_at = (f"127.0.0.1:{free_port()}" for _ in range(2))
    worker = SlowCard("w1")
    async with tiers_behind(worker) as behind, AsyncExitStack() as stack:
        config = EdgeConfig(listen=grpc_at, http_listen=http_at, startup_timeout=TIMEOUT_S, **behind)
        arriving = asyncio.create_task(stack.enter_async_context(edge(config)))
        await worker.requested.wait()
        assert [await listens(each) for each in (grpc_at, http_at)] == [False, False]
        worker.may_respond.set()
        await arriving
        assert [await listens(each) for each in (grpc_at, http_at)] == [True, True]
        async with channel(grpc_at) as to_edge:
            listed = await InferenceStub(to_edge).ListModels(ListModelsRequest(), metadata=KEY)
        assert [each.name for each in listed.models] == ["tiny"]


@pytest.mark.parametrize("model", ["", "tiny"])
async def test_an_edge_without_a_model_listens_after_its_startup_timeout(model):
    """A model without workers cannot be distinguished from an unknown one."""
    worker = SlowCard("w1")
    async with (
        tiers_behind(worker) as behind,
        edge(EdgeConfig(listen="127.0.0.1:0", startup_timeout=0.0, model_wait_timeout=0.0, **behind)) as server,
        channel(server.address) as to_edge,
    ):
        request, reason = GenerateRequest(text="hi", model=model), "QUEUE_LOST"
        while reason == "QUEUE_LOST":  # until it has received the first catalog
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                async for _ in InferenceStub(to_edge).Generate(request, metadata=KEY, timeout=TIMEOUT_S):
                    pass
            reason = error_from_rpc(failure.value).reason
        assert reason == "NO_WORKER"
