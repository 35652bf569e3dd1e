"""The service of the batch tier: files and batches, for edges on behalf of their callers."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from penstock.batch.jobs.batch import Batch
from penstock.batch.store.operations import StoredFile
from penstock.batch.store.store import BatchStore, new_file_id
from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import InvalidArgument
from penstock.chassis.streams.endpoint import check_message
from penstock.mesh.limits.compiler import check_of
from penstock.mesh.v1 import batch_pb2 as mesh
from penstock.mesh.v1.batch_pb2_grpc import BatchServiceServicer
from penstock.v1 import batches_pb2 as pb

ENDPOINTS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"})
MAX_FILENAME_CHARS = 255
TTL_RANGE_S = (3_600.0, 30 * 86_400.0)
WINDOW_RANGE_S = (60.0, 7 * 86_400.0)
DEFAULT_WINDOW_S = 86_400.0
MAX_METADATA_PAIRS, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
MAX_IDEMPOTENCY_KEY_CHARS = 255
MAX_FILES, DEFAULT_FILES = 1_000, 100  # of a page
MAX_BATCHES, DEFAULT_BATCHES = 100, 20


class BatchService(BatchServiceServicer):
    """Translates calls to operations of the store. Raises their errors, and InvalidArgument by field."""

    def __init__(self, store: BatchStore) -> None:
        self._store = store
        self._operations = store.operations

    async def UploadFile(
        self, request_iterator: AsyncIterator[mesh.UploadFileRequest], context: Any
    ) -> AsyncIterator[mesh.UploadFileResponse]:
        requests = _checked(request_iterator)
        first = await anext(requests, None)
        if first is None or first.request.WhichOneof("part") != "header":
            raise InvalidArgument("the first message of an upload has its header", field="header")
        header, now = first.request.header, self._store.clock()
        if header.purpose != pb.FILE_PURPOSE_BATCH:
            raise InvalidArgument("purpose must be batch", field="purpose")
        ttl = _seconds(header, "ttl", TTL_RANGE_S, TTL_RANGE_S[1])
        name = header.filename[:MAX_FILENAME_CHARS]
        file = StoredFile(new_file_id(), _tenant_of(first.owner), name, header.purpose, 0, now, now + ttl)
        stored = await self._store.add_file(file, _contents(requests))
        yield mesh.UploadFileResponse(file=file_message(stored))

    async def ReadFile(
        self, request_iterator: AsyncIterator[mesh.ReadFileRequest], context: Any
    ) -> AsyncIterator[mesh.ReadFileResponse]:
        asked = await anext(_checked(request_iterator), None)
        if asked is None:
            raise InvalidArgument("the call has no message; send one", reason="MESSAGE_MISSING")
        tenant_id, request = _tenant_of(asked.owner), asked.request
        file = await self._store.run(self._operations.find_file, tenant_id, request.file_id)
        async for content in self._store.read_file(file, request.offset):
            yield mesh.ReadFileResponse(content=content)

    async def Call(self, request: mesh.CallRequest, context: Any) -> mesh.CallResponse:
        check_message(request, check_of(request.DESCRIPTOR))
        tenant_id, run, operations = _tenant_of(request.owner), self._store.run, self._operations
        match request.WhichOneof("operation"):
            case "get_file":
                file = await run(operations.find_file, tenant_id, request.get_file.file_id)
                return mesh.CallResponse(file=file_message(file))
            case "list_files":
                return mesh.CallResponse(files=await self._list_files(tenant_id, request.list_files))
            case "delete_file":
                await self._store.delete_file(tenant_id, request.delete_file.file_id)
                return mesh.CallResponse(deleted=pb.DeleteFileResponse())
            case "create_batch":
                new = self._new_batch(request.owner, request.create_batch)
                batch = await self._store.create(new, request.create_batch.idempotency_key)
            case "get_batch":
                batch = await run(operations.find, tenant_id, request.get_batch.batch_id)
            case "cancel_batch":
                batch = await self._store.cancel(tenant_id, request.cancel_batch.batch_id)
            case "list_batches":
                return mesh.CallResponse(batches=await self._list_batches(tenant_id, request.list_batches))
            case _:
                raise InvalidArgument("the call names no operation of this release", field="operation")
        return mesh.CallResponse(batch=batch.to_message(self._store.clock()))

    async def _list_files(self, tenant_id: str, request: pb.ListFilesRequest) -> pb.ListFilesResponse:
        limit = _page_size(request.page_size, DEFAULT_FILES, MAX_FILES)
        found, has_more = await self._store.run(
            self._operations.list_files, tenant_id, purpose=request.purpose, after=request.after, limit=limit
        )
        return pb.ListFilesResponse(files=map(file_message, found), has_more=has_more)

    async def _list_batches(self, tenant_id: str, request: pb.ListBatchesRequest) -> pb.ListBatchesResponse:
        limit, now = _page_size(request.page_size, DEFAULT_BATCHES, MAX_BATCHES), self._store.clock()
        found, has_more = await self._store.run(
            self._operations.list_batches, tenant_id, after=request.after, limit=limit
        )
        return pb.ListBatchesResponse(batches=[each.to_message(now) for each in found], has_more=has_more)

    def _new_batch(self, owner: mesh.Owner, request: pb.CreateBatchRequest) -> Batch:
        if not owner.delegation:
            raise InvalidArgument("a batch needs the delegation of its key", field="delegation")
        if request.endpoint not in ENDPOINTS:
            raise InvalidArgument(f"endpoint must be one of {', '.join(sorted(ENDPOINTS))}", field="endpoint")
        if len(request.metadata) > MAX_METADATA_PAIRS or any(
            len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE for key, value in request.metadata.items()
        ):
            raise InvalidArgument("metadata has at most 16 pairs of 64 and 512 characters", field="metadata")
        if len(request.idempotency_key) > MAX_IDEMPOTENCY_KEY_CHARS:
            text = f"an idempotency key has at most {MAX_IDEMPOTENCY_KEY_CHARS} characters"
            raise InvalidArgument(text, field="idempotency_key")
        return Batch(
            batch_id=f"batch_{uuid4().hex}",
            tenant_id=owner.tenant_id,
            key_id=owner.key_id,
            delegation=owner.delegation,
            endpoint=request.endpoint,
            input_file_id=request.input_file_id,
            window=_seconds(request, "completion_window", WINDOW_RANGE_S, DEFAULT_WINDOW_S),
            output_ttl=_seconds(request, "output_ttl", TTL_RANGE_S, TTL_RANGE_S[1]),
            metadata=dict(request.metadata),
            created_at=self._store.clock(),
        )


async def _checked(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yield messages of an edge. Raises FrameOutOfRange."""
    async for each in requests:
        check_message(each, check_of(each.DESCRIPTOR))
        yield each


