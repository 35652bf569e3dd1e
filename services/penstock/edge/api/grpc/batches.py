"""The service `penstock.v1.Batches` of an edge: files and batches, passed on to the tier that keeps them."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from penstock.chassis.errors import InvalidArgument, Unavailable
from penstock.edge.api.grpc.callers import caller_in
from penstock.edge.api.grpc.line_stream import LineStream
from penstock.edge.api.openai.batches.objects import ENDPOINTS
from penstock.edge.gateway import Gateway
from penstock.edge.upstreams.batches import BatchClient
from penstock.mesh.v1.batch_pb2 import CallResponse, Owner
from penstock.v1 import batches_pb2 as pb
from penstock.v1.batches_pb2_grpc import BatchesServicer

UPLOAD_TIMEOUT_S = 3_600.0


class BatchesService(BatchesServicer):
    """Passes calls on for their callers, as the door has identified them."""

    def __init__(self, gateway: Gateway, batches: BatchClient) -> None:
        self._gateway = gateway
        self._batches = batches

    async def UploadFile(self, request_iterator: AsyncIterator[Any], context: Any) -> pb.UploadFileResponse:
        owner = await self._owner(context)
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        if first is None or first.WhichOneof("part") != "header":
            raise InvalidArgument("the first message of an upload has its header", field="header")
        file = await self._batches.upload(owner, first.header, _contents(requests), timeout=UPLOAD_TIMEOUT_S)
        return pb.UploadFileResponse(file=file)

    async def ReadFile(self, request: pb.ReadFileRequest, context: Any) -> AsyncIterator[pb.ReadFileResponse]:
        owner = await self._owner(context)
        async for content in self._batches.read(owner, request.file_id, offset=request.offset):
            yield pb.ReadFileResponse(content=content)

    async def GetFile(self, request: pb.GetFileRequest, context: Any) -> pb.GetFileResponse:
        return pb.GetFileResponse(file=(await self._call(context, get_file=request)).file)

    async def ListFiles(self, request: pb.ListFilesRequest, context: Any) -> pb.ListFilesResponse:
        return (await self._call(context, list_files=request)).files

    async def DeleteFile(self, request: pb.DeleteFileRequest, context: Any) -> pb.DeleteFileResponse:
        return (await self._call(context, delete_file=request)).deleted

    async def CreateBatch(self, request: pb.CreateBatchRequest, context: Any) -> pb.CreateBatchResponse:
        if request.endpoint not in ENDPOINTS:
            raise InvalidArgument(f"endpoint must be one of {', '.join(ENDPOINTS)}", field="endpoint")
        owner = await self._owner(context)
        owner.delegation = await self._gateway.delegate(caller_in(context)[0])
        created = await self._batches.call(owner, create_batch=request)
        return pb.CreateBatchResponse(batch=created.batch)

    async def GetBatch(self, request: pb.GetBatchRequest, context: Any) -> pb.GetBatchResponse:
        return pb.GetBatchResponse(batch=(await self._call(context, get_batch=request)).batch)

    async def ListBatches(self, request: pb.ListBatchesRequest, context: Any) -> pb.ListBatchesResponse:
        return (await self._call(context, list_batches=request)).batches

    async def CancelBatch(self, request: pb.CancelBatchRequest, context: Any) -> pb.CancelBatchResponse:
        return pb.CancelBatchResponse(batch=(await self._call(context, cancel_batch=request)).batch)

    async def RunLines(
        self, request_iterator: AsyncIterator[pb.RunLinesRequest], context: Any
    ) -> AsyncIterator[pb.RunLinesResponse]:
        owner = await self._owner(context)
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        if first is None or first.WhichOneof("frame") != "open":
            raise InvalidArgument("the first frame of a stream is `open`", field="frame")
        stream = LineStream(self._gateway, self._batches, caller_in(context)[0], owner, first.open)
        async with aclosing(stream.responses(requests)) as responses:
            async for response in responses:
                yield response

    async def _call(self, context: Any, **operation: Any) -> CallResponse:
        return await self._batches.call(await self._owner(context), **operation)

    async def _owner(self, context: Any) -> Owner:
        credential, identity_header = caller_in(context)
        await self._gateway.identify(credential, identity_header)
        identity = await self._gateway.authenticate(credential)
        if not identity.tenant_id:
            raise Unavailable("the caller's tenant is not known now", reason="AUTH_LOST", retry_after=1.0)
        return Owner(tenant_id=identity.tenant_id, key_id=identity.key_id)


async def _contents(requests: AsyncIterator[pb.UploadFileRequest]) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.WhichOneof("part") != "content":
            raise InvalidArgument("after its header an upload has content only", field="content")
        yield request.content
