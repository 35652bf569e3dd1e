"""Checks of a proxy at a real auth: known callers pass with a signed header, strangers are answered."""

import asyncio
import base64
import json
from functools import partial

import grpc
import pytest
from google.rpc import status_pb2
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo

from auth_server import DEV_KEY, auth_process, edge, tenant_with_key
from edge_auth_mesh import KEY, edge_auth_mesh
from penstock.auth.ext_authz import answers, http_check
from penstock.auth.ext_authz.caller import caller_of
from penstock.chassis.channels import channel
from penstock.chassis.errors import Overloaded, PermissionDenied, Unauthenticated, Unavailable
from penstock.edge import __main__ as edge_main
from penstock.edge.api.grpc import callers, door, service
from penstock.edge.api.http.app import OpenAIApp
from penstock.edge.api.openai.errors import http_error
from penstock.edge.request.identity_headers import IdentityHeaders
from penstock.mesh.identity_header import HEADER
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1 import admin_pb2 as pb
from penstock.v1.inference_pb2 import GenerateRequest, ListModelsRequest
from penstock.v1.inference_pb2_grpc import InferenceStub
from proxy_checks import checked_headers

UNKNOWN = "pk_unknown_" + "0123456789abcdef" * 2
OTHER_PROXY, LOCAL_PROXY = "10.0.0.7", "127.0.0.1"


def status_of(response):
    raw = response.headers["grpc-status-details-bin"]
    return status_pb2.Status.FromString(base64.b64decode(raw + "=" * (-len(raw) % 4)))


async def test_a_known_caller_passes_with_a_header_that_an_edge_of_auth_accepts():
    async with auth_process() as found, edge(found) as stream:
        key = (await tenant_with_key(found)).bearer
        response = await found.check(key, x_penstock_identity="forged")
        assert (response.status_code, response.content) == (200, b"")
        header = response.headers[HEADER]
        await stream.reserve(credential=Credential(bearer=key))
        headers = IdentityHeaders()
        headers.on_keys("auth", stream.identity_keys, 7.0)
        identity = headers.verify(header, Credential(bearer=key), 7.0)
        assert (identity.tenant_id, identity.key_id) == ("acme", key.split("_")[1])


async def test_a_stranger_over_http_receives_the_answer_of_an_edge():
    async with auth_process() as found:
        for bearer, reason in (("", "KEY_MISSING"), (UNKNOWN, "KEY_UNKNOWN")):
            response = await found.check(bearer, content_type="application/json")
            assert response.status_code == 401
            headers = response.headers
            assert (headers["www-authenticate"], headers["x-penstock-reason"]) == ("Bearer", reason)
            assert response.json()["error"]["code"] == "invalid_api_key"


async def test_a_stranger_over_grpc_receives_a_status_with_its_reason():
    async with auth_process() as found:
        response = await found.check(UNKNOWN, content_type="application/grpc+proto")
        assert response.headers["grpc-status"] == "16"
        assert response.text == "this API key is unknown"
        status, info = status_of(response), ErrorInfo()
        status.details[0].Unpack(info)
        assert (status.code, info.reason) == (16, "KEY_UNKNOWN")


async def test_a_guesser_is_told_when_to_come_back_and_never_reaches_the_store():
    async with auth_process(failures_per_source=3) as found:
        for number in range(3):
            await found.check(f"pk_dev_{number:026d}")
        limited = await found.check(DEV_KEY)
        assert limited.status_code == 429
        assert limited.headers["retry-after"] == "20"
        limited = await found.check(DEV_KEY, content_type="application/grpc")
        assert limited.headers["grpc-status"] == "8"
        retry = RetryInfo()
        status_of(limited).details[1].Unpack(retry)
        assert retry.retry_delay.seconds == 20
        assert (await found.check(DEV_KEY, source="127.0.0.1")).status_code == 200
        assert found.figures["store_pending"] == 0
        assert found.authorization.figures == {"proxy_checks_passed": 1, "proxy_checks_denied": 5}


async def test_a_revoked_key_passes_no_more():
    async with auth_process() as found:
        key = (await tenant_with_key(found)).bearer
        assert (await found.check(key)).status_code == 200
        await found.admin.RevokeKey(pb.RevokeKeyRequest(key_id=key.split("_")[1]))
        assert (await found.check(key)).headers["x-penstock-reason"] == "KEY_REVOKED"


