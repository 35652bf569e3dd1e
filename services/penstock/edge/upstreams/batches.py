"""Client of the tier `batch`: files and batches of callers, on any replica, which share one store."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import grpc

from penstock.chassis.channels import AddressWatch
from penstock.chassis.errors import PenstockError, Unavailable, Unimplemented, error_from_rpc
from penstock.chassis.security.channels import PLAINTEXT, Dialer
from penstock.chassis.streams.endpoint import FrameOutOfRange, check_message
from penstock.mesh.limits.compiler import check_of
from penstock.mesh.v1 import batch_pb2 as mesh
from penstock.mesh.v1.batch_pb2_grpc import BatchServiceStub
from penstock.v1 import batches_pb2 as pb

CALL_TIMEOUT_S = 10.0
RETRY_AFTER_S = 1.0
MAX_PART_BYTES = 1 << 20


class BatchClient:
    """Calls operations for callers. Every method raises what the tier answers, or Unavailable / BATCH_LOST."""

    def __init__(self, targets: Sequence[str], *, dialer: Dialer = PLAINTEXT) -> None:
        self._targets = targets
        self._dialer = dialer
        self._addresses: list[str] = []
        self._turns = count()

    @property
    def is_enabled(self) -> bool:
        return bool(self._targets)

    async def run(self) -> None:
        """Follow the addresses of the tier, until cancelled."""
        async for present in AddressWatch(self._targets):
            self._addresses = sorted(present)

    async def call(self, owner: mesh.Owner, **operation: Any) -> mesh.CallResponse:
        """Perform one operation, such as `get_batch=GetBatchRequest(..)`."""
        request = mesh.CallRequest(owner=owner, **operation)
        async with self._stub() as stub:
            response: mesh.CallResponse = await stub.Call(request, timeout=CALL_TIMEOUT_S)
            check_message(response, check_of(response.DESCRIPTOR))
        return response

    async def upload(
        self, owner: mesh.Owner, header: pb.UploadHeader, contents: AsyncIterator[bytes], *, timeout: float
    ) -> pb.File:
        """Store a file. If `contents` raises, nothing is stored."""
        async with self._stub() as stub:
            call = stub.UploadFile(timeout=timeout)
            try:
                first = mesh.UploadFileRequest(owner=owner, request=pb.UploadFileRequest(header=header))
                await call.write(first)
                async for content in contents:
                    for start in range(0, len(content), MAX_PART_BYTES):
                        part = pb.UploadFileRequest(content=content[start : start + MAX_PART_BYTES])
                        await call.write(mesh.UploadFileRequest(request=part))
                await call.write(mesh.UploadFileRequest(is_complete=True))
                response: Any = await call.read()
                if response is grpc.aio.EOF:
                    raise _lost("it ended an upload without an answer")
                check_message(response, check_of(response.DESCRIPTOR))
                stored: pb.File = response.file
                return stored
            finally:
                call.cancel()

    async def read(self, owner: mesh.Owner, file_id: str, *, offset: int = 0) -> AsyncIterator[bytes]:
        """Yield the content of a file in parts."""
        async with self._stub() as stub:
            call = stub.ReadFile()
            try:
                request = pb.ReadFileRequest(file_id=file_id, offset=offset)
                await call.write(mesh.ReadFileRequest(owner=owner, request=request))
                while (response := await call.read()) is not grpc.aio.EOF:
                    check_message(response, check_of(response.DESCRIPTOR))
                    yield response.content
            finally:
                call.cancel()

    @asynccontextmanager
    async def _stub(self) -> AsyncIterator[Any]:
        """Yield a stub of the next replica. Errors of its calls become ours."""
        if not self._targets:
            raise no_batch_tier()
        if not self._addresses:
            raise _lost("no address of it is known")
        address = self._addresses[next(self._turns) % len(self._addresses)]
        async with self._dialer.channel(address, "batch") as to_batch:
            try:
                yield BatchServiceStub(to_batch)
            except grpc.aio.AioRpcError as rpc:
                error = error_from_rpc(rpc)
                is_lost = error.reason in (rpc.code().name, "CONNECTION_LOST")
                raise (_lost(error.message) if is_lost else error) from None
            except FrameOutOfRange as error:
                raise _lost(f"its answer is wrong: {error.message}") from None


def no_batch_tier() -> PenstockError:
    return Unimplemented("this server runs no batches, because it has no batch tier", reason="NO_BATCH_TIER")


def _lost(why: str) -> Unavailable:
    text = f"the batch tier cannot be reached: {why}; retry in {RETRY_AFTER_S:g} s"
    return Unavailable(text, reason="BATCH_LOST", retry_after=RETRY_AFTER_S)