async def _contents(requests: AsyncIterator[mesh.UploadFileRequest]) -> AsyncIterator[bytes]:
    """Yield the content of an upload. Raises InvalidArgument if the stream ends before the content is whole."""
    async for each in requests:
        if each.is_complete:
            return
        yield each.request.content
    raise InvalidArgument("the upload ended before its content was whole", field="content")


def file_message(file: StoredFile) -> pb.File:
    message = pb.File(id=file.file_id, filename=file.filename, purpose=file.purpose, size_bytes=file.size_bytes)  # type: ignore[arg-type]  # as stored
    message.create_time.FromMilliseconds(round(1e3 * file.created_at))
    message.expire_time.FromMilliseconds(round(1e3 * file.expires_at))
    return message


def _tenant_of(owner: mesh.Owner) -> str:
    if not owner.tenant_id:
        raise InvalidArgument("the call names no tenant", field="owner")
    return owner.tenant_id


def _seconds(message: Any, name: str, bounds: tuple[float, float], default: float) -> float:
    if not message.HasField(name):
        return default
    seconds, (low, high) = seconds_of(getattr(message, name)), bounds
    if not low <= seconds <= high:
        raise InvalidArgument(f"{name} must be {low:g} to {high:g} s, not {seconds:g} s", field=name)
    return seconds


def _page_size(given: int, default: int, most: int) -> int:
    size = given or default
    if size > most:
        raise InvalidArgument(f"page_size must be 1 to {most}, not {size}", field="page_size")
    return size