async def exchange(address, *parts):
    """Send bytes to the listener for checks and return what it answers until it closes, or for the last request."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for part in parts:
        writer.write(part)
    writer.write_eof()
    async with asyncio.timeout(5):
        received = await reader.read()
    writer.close()
    return received


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /health HTTP/1.1\r\n\r\n", 200),
        (b"POST /check HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", 413),
        (b"GET /check/ HTTP/1.1\r\n\r\n", 404),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /check HTTP/1.1\r\n" + b"".join(b"a%d: b\r\n" % each for each in range(65)) + b"\r\n", 431),
        (b"\xff" * 40, 400),
        (b"GET /check HTTP/1.1\r\nno header\r\n\r\n", 400),
        (b"GET /check HTTP/1.1\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n", 401),
    ],
)
async def test_what_is_no_check_is_refused_and_the_next_connection_is_served(request_bytes, status):
    async with auth_process() as found:
        assert (await exchange(found.check_address, request_bytes)).startswith(b"HTTP/1.1 %d " % status)
        assert (await found.check(DEV_KEY, source="127.0.0.1")).status_code == 200


async def test_a_request_in_pieces_and_two_at_once_are_answered_in_their_order():
    async with auth_process() as found:
        check = b"GET /check HTTP/1.1\r\nauthorization: Bearer " + DEV_KEY.encode() + b"\r\n"
        local = check + b"x-forwarded-for: 127.0.0.1\r\n\r\n"
        received = await exchange(found.check_address, local[:30], local[30:], check + b"\r\n" + local)
        assert [part[:3] for part in received.split(b"HTTP/1.1 ")[1:]] == [b"200", b"403", b"200"]


async def test_connections_beyond_the_limit_are_closed(monkeypatch):
    monkeypatch.setattr(http_check, "MAX_CONNECTIONS", 2)
    async with auth_process() as found, asyncio.timeout(5):
        host, _, port = found.check_address.rpartition(":")
        held = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b""
        for each in (writer, *(connection[1] for connection in held)):
            each.close()


@pytest.mark.parametrize(
    ("proxy", "forwarded", "expected"),
    [
        (LOCAL_PROXY, "127.0.0.1", True),
        (LOCAL_PROXY, "127.0.0.1,::1", True),
        (LOCAL_PROXY, "203.0.113.9", False),
        (LOCAL_PROXY, "203.0.113.9, 127.0.0.1", False),
        (LOCAL_PROXY, "127.0.0.1, 203.0.113.9", False),
        (OTHER_PROXY, "127.0.0.1", False),
        (LOCAL_PROXY, "", False),
    ],
)
def test_loopback_needs_the_proxy_its_client_and_every_hop_on_this_host(proxy, forwarded, expected):
    assert caller_of(checked_headers("k", forwarded), proxy, trusted_hops=0).loopback is expected


@pytest.mark.parametrize(
    ("hops", "source"), [(0, "10.0.0.1"), (1, "192.0.2.2"), (2, "192.0.2.1"), (3, "198.51.100.1"), (9, "198.51.100.1")]
)
def test_the_source_is_behind_the_proxies_that_are_trusted(hops, source):
    listed = "198.51.100.1, 192.0.2.1, 192.0.2.2, 10.0.0.1"  # the last is the client of Envoy
    assert caller_of(checked_headers("k", listed), OTHER_PROXY, trusted_hops=hops).source == source


@pytest.mark.parametrize(
    "error",
    [
        *(Unauthenticated("m", reason=each) for each in ("KEY_MISSING", "KEY_UNKNOWN", "KEY_REVOKED", "KEY_EXPIRED")),
        *(Unauthenticated("m", reason=each) for each in ("TOKEN_INVALID", "TOKEN_EXPIRED")),
        *(PermissionDenied("m ü", reason=each) for each in ("LOOPBACK_ONLY", "TENANT_UNKNOWN")),
        Overloaded("m", reason="TOO_MANY_FAILURES", retry_after=2.5),
        Unavailable("m", reason="ISSUER_UNAVAILABLE", retry_after=1.0),
    ],
    ids=lambda each: each.reason,
)
def test_a_proxy_answers_as_an_edge_does(error):
    head, _, body = answers.denied(error, is_grpc=False).partition(b"\r\n\r\n")
    expected = http_error(error)
    status, *lines = head.decode().split("\r\n")
    assert status.split()[1] == str(expected.status)
    assert dict(line.split(": ") for line in lines) == {**expected.headers, "content-length": str(len(body))}
    assert json.loads(body) == json.loads(expected.body)


async def test_two_thousand_guesses_through_one_edge_are_limited():
    async with auth_process(failures_per_edge=50) as found, edge(found) as stream:
        reasons = []
        for number in range(2_000):
            answer = await stream.identify(Credential(bearer=f"pk_dev_{number:026d}"))
            reasons.append(answer.failure.reason)
        assert set(reasons) == {"KEY_UNKNOWN", "TOO_MANY_FAILURES"}
        assert reasons.count("KEY_UNKNOWN") == 50
        rejected = await stream.reserve(credential=Credential(bearer="pk_dev_" + "x" * 26))
        assert grpc.StatusCode.RESOURCE_EXHAUSTED.value[0] == rejected.failure.code
        assert found.figures["limited_authentications"] == 1_951


def behind_a_proxy(monkeypatch):
    """Let edges take every connection for one of their proxy, as mTLS tells them of an Envoy."""
    for module in (callers, door, service):
        monkeypatch.setattr(module, "is_from_proxy", lambda _: True)
    monkeypatch.setattr(edge_main, "OpenAIApp", partial(OpenAIApp, is_from_proxy=lambda _: True))


def identity_metadata(mesh, bearer=KEY):
    credential = Credential(bearer=bearer, loopback=True)
    identity = mesh.auth.authorizer.identify(credential, mesh.auth.now)
    header = mesh.auth.identity_keys.sign(identity, credential, mesh.auth.now)
    return (("authorization", f"Bearer {bearer}"), (HEADER, header))


async def list_models(mesh, metadata):
    async with channel(mesh.addresses[0]) as to_edge:
        return await InferenceStub(to_edge).ListModels(ListModelsRequest(), metadata=metadata, timeout=5.0)


async def test_a_caller_that_auth_identified_for_the_proxy_needs_no_round_trip(tmp_path, monkeypatch):
    behind_a_proxy(monkeypatch)
    async with edge_auth_mesh(tmp_path, identify_timeout=0.2, auth_fallback_after=60.0) as mesh:
        metadata = identity_metadata(mesh)
        mesh.auth.service.is_paused = True
        assert (await list_models(mesh, metadata)).models
        with pytest.raises(grpc.aio.AioRpcError) as unanswered:
            await list_models(mesh, [metadata[0], (HEADER, metadata[1][1][:-2] + "AA")])
        assert unanswered.value.code() is grpc.StatusCode.UNAVAILABLE
        figures = await mesh.figures()
        assert (figures["identity_headers_accepted"], figures["identity_headers_rejected"]) == (
            2,
            2,
        )  # by the door and by the call


async def test_an_identity_header_from_any_other_connection_is_ignored(tmp_path):
    async with edge_auth_mesh(tmp_path, identify_timeout=0.2, auth_fallback_after=60.0) as mesh:
        metadata = identity_metadata(mesh)
        mesh.auth.service.is_paused = True
        with pytest.raises(grpc.aio.AioRpcError) as unanswered:
            await list_models(mesh, metadata)
        assert unanswered.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # the door waits for auth
        assert (await mesh.figures())["identity_headers_accepted"] == 0


async def test_a_request_with_an_identity_header_is_reserved_with_its_credential(tmp_path, monkeypatch):
    """A revoked key gets through the door of its former header, and no further."""
    behind_a_proxy(monkeypatch)
    async with edge_auth_mesh(tmp_path) as mesh:
        metadata = identity_metadata(mesh)
        mesh.auth.authorizer.keys.revoke("dev", mesh.auth.now)
        async with channel(mesh.addresses[0]) as to_edge:
            call = InferenceStub(to_edge).Generate(GenerateRequest(text="hi", max_output_tokens=4), metadata=metadata)
            with pytest.raises(grpc.aio.AioRpcError) as revoked:
                await call.read()
        assert revoked.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert (await mesh.figures())["identity_headers_accepted"] == 1
