"""Edges that identify callers, reserve, settle and report fallback admissions, over a real server."""

import asyncio

import grpc
import pytest

from auth_server import (
    DEV_KEY,
    auth_process,
    edge,
    rejection_of,
    tenant_use,
    tenant_with_key,
)
from penstock.auth import service
from penstock.chassis.streams.endpoint import StreamEndpoint
from penstock.mesh.v1.admission_pb2 import Credential, FallbackAdmission
from penstock.v1 import admin_pb2 as pb
from penstock.v1.inference_pb2 import PRIORITY_BATCH, PRIORITY_INTERACTIVE, PRIORITY_STANDARD


async def test_a_request_is_identified_reserved_and_settled():
    async with auth_process() as found, edge(found) as stream:
        admitted = await stream.reserve()
        assert admitted.request_id == "request-1"
        assert (admitted.identity.tenant_id, admitted.identity.key_id) == ("default", "dev")
        assert admitted.identity.priority == PRIORITY_STANDARD
        assert len(admitted.identity.cache_salt) == 16
        held = await tenant_use(found)
        assert (held.concurrent_requests, held.reserved_tokens) == (1, 30)
        assert (await stream.settle(admitted.reservation_id)).reservation_id == admitted.reservation_id
        used = await tenant_use(found)
        assert (used.concurrent_requests, used.reserved_tokens) == (0, 0)
        assert (used.prompt_tokens, used.output_tokens, used.requests) == (10, 7, 1)


async def test_only_the_confirmation_of_a_settlement_may_be_delayed(monkeypatch):
    delays, send = {}, StreamEndpoint.send

    def record(endpoint, frame, *, max_delay_s=0.0):
        delays[frame.WhichOneof("frame")] = max_delay_s
        return send(endpoint, frame, max_delay_s=max_delay_s)

    monkeypatch.setattr(StreamEndpoint, "send", record)
    async with auth_process() as found, edge(found) as stream:
        await stream.settle((await stream.reserve()).reservation_id)
    assert (delays["settled"], delays["admitted"]) == (service.CONFIRMATION_DELAY_S, 0.0)


async def test_reserving_and_settling_are_idempotent():
    async with auth_process() as found, edge(found) as stream:
        first, again = await stream.reserve(), await stream.reserve()
        assert first.reservation_id == again.reservation_id
        await stream.settle(first.reservation_id)
        assert (await stream.settle(first.reservation_id)).reservation_id == first.reservation_id
        assert (await tenant_use(found)).requests == 1


async def test_an_unknown_reservation_is_settled_without_a_charge():
    async with auth_process() as found, edge(found) as stream:
        assert (await stream.settle("unknown")).reservation_id == "unknown"
        assert (await tenant_use(found)).requests == 0


@pytest.mark.parametrize(
    ("bearer", "loopback", "reason"),
    [
        ("", True, "KEY_MISSING"),
        ("pk_dev_" + "f" * 32, True, "KEY_UNKNOWN"),
        ("Robert'); DROP TABLE keys;--", True, "KEY_UNKNOWN"),
        (DEV_KEY, False, "LOOPBACK_ONLY"),
    ],
)
async def test_a_bad_key_is_rejected_by_identify_and_reserve(bearer, loopback, reason):
    credential = Credential(bearer=bearer, loopback=loopback)
    async with auth_process() as found, edge(found) as stream:
        assert rejection_of(await stream.identify(credential)).reason == reason
        rejected = await stream.reserve(credential=credential)
        assert (rejected.request_id, rejection_of(rejected).reason) == ("request-1", reason)
        assert found.figures["reservations"] == 0


async def test_identify_spends_nothing():
    async with auth_process() as found, edge(found) as stream:
        answer = await stream.identify(stream.credential)
        assert (answer.request_id, answer.identity.tenant_id) == ("identify-1", "default")
        assert found.figures["reserved_tokens"] == 0


async def test_a_tenant_over_its_limit_is_rejected_with_limit_and_retry_time():
    async with auth_process() as found, edge(found) as stream:
        credential = await tenant_with_key(found, tokens_per_minute=60)
        await stream.reserve("request-1", 10, 50, credential=credential)
        error = rejection_of(await stream.reserve("request-2", 10, 20, credential=credential))
        assert (error.reason, error.retry_after) == ("QUOTA_EXCEEDED", 30.0)
        [violation] = error.quota_violations
        assert (violation.subject, violation.description) == ("tenant:acme", "60 tokens per minute, 30 requested")
        assert (await stream.reserve("request-3", 10, 20)).identity.tenant_id == "default"
        found.clock.now += 30.0
        assert (await stream.reserve("request-2", 10, 20, credential=credential)).reservation_id


