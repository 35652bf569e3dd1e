"""Checks of a proxy at a real auth: known callers pass with a signed header, strangers are answered."""

import base64
import json
from functools import partial

import grpc
import pytest
from google.rpc import status_pb2
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo

from auth_server import DEV_KEY, auth_process, edge, tenant_with_key
from edge_auth_mesh import KEY, edge_auth_mesh
from penstock.auth.ext_authz import responses
from penstock.auth.ext_authz.caller import caller_of
from penstock.chassis.channels import channel
from penstock.chassis.errors import Overloaded, PermissionDenied, Unauthenticated, Unavailable
from penstock.edge import __main__ as edge_main
from penstock.edge.api.grpc import door, service
from penstock.edge.api.http.app import OpenAIApp
from penstock.edge.api.openai.errors import http_error
from penstock.edge.request.identity_headers import IdentityHeaders
from penstock.mesh.identity_header import HEADER
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1 import admin_pb2 as pb
from penstock.v1.inference_pb2 import GenerateRequest, ListModelsRequest
from penstock.v1.inference_pb2_grpc import InferenceStub
from proxy_checks import check_request

UNKNOWN = "pk_unknown_" + "0123456789abcdef" * 2
OTHER_PROXY, LOCAL_PROXY = "ipv4:10.0.0.7:4000", "ipv4:127.0.0.1:4000"


def headers_of(response):
    found = response.denied_response.headers or response.ok_response.headers
    assert all(each.append_action == 2 and not each.append.value for each in found)
    return {each.header.key: each.header.value for each in found}


def status_of(response):
    raw = headers_of(response)["grpc-status-details-bin"]
    return status_pb2.Status.FromString(base64.b64decode(raw + "=" * (-len(raw) % 4)))


async def test_a_known_caller_passes_with_a_header_that_an_edge_of_auth_accepts():
    async with auth_process() as found, edge(found) as stream:
        key = (await tenant_with_key(found)).bearer
        response = await found.check(check_request(key, x_penstock_identity="forged"))
        assert response.status.code == 0
        assert dict(response.dynamic_metadata)["tenant"] == "acme"
        [(name, header)] = headers_of(response).items()
        assert name == HEADER
        await stream.reserve(credential=Credential(bearer=key))
        headers = IdentityHeaders()
        headers.on_keys("auth", stream.identity_keys, 7.0)
        identity = headers.verify(header, Credential(bearer=key), 7.0)
        assert (identity.tenant_id, identity.key_id) == ("acme", key.split("_")[1])


async def test_a_stranger_over_http_receives_the_answer_of_an_edge():
    async with auth_process() as found:
        for bearer, reason in (("", "KEY_MISSING"), (UNKNOWN, "KEY_UNKNOWN")):
            response = await found.check(check_request(bearer, content_type="application/json"))
            assert (response.status.code, response.denied_response.status.code) == (16, 401)
            headers = headers_of(response)
            assert (headers["www-authenticate"], headers["x-penstock-reason"]) == ("Bearer", reason)
            assert json.loads(response.denied_response.body)["error"]["code"] == "invalid_api_key"
            assert dict(response.dynamic_metadata) == {"reason": reason}


async def test_a_stranger_over_grpc_receives_a_status_with_its_reason():
    async with auth_process() as found:
        response = await found.check(check_request(UNKNOWN, content_type="application/grpc+proto"))
        assert headers_of(response)["grpc-status"] == "16"
        assert response.denied_response.body == "this API key is unknown"
        status, info = status_of(response), ErrorInfo()
        status.details[0].Unpack(info)
        assert (status.code, info.reason) == (16, "KEY_UNKNOWN")


async def test_a_guesser_is_told_when_to_come_back_and_never_reaches_the_store():
    async with auth_process(failures_per_source=3) as found:
        for number in range(3):
            await found.check(check_request(f"pk_dev_{number:026d}"))
        limited = await found.check(check_request(DEV_KEY))
        assert (limited.status.code, limited.denied_response.status.code) == (8, 429)
        assert headers_of(limited)["retry-after"] == "20"
        limited = await found.check(check_request(DEV_KEY, content_type="application/grpc"))
        assert headers_of(limited)["grpc-status"] == "8"
        retry = RetryInfo()
        status_of(limited).details[1].Unpack(retry)
        assert retry.retry_delay.seconds == 20
        assert (await found.check(check_request(DEV_KEY, source="127.0.0.1"))).status.code == 0
        assert found.figures["store_pending"] == 0


async def test_a_revoked_key_passes_no_more():
    async with auth_process() as found:
        key = (await tenant_with_key(found)).bearer
        assert (await found.check(check_request(key))).status.code == 0
        await found.admin.RevokeKey(pb.RevokeKeyRequest(key_id=key.split("_")[1]))
        response = await found.check(check_request(key))
        assert headers_of(response)["x-penstock-reason"] == "KEY_REVOKED"


async def test_bytes_that_are_no_check_do_not_pass():
    async with auth_process() as found:
        raw = found.check
        raw._request_serializer = None
        response = await raw(b"\xff" * 40)
        assert (response.status.code, response.denied_response.status.code) == (13, 500)


@pytest.mark.parametrize(
    ("proxy", "source", "forwarded", "expected"),
    [
        (LOCAL_PROXY, "127.0.0.1", "127.0.0.1", True),
        (LOCAL_PROXY, "127.0.0.1", None, True),
        (LOCAL_PROXY, "203.0.113.9", "127.0.0.1", False),
        (LOCAL_PROXY, "127.0.0.1", "203.0.113.9, 127.0.0.1", False),
        (OTHER_PROXY, "127.0.0.1", "127.0.0.1", False),
        (LOCAL_PROXY, "", "127.0.0.1", False),
    ],
)
def test_loopback_needs_the_proxy_its_client_and_every_hop_on_this_host(proxy, source, forwarded, expected):
    more = {"x_forwarded_for": forwarded} if forwarded else {}
    assert caller_of(check_request("k", source, **more), proxy, trusted_hops=0).loopback is expected


@pytest.mark.parametrize(
    ("hops", "source"), [(0, "10.0.0.1"), (1, "192.0.2.2"), (2, "192.0.2.1"), (3, "198.51.100.1"), (9, "198.51.100.1")]
)
def test_the_source_is_behind_the_proxies_that_are_trusted(hops, source):
    listed = "198.51.100.1, 192.0.2.1, 192.0.2.2, 10.0.0.1"  # the last is the client of Envoy
    request = check_request("k", "10.0.0.1", x_forwarded_for=listed)
    assert caller_of(request, OTHER_PROXY, trusted_hops=hops).source == source


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
    answer, expected = responses.denied(error, is_grpc=False), http_error(error)
    assert answer.denied_response.status.code == expected.status
    assert headers_of(answer) == dict(expected.headers)
    assert json.loads(answer.denied_response.body) == json.loads(expected.body)


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
    for module in (door, service):
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
