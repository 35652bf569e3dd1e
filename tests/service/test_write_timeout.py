"""A client that does not read, on a real server: the memory and the time that it holds are bounded."""

import asyncio

import grpc
import pytest
from grpc._cython import cygrpc

from inference_server import inference_server
from penstock.chassis.errors import error_from_rpc
from penstock.chassis.server import write_timeout
from penstock.v1.inference_pb2 import Delta, GenerateRequest, GenerateResponse

CHUNK_BYTES = 1 << 16
MAX_SENT_BYTES = 64 << 20  # far above what any transport buffers for a client that does not read
TIMEOUT_S = 20.0  # bound of every wait


class Edge:
    """Sends `max_output_tokens` chunks; without that limit, more than any client here reads."""

    def __init__(self):
        self.sent = 0
        self.ended = asyncio.Event()

    async def generate(self, request, context):
        try:
            for _ in range(request.max_output_tokens or MAX_SENT_BYTES // CHUNK_BYTES):
                yield GenerateResponse(delta=Delta(text="x" * CHUNK_BYTES))
                self.sent += 1
        finally:
            self.ended.set()


@pytest.fixture
def short_timeouts(monkeypatch):
    monkeypatch.setattr(write_timeout, "CLIENT_READ_TIMEOUT_S", 0.2)
    monkeypatch.setattr("penstock.chassis.server.interceptors.ABORT_TIMEOUT_S", 0.05)


@pytest.mark.usefixtures("short_timeouts")
async def test_a_client_that_does_not_read_loses_its_call_and_reads_the_status_later():
    edge = Edge()
    async with inference_server(Generate=edge.generate) as (stub, _), asyncio.timeout(TIMEOUT_S):
        call = stub.Generate(GenerateRequest())
        await call.read()
        await edge.ended.wait()
        assert edge.sent < MAX_SENT_BYTES // CHUNK_BYTES
        read = 1
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            while await call.read() is not grpc.aio.EOF:
                read += 1
        error = error_from_rpc(failure.value)
        assert (error.code, error.reason) == (grpc.StatusCode.ABORTED, "CLIENT_TOO_SLOW")
        assert "resume with the tokens it has" in error.message
        assert read >= edge.sent  # chunks that were taken from the handler are not lost


@pytest.mark.usefixtures("short_timeouts")
async def test_a_client_that_does_not_read_delays_no_other_call_on_its_connection():
    edge = Edge()
    async with inference_server(Generate=edge.generate) as (stub, _), asyncio.timeout(TIMEOUT_S):
        stalled = stub.Generate(GenerateRequest())
        await stalled.read()
        for _ in range(20):
            answer = [each async for each in stub.Generate(GenerateRequest(max_output_tokens=3))]
            assert len(answer) == 3
        stalled.cancel()


@pytest.mark.usefixtures("short_timeouts")
async def test_a_handler_that_is_silent_for_long_is_not_mistaken_for_a_slow_client():
    quiet = asyncio.Event()

    async def generate(request, context):
        yield GenerateResponse()
        await quiet.wait()
        yield GenerateResponse()

    async with inference_server(Generate=generate) as (stub, _), asyncio.timeout(TIMEOUT_S):
        call = stub.Generate(GenerateRequest())
        await call.read()
        asyncio.get_running_loop().call_later(3 * write_timeout.CLIENT_READ_TIMEOUT_S, quiet.set)
        assert await call.read() is not grpc.aio.EOF
        assert await call.read() is grpc.aio.EOF


@pytest.mark.usefixtures("short_timeouts")
async def test_a_handlers_own_timeout_is_not_mistaken_for_a_slow_client():
    async def generate(request, context):
        yield GenerateResponse()
        raise TimeoutError

    async with inference_server(Generate=generate) as (stub, _), asyncio.timeout(TIMEOUT_S):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            [each async for each in stub.Generate(GenerateRequest())]
        assert failure.value.code() is grpc.StatusCode.INTERNAL


class LostConnection:
    """A context whose connection ends during the first write, as gRPC reports it."""

    async def write(self, _response):
        raise cygrpc.ExecuteBatchError('Failed "execute_batch"')


async def test_a_write_to_a_connection_that_ends_is_a_cancelled_call():
    edge = Edge()
    with pytest.raises(asyncio.CancelledError):
        await write_timeout.write_responses(LostConnection(), edge.generate(GenerateRequest(), None))
