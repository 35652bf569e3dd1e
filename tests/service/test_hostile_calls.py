"""Raw calls of the hostile proof against real servers: what they send arrives, and what they get is read."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from inference_server import inference_server, scripted_servicer
from penstock.proofs.hostile.certificates import VALID_FOR, Authority, client_context
from penstock.proofs.hostile.corpus.http_framing import ambiguous_requests
from penstock.proofs.hostile.wire import http1
from penstock.proofs.hostile.wire.grpc_call import call, framed
from penstock.v1.inference_pb2 import CountTokensRequest, CountTokensResponse, GenerateResponse
from penstock.v1.inference_pb2_grpc import add_InferenceServicer_to_server
from raw_peers import KEY

COUNT_TOKENS, GENERATE = "/penstock.v1.Inference/CountTokens", "/penstock.v1.Inference/Generate"
SESSION = "/penstock.v1.Inference/Session"
UNIMPLEMENTED, INVALID_ARGUMENT = 12, 3


def endpoint(address):
    host, _, port = address.rpartition(":")
    return host, int(port)


async def count(request, _):
    return CountTokensResponse(prompt_tokens=len(request.text))


async def stream_two(*_):
    yield GenerateResponse()
    yield GenerateResponse()


async def read_forever(frames, _):
    async for _frame in frames:
        yield GenerateResponse()


async def test_a_message_beyond_the_window_arrives_whole():
    async with inference_server(CountTokens=count) as (_, server):
        body = framed(CountTokensRequest(text="a" * 300_000).SerializeToString())
        result = await call(endpoint(server.address), COUNT_TOKENS, body)
    assert result.is_ok
    assert CountTokensResponse.FromString(result.messages[0]).prompt_tokens == 300_000


async def test_statuses_streams_and_malformed_messages_are_told_apart():
    async with inference_server(CountTokens=count, Generate=stream_two) as (_, server):
        address = endpoint(server.address)
        streamed = await call(address, GENERATE, framed(b""))
        unknown = await call(address, "/penstock.v1.Inference/None", framed(b""))
        malformed = await call(address, COUNT_TOKENS, framed(b"\xff\xff\xff"))
    assert streamed.is_ok
    assert len(streamed.messages) == 2
    assert (unknown.status, malformed.status) == (UNIMPLEMENTED, INVALID_ARGUMENT)


async def test_a_call_that_the_server_leaves_open_is_open():
    async with inference_server(Session=read_forever) as (_, server):
        result = await call(endpoint(server.address), SESSION, framed(b""), ends=False, timeout=3.0, settle=0.1)
    assert result.is_open
    assert len(result.messages) == 1
    assert result.status is None


async def test_a_port_without_a_server_refuses():
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    server.close()
    await server.wait_closed()
    assert (await call(address, COUNT_TOKENS, framed(b""))).was_refused
    assert (await http1.exchange(address, b"GET / HTTP/1.1\r\n\r\n")).was_refused


async def test_every_pipelined_response_is_counted():
    async def answer_twice(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer_twice, "127.0.0.1", 0) as server:
        result = await http1.exchange(server.sockets[0].getsockname(), http1.request("GET", "/"))
    assert result.statuses == (401, 200)
    assert result.has_success


@asynccontextmanager
async def mutual_tls_server(authority, folder):
    """A gRPC server that wants a certificate of `authority`."""
    leaf = authority.issue("auth", "auth-1")
    root = (
        x509.CertificateBuilder()
        .subject_name(authority._subject)
        .issuer_name(authority._subject)
        .public_key(authority._key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(authority._key, hashes.SHA256())
    )
    pair = (leaf.key.read_bytes(), leaf.certificate.read_bytes())
    credentials = grpc.ssl_server_credentials(
        [pair], root.public_bytes(serialization.Encoding.PEM), require_client_auth=True
    )
    server = grpc.aio.server()
    add_InferenceServicer_to_server(scripted_servicer(CountTokens=count), server)
    port = server.add_secure_port("localhost:0", credentials)
    await server.start()
    try:
        yield "localhost", port
    finally:
        await server.stop(None)


async def test_only_a_valid_certificate_of_the_mesh_is_accepted(tmp_path):
    own, foreign = Authority(tmp_path), Authority(tmp_path)
    leaves = {
        "right": own.issue("edge", "edge-1"),
        "expired": own.issue("edge", "edge-1", age=2 * VALID_FOR),
        "foreign": foreign.issue("edge", "edge-1"),
    }
    async with mutual_tls_server(own, tmp_path) as address:
        body = framed(CountTokensRequest(text="abc").SerializeToString())
        results = {
            name: await call(address, COUNT_TOKENS, body, tls=client_context(leaf)) for name, leaf in leaves.items()
        }
        results["none"] = await call(address, COUNT_TOKENS, body, tls=client_context())
        results["plaintext"] = await call(address, COUNT_TOKENS, body)
    assert results.pop("right").is_ok
    assert len(results) == 4
    assert all(result.was_refused for result in results.values())
    assert not [result for result in results.values() if result.messages]


@pytest.mark.parametrize("name", ["length and chunked", "two lengths", "length with a sign", "negative length"])
def test_an_ambiguous_request_carries_a_second_one_with_the_key(name):
    sent = dict(ambiguous_requests(KEY))[name]
    assert sent.count(b"Authorization: Bearer " + KEY.encode()) == 2
    assert b"GET /v1/models" in sent
