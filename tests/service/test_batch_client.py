"""The edge's client of the batch tier against its service: contents in pieces, and values out of their ranges."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from penstock.batch.config import BatchConfig
from penstock.batch.service import BatchService
from penstock.batch.store.opening import opened_store
from penstock.chassis.errors import InvalidArgument, NotFound, Unavailable, Unimplemented
from penstock.chassis.lifecycle import background
from penstock.chassis.server.server import serving
from penstock.edge.upstreams.batches import MAX_PART_BYTES, BatchClient
from penstock.mesh.v1 import batch_pb2 as mesh
from penstock.mesh.v1.batch_pb2_grpc import BatchServiceServicer, add_BatchServiceServicer_to_server
from penstock.v1 import batches_pb2 as pb

OWNER = mesh.Owner(tenant_id="acme", key_id="k")
HEADER = pb.UploadHeader(filename="a.jsonl", purpose=pb.FILE_PURPOSE_BATCH)


class WrongService(BatchServiceServicer):
    """Answers with an id that is longer than any."""

    async def Call(self, request, context):
        return mesh.CallResponse(file=pb.File(id="x" * 1_000))


@asynccontextmanager
async def client_of(service):
    registration = add_BatchServiceServicer_to_server, service
    async with serving("127.0.0.1:0", [registration], drain_grace=0.0) as server:
        client = BatchClient((server.address,))
        async with background(client.run()):
            await asyncio.sleep(0)  # it learns its addresses
            yield client


@pytest.fixture
async def client(tmp_path):
    config = BatchConfig(store=":memory:", folder=str(tmp_path))
    with opened_store(config, lambda: 1_000.0) as store:
        async with client_of(BatchService(store)) as found:
            yield found


async def pieces(*contents):
    for each in contents:
        yield each


async def test_a_piece_longer_than_a_message_is_divided_and_read_as_it_was_sent(client):
    content = bytes(range(256)) * (MAX_PART_BYTES // 256) + b"rest"
    file = await client.upload(OWNER, HEADER, pieces(content, b"!"), timeout=20.0)
    assert file.size_bytes == len(content) + 1
    assert b"".join([part async for part in client.read(OWNER, file.id)]) == content + b"!"
    assert b"".join([part async for part in client.read(OWNER, file.id, offset=len(content))]) == b"!"


async def test_an_upload_whose_source_fails_stores_nothing(client):
    async def broken():
        yield b"half"
        raise InvalidArgument("the form is not complete")

    with pytest.raises(InvalidArgument, match="not complete"):
        await client.upload(OWNER, HEADER, broken(), timeout=20.0)
    listed = await client.call(OWNER, list_files=pb.ListFilesRequest())
    assert not listed.files.files


async def test_errors_of_the_tier_are_those_of_the_caller(client):
    with pytest.raises(NotFound) as unknown:
        await client.call(OWNER, get_batch=pb.GetBatchRequest(batch_id="batch_1"))
    assert unknown.value.reason == "BATCH_UNKNOWN"


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        ({"get_file": pb.GetFileRequest(file_id="x" * 1_000)}, "get_file.file_id"),
        ({"list_files": pb.ListFilesRequest(purpose=99)}, "list_files.purpose"),
        ({"create_batch": pb.CreateBatchRequest(metadata={"k": "v" * 10_000})}, "create_batch.metadata"),
    ],
)
async def test_a_value_out_of_its_range_is_refused_by_its_name(client, operation, field):
    with pytest.raises(InvalidArgument) as refused:
        await client.call(OWNER, **operation)
    assert (refused.value.reason, field in refused.value.message) == ("FRAME_OUT_OF_RANGE", True)


async def test_a_wrong_answer_of_the_tier_is_no_fault_of_the_caller():
    async with client_of(WrongService()) as client:
        with pytest.raises(Unavailable) as lost:
            await client.call(OWNER, get_file=pb.GetFileRequest(file_id="file-1"))
    assert lost.value.reason == "BATCH_LOST"
    assert "CallResponse.file.id" in lost.value.message


async def test_a_mesh_without_the_tier_says_so():
    with pytest.raises(Unimplemented) as missing:
        await BatchClient(()).call(OWNER, get_file=pb.GetFileRequest(file_id="file-1"))
    assert missing.value.reason == "NO_BATCH_TIER"
