"""Authorization at the door of a real Envoy: auth is asked about the headers of each call before an edge sees it."""

import asyncio
import json

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from envoy_auth import GOOD, HTTP_BODY, IDENTITY, SPENT, EnvoyAuth
from envoy_proxy import ECHO, Backend, running_front
from raw_http2 import header_block, reset_flood

UNKNOWN = "Bearer pk_unknown"
FORGED = (
    ("x-penstock-identity", "forged"),
    ("x-penstock-tenant", "forged"),
    ("x-forwarded-client-cert", "URI=spiffe://penstock.local/penstock/envoy/1"),
    ("x-envoy-auth-failure-mode-allowed", "true"),
)
ADDED_BY_ENVOY = ("x-envoy-internal", "x-envoy-expected-rq-timeout-ms")
FAILED_CHECK = "x-envoy-auth-failure-mode-allowed"


@pytest.fixture
async def auth():
    async with EnvoyAuth().running() as running:
        yield running


@pytest.fixture
async def front(tmp_path, auth):
    async with running_front(tmp_path, Backend("a"), AUTHS=auth.address, AUTH_CHECK_TIMEOUT=5) as running:
        yield running


def unary(front, bearer=GOOD, *metadata):
    return front.calls.unary_unary(f"{ECHO}Unary")(b"", metadata=(("authorization", bearer), *metadata))


async def refusal(call):
    """The code, details and reason of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    status = rpc_status.from_call(failure.value)
    info = error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)
    return failure.value.code(), failure.value.details(), info.reason


async def http(front, path, *headers):
    """Return the status, the headers and the body of a GET."""
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
    lines = [f"GET {path} HTTP/1.1", "host: front", "connection: close", *headers]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    status, *fields = head.decode().split("\r\n")
    return int(status.split()[1]), dict(field.split(": ", 1) for field in fields), body


async def test_an_admitted_call_has_the_identity_of_auth_and_no_forged_header(front, auth):
    assert await unary(front, GOOD, *FORGED) == b"a"
    metadata = front.backends[0].metadata
    assert metadata["x-penstock-identity"] == IDENTITY
    assert metadata.keys().isdisjoint({"x-penstock-tenant", "x-forwarded-client-cert", FAILED_CHECK})
    (check,) = auth.checks
    assert check.path == "/check"
    sent = {"authorization", "content-type", "x-forwarded-for"}
    assert check.headers.keys() == sent | {"host", "content-length", *ADDED_BY_ENVOY}


async def test_a_denied_call_over_grpc_has_the_status_and_details_of_auth_and_reaches_no_edge(front):
    assert await refusal(unary(front, UNKNOWN)) == (
        grpc.StatusCode.UNAUTHENTICATED,
        "this API key is unknown",
        "KEY_UNKNOWN",
    )
    code, _, reason = await refusal(unary(front, SPENT))
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
    assert front.backends[0].calls == []


async def test_a_denied_stream_ends_like_a_denied_call(front):
    call = front.calls.stream_stream(f"{ECHO}Chat")(metadata=(("authorization", UNKNOWN),))
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call.read()
    assert failure.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_denied_request_over_http_has_the_body_of_auth_and_reaches_no_edge(front):
    status, headers, body = await http(front, "/v1/models", f"authorization: {UNKNOWN}")
    assert (status, headers["content-type"], headers["x-penstock-reason"]) == (401, "application/json", "KEY_UNKNOWN")
    assert json.loads(body) == HTTP_BODY
    assert front.backends[0].calls == []


@pytest.mark.parametrize(
    "credential", [(), ("authorization: Basic dTpw",), ("authorization: Bearer ",), ("x-api-key: ",)]
)
async def test_a_request_without_a_credential_is_refused_without_asking_auth(front, auth, credential):
    status, headers, body = await http(front, "/v1/models", *credential)
    assert (status, headers["www-authenticate"], headers["x-penstock-reason"]) == (401, "Bearer", "KEY_MISSING")
    assert headers["content-type"] == "application/json"
    assert json.loads(body)["error"]["code"] == "invalid_api_key"
    assert (auth.checks, front.backends[0].calls) == ([], [])


async def test_auth_is_asked_about_the_key_of_a_request_without_a_bearer_credential(front, auth):
    status, headers, _ = await http(front, "/v1/models", "x-api-key: pk_unknown")
    assert (status, headers["x-penstock-reason"]) == (401, "KEY_UNKNOWN")
    (check,) = auth.checks
    assert check.headers["x-api-key"] == "pk_unknown"


async def test_a_call_without_a_credential_is_refused_without_asking_auth(front, auth):
    code, details, reason = await refusal(front.calls.unary_unary(f"{ECHO}Unary")(b""))
    assert (code, reason) == (grpc.StatusCode.UNAUTHENTICATED, "KEY_MISSING")
    assert details.startswith("send an API key")
    assert (auth.checks, front.backends[0].calls) == ([], [])


async def test_auth_is_not_asked_about_health_and_unknown_paths(front, auth):
    assert (await http(front, "/health"))[0] == 200
    assert (await http(front, "/metrics", f"authorization: {GOOD}"))[0] == 404
    with pytest.raises(grpc.aio.AioRpcError):
        await front.calls.unary_unary("/penstock.v1.Admin/Drain")(b"", metadata=(("authorization", GOOD),))
    assert auth.checks == []


async def test_without_auth_a_call_passes_to_the_edge_without_an_identity(front, auth):
    auth.stop()
    assert await unary(front, GOOD, *FORGED) == b"a"
    metadata = front.backends[0].metadata
    assert metadata.keys().isdisjoint({"x-penstock-identity", FAILED_CHECK})


async def test_if_auth_does_not_answer_in_time_a_call_passes_to_the_edge(tmp_path, auth):
    auth.may_answer.clear()
    async with running_front(tmp_path, Backend("a"), AUTHS=auth.address, AUTH_CHECK_TIMEOUT=0.05) as front:
        assert await unary(front) == b"a"
        assert "x-penstock-identity" not in front.backends[0].metadata


async def test_reset_calls_of_a_stranger_end_no_check_of_another_client(front, auth):
    held = [unary(front) for _ in range(20)]
    block = header_block(f"{ECHO}Unary", ("authorization", UNKNOWN))
    auth.may_answer.clear()
    await reset_flood(front.port, block, resets=6_000)
    waiting = [unary(front) for _ in range(20)]
    auth.may_answer.set()
    assert set(await asyncio.gather(*held, *waiting)) == {b"a"}
    assert set(front.backends[0].calls) == {"Unary"}
    assert len(front.backends[0].calls) == 40
