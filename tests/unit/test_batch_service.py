"""BatchService over a store in a folder: uploads, pages, and the checks of its fields."""

import pytest

from penstock.batch.config import BatchConfig
from penstock.batch.service import BatchService
from penstock.batch.store.errors import FilesFull, FileUnknown
from penstock.batch.store.opening import opened_store
from penstock.chassis.errors import InvalidArgument
from penstock.mesh.v1 import batch_pb2 as mesh
from penstock.v1 import batches_pb2 as pb

OWNER = mesh.Owner(tenant_id="acme", key_id="k", delegation=b"d")


class Caller:
    """An edge that calls for one tenant."""

    def __init__(self, service, blobs):
        self.service, self.blobs = service, blobs

    async def upload(self, *contents, is_complete=True, **header):
        async def requests():
            given = pb.UploadHeader(**{"filename": "a.jsonl", "purpose": pb.FILE_PURPOSE_BATCH, **header})
            yield mesh.UploadFileRequest(owner=OWNER, request=pb.UploadFileRequest(header=given))
            for each in contents:
                yield mesh.UploadFileRequest(request=pb.UploadFileRequest(content=each))
            if is_complete:
                yield mesh.UploadFileRequest(is_complete=True)

        [response] = [each async for each in self.service.UploadFile(requests(), None)]
        return response.file

    async def read(self, file_id, offset=0, tenant_id="acme"):
        async def requests():
            owner = mesh.Owner(tenant_id=tenant_id)
            yield mesh.ReadFileRequest(owner=owner, request=pb.ReadFileRequest(file_id=file_id, offset=offset))

        return b"".join([each.content async for each in self.service.ReadFile(requests(), None)])

    async def call(self, owner=OWNER, **operation):
        return await self.service.Call(mesh.CallRequest(owner=owner, **operation), None)


@pytest.fixture
def caller(tmp_path):
    config = BatchConfig(
        store=str(tmp_path / "db"), folder=str(tmp_path / "contents"), fsync=False, file_bytes_per_tenant=100
    )
    with opened_store(config, lambda: 1_000.0) as store:
        yield Caller(BatchService(store), store.blobs)


def create(**changes):
    return pb.CreateBatchRequest(**{"endpoint": "/v1/embeddings", "input_file_id": "file-1", **changes})


async def test_an_upload_is_read_as_it_was_sent(caller):
    file = await caller.upload(b"one\n", b"two\n")
    assert (file.size_bytes, file.filename, file.create_time.seconds) == (8, "a.jsonl", 1_000)
    assert file.expire_time.seconds - file.create_time.seconds == 30 * 86_400
    assert await caller.read(file.id) == b"one\ntwo\n"
    assert await caller.read(file.id, offset=4) == b"two\n"
    with pytest.raises(FileUnknown):
        await caller.read(file.id, tenant_id="globex")


async def test_an_upload_that_breaks_or_has_no_room_stores_nothing(caller):
    with pytest.raises(InvalidArgument):
        await caller.upload(b"one\n", is_complete=False)
    with pytest.raises(FilesFull):
        await caller.upload(b"x" * 101)
    assert caller.blobs.names(float("inf")) == []
    assert not (await caller.call(list_files=pb.ListFilesRequest())).files.files


async def test_a_repeated_call_with_an_idempotency_key_returns_the_first_batch(caller):
    file = await caller.upload(b"{}\n")
    calls = [create(input_file_id=file.id, idempotency_key=key) for key in ("k" * 255, "k" * 255, "other", "", "")]
    ids = [(await caller.call(create_batch=each)).batch.id for each in calls]
    assert (ids[0] == ids[1], len(set(ids))) == (True, 4)


async def test_a_batch_is_created_found_listed_and_cancelled(caller):
    file = await caller.upload(b"{}\n")
    request = create(input_file_id=file.id, metadata={"a": "b"})
    batch = (await caller.call(create_batch=request)).batch
    assert (batch.status, dict(batch.metadata)) == (pb.BATCH_STATUS_VALIDATING, {"a": "b"})
    assert batch.expire_time.seconds - batch.create_time.seconds == 86_400
    found = (await caller.call(get_batch=pb.GetBatchRequest(batch_id=batch.id))).batch
    listed = (await caller.call(list_batches=pb.ListBatchesRequest())).batches
    assert (found, list(listed.batches), listed.has_more) == (batch, [batch], False)
    cancelled = (await caller.call(cancel_batch=pb.CancelBatchRequest(batch_id=batch.id))).batch
    assert cancelled.status == pb.BATCH_STATUS_CANCELLING


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"completion_window": {"seconds": 59}}, "completion_window"),
        ({"output_ttl": {"seconds": 3_599}}, "output_ttl"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"idempotency_key": "k" * 256}, "idempotency_key"),
    ],
)
async def test_a_wrong_field_of_a_batch_is_named(caller, changes, field):
    with pytest.raises(InvalidArgument) as refused:
        await caller.call(create_batch=create(**changes))
    assert [each.field for each in refused.value.field_violations] == [field]


async def test_a_call_needs_a_tenant_and_a_batch_its_delegation(caller):
    for owner, field in ((mesh.Owner(), "owner"), (mesh.Owner(tenant_id="acme"), "delegation")):
        with pytest.raises(InvalidArgument) as refused:
            await caller.call(owner, create_batch=create())
        assert [each.field for each in refused.value.field_violations] == [field]