def admission_of(admitted, **more):
    """The fields of a reservation that an edge admitted under the grant of an earlier one."""
    grant, key_id = admitted.fallback_grant, admitted.identity.key_id
    return {"credential": None, "fallback_admission": FallbackAdmission(**{"key_id": key_id, "grant": grant} | more)}


async def test_a_fallback_admission_is_reserved_regardless_of_limits_and_key():
    async with auth_process(fallback_share=1.0) as found, edge(found) as stream:
        credential = await tenant_with_key(found, tokens_per_minute=130, concurrent_requests=2)
        held = await stream.reserve("request-1", 10, 50, credential=credential)
        assert (held.fallback_tokens, held.fallback_grant_time_left_nanos) == (70, 1_800 * 10**9)
        await found.admin.RevokeKey(pb.RevokeKeyRequest(key_id=held.identity.key_id))
        recorded = await stream.reserve("request-2", 10, 60, **admission_of(held))
        again = await stream.reserve("request-2", 10, 60, **admission_of(held))
        assert recorded.reservation_id == again.reservation_id
        await stream.settle(recorded.reservation_id, 10, 50, "length")
        used = await tenant_use(found, "acme")
        assert (used.prompt_tokens, used.output_tokens, used.concurrent_requests) == (10, 50, 1)


async def test_a_fallback_admission_of_a_reserved_request_is_one_reservation():
    async with auth_process() as found, edge(found) as stream:
        first = await stream.reserve()
        by_fallback = await stream.reserve(**admission_of(first))
        assert by_fallback.reservation_id == first.reservation_id


async def test_a_key_is_named_only_by_the_edge_that_auth_granted_it_and_with_the_grant():
    async with auth_process() as found, edge(found) as stream, edge(found, "edge-2") as other:
        credential = await tenant_with_key(found)
        admitted = await stream.reserve()
        victim = await stream.reserve("request-2", credential=credential)
        forged = [
            *({"grant": b""}, {"grant": b"\1" * 45}, {"grant": victim.fallback_grant[:-1]}),
            *({"key_id": victim.identity.key_id}, {"key_id": "unknown"}),
        ]
        for each in forged:
            rejected = await stream.reserve("request-3", **admission_of(admitted, **each))
            assert rejection_of(rejected).reason == "GRANT_INVALID"
        rejected = await other.reserve("request-3", **admission_of(victim))
        assert rejection_of(rejected).reason == "GRANT_INVALID"
        assert found.figures["invalid_grants"] == 6
        assert (await stream.reserve("request-3", **admission_of(victim))).reservation_id


async def test_no_edge_spends_more_than_its_grant_also_after_a_restart_of_auth(tmp_path):
    settings = {"fallback_tokens": 100}
    async with auth_process(tmp_path / "auth.sqlite", **settings) as found, edge(found) as stream:
        admitted = await stream.reserve("request-1")
        assert (await stream.reserve("request-2", 10, 50, **admission_of(admitted))).reservation_id
        rejected = await stream.reserve("request-3", 1, 40, **admission_of(admitted))
        assert rejection_of(rejected).reason == "GRANT_INVALID"
    async with auth_process(tmp_path / "auth.sqlite", **settings) as found, edge(found) as stream:
        rejected = await stream.reserve("request-3", 1, 40, **admission_of(admitted))
        assert rejection_of(rejected).reason == "GRANT_INVALID"
        assert (await stream.reserve("request-3", 1, 39, **admission_of(admitted))).reservation_id
        ended = await stream.reserve("request-2", 10, 50, **admission_of(admitted, used_tokens=20))
        assert (await stream.reserve("request-4", 20, 20, **admission_of(admitted))).reservation_id
        await stream.settle(ended.reservation_id, 10, 50)  # more than it reported before
        used = await tenant_use(found)
        assert (used.prompt_tokens, used.output_tokens) == (10, 10)


