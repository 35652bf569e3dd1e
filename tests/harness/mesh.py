"""A whole mesh as real processes, for system tests: the mesh of `penstock up`, on free ports."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from paths import REPO
from penstock.chassis.channels import channel
from penstock.cli.batches.texts import has_ended
from penstock.client.batches import BatchesClient
from penstock.local_mesh.launch import local_mesh
from penstock.local_mesh.mesh import LocalMesh
from penstock.local_mesh.operator_channels import operator_channel
from penstock.local_mesh.plan import FIGURES_ZERO_AT_REST, MeshOptions
from penstock.v1 import batches_pb2 as pb
from penstock.v1.admin_pb2 import GetSnapshotRequest, Snapshot, WatchSnapshotRequest
from penstock.v1.admin_pb2_grpc import AdminStub
from penstock.v1.inference_pb2 import GenerateRequest, Sampling
from penstock.v1.inference_pb2_grpc import InferenceStub

TIMEOUT_S = 30.0  # bound of every wait


@asynccontextmanager
async def running_mesh(**options) -> AsyncIterator[LocalMesh]:
    async with local_mesh(MeshOptions(base_port=0, **{"envoy": False, **options})) as mesh:
        yield mesh


@dataclass
class StubClient:
    """A client of one address with the mesh's key, over the bare stub."""

    stub: InferenceStub
    metadata: tuple[tuple[str, str], ...]

    def generate(self, *, timeout=TIMEOUT_S * 4, **request):
        return self.stub.Generate(GenerateRequest(**request), metadata=self.metadata, timeout=timeout)


@asynccontextmanager
async def stub_client(mesh: LocalMesh, address: str = "") -> AsyncIterator[StubClient]:
    async with channel(address or mesh.plan.grpc) as to_edge:
        yield StubClient(InferenceStub(to_edge), (("authorization", f"Bearer {mesh.api_key}"),))


async def completed_batch(mesh: LocalMesh) -> pb.Batch:
    """Run the lines of the example, for the model by default, to their end."""
    request = pb.CreateBatchRequest(endpoint="/v1/chat/completions")
    async with BatchesClient(mesh.plan.grpc, api_key=mesh.api_key) as client, asyncio.timeout(TIMEOUT_S):
        request.input_file_id = (await client.upload(REPO / "examples" / "batch.jsonl")).id
        batch = await client.create(request)
        while not has_ended(batch):
            await asyncio.sleep(0.1)
            batch = await client.find(batch.id)
    assert batch.status == pb.BATCH_STATUS_COMPLETED, batch
    return batch


def greedy(prompt: str, tokens: int) -> dict[str, object]:
    """Fields of a request whose answer is the same each time and has exactly `tokens` tokens."""
    sampling = Sampling(temperature=0.0)
    return {"text": prompt, "max_output_tokens": tokens, "sampling": sampling, "ignore_eos": True}


@dataclass
class StreamedAnswer:
    """The content of a whole stream."""

    text: str
    token_ids: list[int]
    indexes: list[int]
    usage_tokens: int


async def read_answer(call, has_begun: asyncio.Event | None = None) -> StreamedAnswer:
    """Read a Generate call to its end; raises AioRpcError when it fails. Sets `has_begun` at the first token."""
    answer = StreamedAnswer("", [], [], 0)
    async for frame in call:
        kind = frame.WhichOneof("frame")
        if kind == "delta":
            if has_begun:
                has_begun.set()
            answer.text += frame.delta.text
            first = frame.delta.first_index
            answer.indexes += range(first, first + len(frame.delta.token_ids))
            answer.token_ids += frame.delta.token_ids
        elif kind == "finished":
            answer.usage_tokens = frame.finished.usage.output_tokens
    return answer


async def snapshot(address: str) -> Snapshot:
    """The snapshot of the process whose Admin service is at `address`."""
    async with operator_channel(address) as to_process:
        return (await AdminStub(to_process).GetSnapshot(GetSnapshotRequest())).snapshot


async def sum_figure(mesh: LocalMesh, tier: str, name: str) -> float:
    """Sum of one figure over the live processes of a tier."""
    alive = [
        child.spec.admin_address for child in mesh.processes.children if child.spec.tier == tier and child.is_alive
    ]
    return sum([(await snapshot(address)).figures[name] for address in alive])


async def wait_for_figures(address: str, condition: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """Watch a process's figures until they satisfy `condition`; the last ones are in the failure otherwise."""
    request = WatchSnapshotRequest()
    request.interval.FromMilliseconds(100)
    figures: dict[str, float] = {}
    async with operator_channel(address) as to_process:
        watch = AdminStub(to_process).WatchSnapshot(request)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                async for answer in watch:
                    figures = dict(answer.snapshot.figures)
                    if condition(figures):
                        return figures
        except TimeoutError:
            message = f"{address} never got there: {figures}"
            raise AssertionError(message) from None
        except grpc.aio.AioRpcError as error:
            message = f"{address} closed the stream: {error.details()}"
            raise AssertionError(message) from None
    message = f"{address} stopped answering: {figures}"
    raise AssertionError(message)


async def kill_busy_worker(mesh: LocalMesh) -> None:
    """Kill the first worker that has a run. All runs may be on one worker."""
    workers = [child for child in mesh.processes.children if child.spec.tier == "worker" and child.is_alive]
    looks = {
        asyncio.create_task(wait_for_figures(each.spec.admin_address, lambda found: found["running"] >= 1)): each
        for each in workers
    }
    [look, *_], others = await asyncio.wait(looks, return_when=asyncio.FIRST_COMPLETED)
    looks[look].process.kill()
    for each in others:
        each.cancel()


async def wait_at_rest(mesh: LocalMesh) -> None:
    """Wait until no live process holds state of a request; a missing figure fails as well."""
    for child in mesh.processes.children:
        names = FIGURES_ZERO_AT_REST.get(child.spec.tier, ())
        if child.is_alive and names:
            await wait_for_figures(
                child.spec.admin_address, lambda figures, names=names: all(figures[name] == 0 for name in names)
            )
