"""The client of files and batches, at edges that are away, and at one that loses what it has answered."""

from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from penstock.chassis.errors import NotFound, Overloaded, Unavailable
from penstock.chassis.server.server import serving
from penstock.client import batches as client_module
from penstock.client.batches import PART_BYTES, BatchesClient
from penstock.v1 import batches_pb2 as pb
from penstock.v1.batches_pb2_grpc import BatchesServicer, add_BatchesServicer_to_server

CONTENT = b"content"
REQUEST = pb.CreateBatchRequest(input_file_id="file-1", endpoint="/v1/embeddings", metadata={"a": "b"})


class FakeEdge(BatchesServicer):
    """Cuts a read after `parts` bytes. Other calls fail with `error`, if it is given."""

    def __init__(self, error=None, parts=9):
        self.error, self.parts = error, parts
        self.requests = []
        self.uploaded = b""

    def answer(self, request, response):
        self.requests.append(request)
        if self.error:
            raise self.error
        return response

    async def UploadFile(self, request_iterator, context):
        parts = [each async for each in request_iterator]
        self.uploaded = b"".join(each.content for each in parts[1:])
        return self.answer(
            parts[0], pb.UploadFileResponse(file=pb.File(id="file-1", filename=parts[0].header.filename))
        )

    async def ReadFile(self, request, context):
        self.requests.append(request)
        end = request.offset + self.parts
        for place in range(request.offset, min(end, len(CONTENT))):
            yield pb.ReadFileResponse(content=CONTENT[place : place + 1])
        if end < len(CONTENT):
            raise Unavailable("the edge is gone")

    async def CreateBatch(self, request, context):
        return self.answer(request, pb.CreateBatchResponse(batch=pb.Batch(id="batch_1")))

    async def GetBatch(self, request, context):
        return self.answer(request, pb.GetBatchResponse(batch=pb.Batch(id=request.batch_id)))

    async def ListBatches(self, request, context):
        number = len(self.requests)
        batches = [pb.Batch(id=f"batch_{number}_{each}") for each in range(request.page_size)]
        return self.answer(request, pb.ListBatchesResponse(batches=batches, has_more=True))


@asynccontextmanager
async def client_of(*edges, **options):
    async with AsyncExitStack() as stack:
        addresses = []
        for edge in edges:
            registration = add_BatchesServicer_to_server, edge
            server = await stack.enter_async_context(serving("127.0.0.1:0", [registration], drain_grace=0.0))
            addresses.append(server.address)
        yield await stack.enter_async_context(BatchesClient(*addresses, api_key="pk", **options))


@pytest.fixture(autouse=True)
def _short_interval(monkeypatch):
    monkeypatch.setattr(client_module, "RETRY_INTERVAL_S", 0.01)


async def test_a_read_that_is_cut_goes_on_at_another_edge_where_it_was():
    edges = [FakeEdge(parts=3), FakeEdge(parts=2)]
    async with client_of(*edges) as client:
        assert b"".join([part async for part in client.read("file-1")]) == CONTENT
    assert [[each.offset for each in edge.requests] for edge in edges] == [[0, 5], [3]]


async def test_a_creation_is_repeated_with_its_key_and_two_creations_have_two_keys():
    away, edge = FakeEdge(Unavailable("its answer is lost")), FakeEdge()
    async with client_of(away, edge) as client:
        assert (await client.create(REQUEST)).id == "batch_1"
        assert (await client.create(REQUEST)).id == "batch_1"
        given = pb.CreateBatchRequest(idempotency_key="own")
        await client.create(given)
    lost, [first, second, third] = away.requests[0], edge.requests
    assert lost == first
    assert (first.input_file_id, first.endpoint, first.metadata["a"]) == ("file-1", "/v1/embeddings", "b")
    assert len({first.idempotency_key, second.idempotency_key, third.idempotency_key, ""}) == 4
    assert third.idempotency_key == "own"


@pytest.mark.parametrize(
    ("error", "patience"),
    [
        (NotFound("no such batch", reason="BATCH_UNKNOWN"), 60.0),
        (Overloaded("the tenant has 100 batches", reason="TOO_MANY_BATCHES", retry_after=60.0), 60.0),
        (Unavailable("the edge is gone"), 0.0),
    ],
    ids=lambda each: getattr(each, "reason", ""),
)
async def test_a_call_is_not_repeated_if_that_does_not_help_or_the_patience_has_ended(error, patience):
    edge = FakeEdge(error)
    async with client_of(edge, patience=patience) as client:
        with pytest.raises(type(error)) as raised:
            await client.find("batch_1")
    assert (raised.value.reason, len(edge.requests)) == (error.reason, 1)


async def test_an_upload_is_made_once_and_tells_its_progress(tmp_path):
    path, sent, edge = tmp_path / "lines.jsonl", [], FakeEdge()
    path.write_bytes(b"x" * (PART_BYTES + 5))
    async with client_of(edge) as client:
        assert (await client.upload(path, sent.append)).filename == "lines.jsonl"
        edge.error = Unavailable("its answer is lost")
        with pytest.raises(Unavailable):
            await client.upload(path)
    assert (edge.uploaded, sent, len(edge.requests)) == (path.read_bytes(), [PART_BYTES, PART_BYTES + 5], 2)


async def test_batches_are_listed_over_pages_up_to_the_limit():
    edge = FakeEdge()
    async with client_of(edge) as client:
        assert len(await client.list(150)) == 150
    assert [(each.page_size, each.after) for each in edge.requests] == [(100, ""), (50, "batch_0_99")]