async def test_edges_without_grants_are_served_only_if_a_setting_allows_it():
    admission = {"credential": None, "fallback_admission": FallbackAdmission(key_id="dev")}
    async with auth_process() as found, edge(found) as stream:
        error = rejection_of(await stream.reserve(**admission))
        assert (error.code, error.reason) == (grpc.StatusCode.PERMISSION_DENIED, "GRANT_INVALID")
        assert "PENSTOCK_AUTH_ACCEPT_UNGRANTED_FALLBACK" in error.message
    async with auth_process(accept_ungranted_fallback=True) as found, edge(found) as stream:
        assert (await stream.reserve(**admission)).reservation_id
        unknown = await stream.reserve("request-2", **admission | {"fallback_admission": FallbackAdmission(key_id="x")})
        assert rejection_of(unknown).reason == "KEY_UNKNOWN"


async def test_a_fallback_grant_is_a_share_of_the_remaining_tokens():
    async with auth_process(fallback_share=0.5) as found, edge(found) as stream:
        credential = await tenant_with_key(found, tokens_per_minute=1_000, requests_per_minute=3)
        assert (await stream.reserve("request-1", 100, 100, credential=credential)).fallback_tokens == 400
        async with edge(found, "edge-2"):
            assert (await stream.reserve("request-2", 100, 100, credential=credential)).fallback_tokens == 150
            at_its_limit = await stream.reserve("request-3", 1, 1, credential=credential)
            assert at_its_limit.fallback_tokens == 0  # the requests of this minute are used up


async def test_a_tenant_without_a_token_limit_gets_the_configured_fallback_grant():
    async with auth_process(fallback_tokens=77) as found, edge(found) as stream:
        assert (await stream.reserve("request-1")).fallback_tokens == 77
        credential = await tenant_with_key(found, concurrent_requests=2)
        assert (await stream.reserve("request-2", credential=credential)).fallback_tokens == 77
        assert (await stream.reserve("request-3", credential=credential)).fallback_tokens == 0


async def test_unused_tokens_can_be_reserved_at_once():
    async with auth_process() as found, edge(found) as stream:
        credential = await tenant_with_key(found, tokens_per_minute=60, concurrent_requests=1)
        first = await stream.reserve("request-1", 10, 50, credential=credential)
        await stream.settle(first.reservation_id, prompt=0, output=0, outcome="shed")
        assert (await stream.reserve("request-2", 10, 50, credential=credential)).reservation_id


async def test_the_class_is_the_lower_of_the_tenants_and_the_requested_one():
    async with auth_process() as found, edge(found) as stream:
        raised = await stream.reserve("request-1", priority=PRIORITY_INTERACTIVE)
        lowered = await stream.reserve("request-2", priority=PRIORITY_BATCH)
        assert (raised.identity.priority, lowered.identity.priority) == (PRIORITY_STANDARD, PRIORITY_BATCH)


async def test_a_reserve_is_a_span_of_the_callers_trace(receiver):
    trace_id = "5b8aa5a2d2c872e8321cf37308d69df2"
    async with auth_process() as found, edge(found) as stream:
        await stream.reserve(traceparent=f"00-{trace_id}-051581bf3cb55c13-01")
        await stream.reserve("request-2", credential=Credential(), traceparent=f"00-{trace_id}-051581bf3cb55c13-01")
    receiver.wait_for_spans("auth.reserve", "auth.reserve", trace_id=trace_id)
    async with asyncio.timeout(10):
        while len(receiver.spans(trace_id=trace_id)) < 2:
            await asyncio.to_thread(receiver.wait_for_export)
    admitted, rejected = receiver.spans(trace_id=trace_id)
    assert admitted.parent_id == "051581bf3cb55c13"
    assert admitted.attributes["penstock.tenant_id"] == "default"
    assert rejected.attributes["penstock.reason"] == "KEY_MISSING"


async def test_a_trace_that_is_not_recorded_costs_no_span(receiver):
    trace_id = "6b8aa5a2d2c872e8321cf37308d69df2"
    async with auth_process() as found, edge(found) as stream:
        await stream.reserve("request-1", traceparent=f"00-{trace_id}-051581bf3cb55c13-00")
        await stream.reserve("request-2", traceparent=f"00-{trace_id}-051581bf3cb55c13-01")
    receiver.wait_for_spans("auth.reserve", trace_id=trace_id)
    [span] = receiver.spans(trace_id=trace_id)
    assert span.attributes["penstock.request_id"] == "request-2"
