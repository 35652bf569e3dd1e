"""Auth over a real server: edges that reserve, settle, reconnect and vanish; operators that make keys and tenants."""

import asyncio
import json
import math
import os
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from structlog.testing import capture_logs

from penstock.auth import rows, service
from penstock.auth.admin import AuthAdmin
from penstock.auth.config import AuthConfig
from penstock.auth.opening import expected_edges, open_desk
from penstock.auth.service import AdmissionService
from penstock.auth.sqlite_store import opened_store
from penstock.chassis.channels import channel
from penstock.chassis.config import ConfigError, load
from penstock.chassis.errors import error_from_failure, error_from_rpc
from penstock.chassis.server import serving
from penstock.mesh.v1.admission_pb2 import AdmitRequest, Credential, Identify, Reserve, Settle, Vouch
from penstock.mesh.v1.admission_pb2_grpc import AdmissionServiceStub, add_AdmissionServiceServicer_to_server
from penstock.v1 import admin_pb2 as pb
from penstock.v1.admin_pb2_grpc import AdminStub
from penstock.v1.inference_pb2 import PRIORITY_BATCH, PRIORITY_INTERACTIVE, PRIORITY_STANDARD
from penstock.v1.stream_pb2 import Hello

DEV_KEY = "pk_dev_" + "0123456789abcdef" * 2
START = 1_800_000_000.0  # s
SECRETS = {"pepper": "p" * 32, "mesh_secret": "m" * 32}


@dataclass
class Clock:
    now: float = START

    def __call__(self) -> float:
        return self.now


@dataclass
class Auth:
    """One auth process, as its edges and operators see it."""

    service: AdmissionService
    address: str
    clock: Clock
    admin: AdminStub
    stub: AdmissionServiceStub

    @property
    def figures(self) -> dict[str, float]:
        return self.service.figures


@asynccontextmanager
async def auth(path=":memory:", *, clock=None, **settings):
    clock = clock or Clock()
    config = AuthConfig(listen="127.0.0.1:0", store=str(path), dev_key=DEV_KEY, **SECRETS, **settings)
    async with opened_store(config.store) as (store, books):
        desk = open_desk(config, books, clock())
        hello = Hello(protocol=1, instance_id="auth-1", tier="auth")
        served = AdmissionService(desk, expected_edges(config, desk, clock()), store, hello, clock)
        admin = AuthAdmin("auth-1", desk, store, clock, lambda: served.figures, token="")
        sweeping = asyncio.create_task(served.sweep())
        async with (
            serving(config.listen, [(add_AdmissionServiceServicer_to_server, served)], admin=admin) as server,
            channel(server.address) as to_auth,
        ):
            yield Auth(served, server.address, clock, AdminStub(to_auth), AdmissionServiceStub(to_auth))
            await served.send_away()
        sweeping.cancel()


@dataclass
class Edge:
    """One stream of an edge; answers come in the order auth gives them."""

    call: object
    instance_id: str = "edge-1"
    credential: Credential = field(default_factory=lambda: Credential(bearer=DEV_KEY, loopback=True))

    async def say(self, **frame):
        await self.call.write(AdmitRequest(**frame))

    async def hear(self):
        while True:
            frame = await self.call.read()
            assert frame is not grpc.aio.EOF
            kind = frame.WhichOneof("frame")
            if kind != "heartbeat":
                return getattr(frame, kind)

    async def reserve(self, request_id="request-1", prompt=10, output=20, **more):
        ask = {"credential": self.credential, **more}
        await self.say(
            reserve=Reserve(request_id=request_id, prompt_tokens=prompt, max_output_tokens=output, model="m", **ask)
        )
        return await self.hear()

    async def settle(self, reservation_id, prompt=10, output=7, outcome="stop"):
        await self.say(
            settle=Settle(reservation_id=reservation_id, prompt_tokens=prompt, output_tokens=output, outcome=outcome)
        )
        return await self.hear()

    async def identify(self, credential, request_id="identify-1"):
        await self.say(identify=Identify(request_id=request_id, credential=credential))
        return await self.hear()


@asynccontextmanager
async def edge(found: Auth, instance_id="edge-1"):
    call = found.stub.Admit()
    edge = Edge(call, instance_id)
    await edge.say(hello=Hello(protocol=1, instance_id=instance_id, tier="edge"))
    assert (await edge.hear()).tier == "auth"
    try:
        yield edge
    finally:
        call.cancel()


async def figure(found: Auth, name: str, value: float) -> None:
    """Return when a figure has come to `value`."""
    async with asyncio.timeout(10):
        while found.figures[name] != value:  # noqa: ASYNC110  # a figure is asked, it does not tell
            await asyncio.sleep(0)


async def use_of(found: Auth, tenant_id="default") -> pb.TenantUse:
    listed = await found.admin.ListTenants(pb.ListTenantsRequest())
    return next(each for each in listed.uses if each.tenant_id == tenant_id)


def refusal_of(answer):
    return error_from_failure(answer.failure)


async def test_a_request_is_identified_reserved_and_settled():
    async with auth() as found, edge(found) as stream:
        admitted = await stream.reserve()
        assert admitted.request_id == "request-1"
        assert (admitted.identity.tenant_id, admitted.identity.key_id) == ("default", "dev")
        assert admitted.identity.priority == PRIORITY_STANDARD
        assert len(admitted.identity.cache_salt) == 16
        assert admitted.expire_time.ToMicroseconds() == (START + 3_600) * 1e6
        held = await use_of(found)
        assert (held.concurrent_requests, held.reserved_tokens) == (1, 30)
        assert (await stream.settle(admitted.reservation_id)).reservation_id == admitted.reservation_id
        used = await use_of(found)
        assert (used.concurrent_requests, used.reserved_tokens) == (0, 0)
        assert (used.prompt_tokens, used.output_tokens, used.requests) == (10, 7, 1)


async def test_asking_again_gives_the_same_reservation_and_settling_again_charges_once():
    async with auth() as found, edge(found) as stream:
        first, again = await stream.reserve(), await stream.reserve()
        assert first.reservation_id == again.reservation_id
        await stream.settle(first.reservation_id)
        assert (await stream.settle(first.reservation_id)).reservation_id == first.reservation_id
        assert (await use_of(found)).requests == 1


async def test_an_unknown_reservation_is_settled_without_a_charge():
    async with auth() as found, edge(found) as stream:
        assert (await stream.settle("nobody-knows-it")).reservation_id == "nobody-knows-it"
        assert (await use_of(found)).requests == 0


@pytest.mark.parametrize(
    ("bearer", "loopback", "reason"),
    [
        ("", True, "KEY_MISSING"),
        ("pk_dev_" + "f" * 32, True, "KEY_UNKNOWN"),
        ("Robert'); DROP TABLE keys;--", True, "KEY_UNKNOWN"),
        (DEV_KEY, False, "LOOPBACK_ONLY"),
    ],
)
async def test_who_shows_no_good_key_is_refused_for_identify_and_reserve_alike(bearer, loopback, reason):
    credential = Credential(bearer=bearer, loopback=loopback)
    async with auth() as found, edge(found) as stream:
        assert refusal_of(await stream.identify(credential)).reason == reason
        refused = await stream.reserve(credential=credential)
        assert (refused.request_id, refusal_of(refused).reason) == ("request-1", reason)
        assert found.figures["reservations"] == 0


async def test_identify_spends_nothing():
    async with auth() as found, edge(found) as stream:
        answer = await stream.identify(stream.credential)
        assert (answer.request_id, answer.identity.tenant_id) == ("identify-1", "default")
        assert found.figures["reserved_tokens"] == 0


async def test_a_tenant_over_its_limit_hears_which_and_when_and_others_do_not():
    async with auth() as found, edge(found) as stream:
        credential = await tenant_with_key(found, tokens_per_minute=60)
        await stream.reserve("request-1", 10, 50, credential=credential)
        error = refusal_of(await stream.reserve("request-2", 10, 20, credential=credential))
        assert (error.reason, error.retry_after) == ("QUOTA_EXCEEDED", 30.0)
        [violation] = error.quota_violations
        assert (violation.subject, violation.description) == ("tenant:acme", "60 tokens per minute, 30 asked")
        assert (await stream.reserve("request-3", 10, 20)).identity.tenant_id == "default"
        found.clock.now += 30.0
        assert (await stream.reserve("request-2", 10, 20, credential=credential)).reservation_id


async def test_what_an_edge_vouches_for_is_booked_whatever_the_limits_and_the_key_have_come_to():
    async with auth() as found, edge(found) as stream:
        credential = await tenant_with_key(found, tokens_per_minute=60, concurrent_requests=1)
        held = await stream.reserve("request-1", 10, 50, credential=credential)
        await found.admin.RevokeKey(pb.RevokeKeyRequest(key_id=held.identity.key_id))
        vouch = Vouch(key_id=held.identity.key_id)
        booked = await stream.reserve("request-2", 10, 50, credential=None, vouch=vouch)
        again = await stream.reserve("request-2", 10, 50, credential=None, vouch=vouch)
        assert booked.reservation_id == again.reservation_id
        await stream.settle(booked.reservation_id, 10, 50, "length")
        used = await use_of(found, "acme")
        assert (used.prompt_tokens, used.output_tokens, used.concurrent_requests) == (10, 50, 1)


async def test_what_was_reserved_and_then_vouched_for_is_one_reservation():
    async with auth() as found, edge(found) as stream:
        asked = await stream.reserve()
        vouched = await stream.reserve(credential=None, vouch=Vouch(key_id=asked.identity.key_id))
        assert vouched.reservation_id == asked.reservation_id


async def test_a_vouch_for_a_key_that_never_was_is_refused():
    async with auth() as found, edge(found) as stream:
        refused = await stream.reserve(credential=None, vouch=Vouch(key_id="nobody"))
        assert refusal_of(refused).reason == "KEY_UNKNOWN"


async def test_a_grant_for_when_auth_is_away_is_a_share_of_what_the_limits_leave_over_all_edges():
    async with auth(grace_share=0.5) as found, edge(found) as stream:
        credential = await tenant_with_key(found, tokens_per_minute=1_000, requests_per_minute=3)
        assert (await stream.reserve("request-1", 100, 100, credential=credential)).grace_tokens == 400
        async with edge(found, "edge-2"):
            assert (await stream.reserve("request-2", 100, 100, credential=credential)).grace_tokens == 150
            at_its_limit = await stream.reserve("request-3", 1, 1, credential=credential)
            assert at_its_limit.grace_tokens == 0  # no request is left in this minute


async def test_a_tenant_without_a_limit_on_tokens_is_granted_what_the_operator_set():
    async with auth(grace_tokens=77) as found, edge(found) as stream:
        assert (await stream.reserve("request-1")).grace_tokens == 77
        credential = await tenant_with_key(found, concurrent_requests=2)
        assert (await stream.reserve("request-2", credential=credential)).grace_tokens == 77
        assert (await stream.reserve("request-3", credential=credential)).grace_tokens == 0


async def test_what_was_not_used_can_be_reserved_again_at_once():
    async with auth() as found, edge(found) as stream:
        credential = await tenant_with_key(found, tokens_per_minute=60, concurrent_requests=1)
        first = await stream.reserve("request-1", 10, 50, credential=credential)
        await stream.settle(first.reservation_id, prompt=0, output=0, outcome="shed")
        assert (await stream.reserve("request-2", 10, 50, credential=credential)).reservation_id


async def test_a_class_is_the_lower_of_the_tenants_and_the_one_asked_for():
    async with auth() as found, edge(found) as stream:
        raised = await stream.reserve("request-1", priority=PRIORITY_INTERACTIVE)
        lowered = await stream.reserve("request-2", priority=PRIORITY_BATCH)
        assert (raised.identity.priority, lowered.identity.priority) == (PRIORITY_STANDARD, PRIORITY_BATCH)


async def test_a_revoked_key_is_refused_at_once():
    async with auth() as found, edge(found) as stream:
        made = await found.admin.CreateKey(pb.CreateKeyRequest(tenant_id="default", display_name="for Anna"))
        credential = Credential(bearer=made.secret)
        assert (await stream.identify(credential)).identity.key_id == made.key.key_id
        revoked = (await found.admin.RevokeKey(pb.RevokeKeyRequest(key_id=made.key.key_id))).key
        assert revoked.HasField("revoke_time")
        assert refusal_of(await stream.identify(credential)).reason == "KEY_REVOKED"
        again = (await found.admin.RevokeKey(pb.RevokeKeyRequest(key_id=made.key.key_id))).key
        assert again == revoked


async def test_a_key_with_a_ttl_ends():
    async with auth() as found, edge(found) as stream:
        request = pb.CreateKeyRequest(tenant_id="default")
        request.ttl.FromSeconds(60)
        credential = Credential(bearer=(await found.admin.CreateKey(request)).secret)
        assert (await stream.identify(credential)).identity.tenant_id == "default"
        found.clock.now += 60.0
        assert refusal_of(await stream.identify(credential)).reason == "KEY_EXPIRED"


async def test_keys_are_listed_without_their_secrets():
    async with auth() as found:
        made = await found.admin.CreateKey(pb.CreateKeyRequest(tenant_id="default", display_name="for Anna"))
        listed = (await found.admin.ListKeys(pb.ListKeysRequest())).keys
        assert {(each.key_id, each.loopback_only) for each in listed} == {("dev", True), (made.key.key_id, False)}
        assert made.secret.split("_")[2] not in str(listed)
        assert list((await found.admin.ListKeys(pb.ListKeysRequest(tenant_id="nobody"))).keys) == []


async def test_tenants_are_stored_with_their_defaults_filled_in():
    async with auth() as found:
        put = await found.admin.PutTenant(pb.PutTenantRequest(tenant=pb.Tenant(tenant_id="acme")))
        assert (put.tenant.priority, put.tenant.weight) == (PRIORITY_STANDARD, 1.0)
        listed = await found.admin.ListTenants(pb.ListTenantsRequest())
        assert [each.tenant_id for each in listed.tenants] == ["acme", "default"]
        assert [each.tenant_id for each in listed.uses] == ["acme", "default"]


@pytest.mark.parametrize(
    ("tenant", "field_name"),
    [
        (pb.Tenant(tenant_id="Acme"), "tenant.tenant_id"),
        (pb.Tenant(tenant_id=""), "tenant.tenant_id"),
        (pb.Tenant(tenant_id="a" * 64), "tenant.tenant_id"),
        (pb.Tenant(tenant_id="acme", weight=-1.0), "tenant.weight"),
        (pb.Tenant(tenant_id="acme", weight=math.nan), "tenant.weight"),
        (pb.Tenant(tenant_id="acme", weight=1_001.0), "tenant.weight"),
        (pb.Tenant(tenant_id="acme", priority=9), "tenant.priority"),
        (pb.Tenant(tenant_id="acme", tokens_per_minute=2**63), "tenant.tokens_per_minute"),
    ],
)
async def test_a_wrong_tenant_is_refused_with_the_field(tenant, field_name):
    async with auth() as found:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await found.admin.PutTenant(pb.PutTenantRequest(tenant=tenant))
        error = error_from_rpc(failure.value)
        assert [each.field for each in error.field_violations] == [field_name]


@pytest.mark.parametrize(
    ("call", "request_message", "reason"),
    [
        ("CreateKey", pb.CreateKeyRequest(tenant_id="nobody"), "TENANT_UNKNOWN"),
        ("CreateKey", pb.CreateKeyRequest(tenant_id="default", display_name="ä" * 65), "INVALID_ARGUMENT"),
        ("CreateKey", pb.CreateKeyRequest(tenant_id="default", ttl=Duration(seconds=-1)), "INVALID_ARGUMENT"),
        ("CreateKey", pb.CreateKeyRequest(tenant_id="default", ttl=Duration(seconds=2**63 - 1)), "INVALID_ARGUMENT"),
        ("RevokeKey", pb.RevokeKeyRequest(key_id="nobody"), "KEY_UNKNOWN"),
    ],
)
async def test_administration_of_what_does_not_exist_or_cannot_be_is_refused(call, request_message, reason):
    async with auth() as found:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await getattr(found.admin, call)(request_message)
        assert error_from_rpc(failure.value).reason == reason


async def test_an_edge_that_reconnects_within_the_grace_keeps_its_reservations(monkeypatch):
    monkeypatch.setattr(service, "SWEEP", 0.001)
    async with auth(edge_grace=30.0) as found:
        async with edge(found) as stream:
            admitted = await stream.reserve()
        await figure(found, "edges", 0)
        found.clock.now += 29.0
        async with edge(found) as stream:
            found.clock.now += 60.0
            assert (await stream.reserve()).reservation_id == admitted.reservation_id
            await stream.settle(admitted.reservation_id)
        assert (await use_of(found)).output_tokens == 7


async def test_an_edge_that_stays_away_loses_its_reservations_and_may_correct_the_charge(monkeypatch):
    monkeypatch.setattr(service, "SWEEP", 0.001)
    async with auth(edge_grace=30.0) as found, edge(found, "edge-2") as other:
        kept = await other.reserve("request-2")
        async with edge(found) as stream:
            admitted = await stream.reserve()
        await figure(found, "edges", 1)
        found.clock.now += 30.0
        await figure(found, "reservations", 1)
        assert (await use_of(found)).output_tokens == 0
        async with edge(found) as stream:
            await stream.settle(admitted.reservation_id)
        used = await use_of(found)
        assert (used.output_tokens, used.requests, used.concurrent_requests) == (7, 1, 1)
        assert (await other.settle(kept.reservation_id)).reservation_id == kept.reservation_id


async def test_what_is_never_settled_lapses(monkeypatch):
    monkeypatch.setattr(service, "SWEEP", 0.001)
    async with auth(reservation_ttl=10.0) as found, edge(found) as stream:
        await stream.reserve()
        with capture_logs() as logs:
            found.clock.now += 10.0
            await figure(found, "reservations", 0)
        assert [each["event"] for each in logs] == ["reservation_lapsed"]


async def test_reservations_keys_and_use_go_on_after_a_restart(tmp_path):
    clock = Clock()
    async with auth(tmp_path / "auth.sqlite", clock=clock) as found, edge(found) as stream:
        credential = await tenant_with_key(found, tokens_per_minute=60)
        salt = (await stream.identify(credential)).identity.cache_salt
        done = await stream.reserve("request-0", 5, 5, credential=credential)
        await stream.settle(done.reservation_id, 5, 5)
        open_one = await stream.reserve("request-1", 10, 40, credential=credential)
    async with auth(tmp_path / "auth.sqlite", clock=clock) as found, edge(found) as stream:
        assert found.figures["reservations"] == 1
        again = await stream.reserve("request-1", 10, 40, credential=credential)
        assert again.reservation_id == open_one.reservation_id
        assert again.identity.cache_salt == salt
        assert refusal_of(await stream.reserve("request-2", 0, 1, credential=credential)).retry_after == 1.0
        await stream.settle(open_one.reservation_id, 10, 40)
        assert (await stream.settle(done.reservation_id)).reservation_id == done.reservation_id
        used = await use_of(found, "acme")
        assert (used.prompt_tokens, used.output_tokens, used.requests) == (15, 45, 2)


async def test_an_edge_that_does_not_come_back_after_a_restart_is_lost_too(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "SWEEP", 0.001)
    clock = Clock()
    async with auth(tmp_path / "auth.sqlite", clock=clock) as found, edge(found) as stream:
        await stream.reserve()
    async with auth(tmp_path / "auth.sqlite", clock=clock, edge_grace=30.0) as found:
        assert found.figures["reservations"] == 1
        clock.now += 30.0
        await figure(found, "reservations", 0)


async def test_a_reservation_that_cannot_be_written_is_refused_and_holds_nothing(monkeypatch):
    async with auth() as found, edge(found) as stream:
        with monkeypatch.context() as patch:
            patch.setattr(rows, "apply", disk_is_full)
            error = refusal_of(await stream.reserve())
        assert (error.reason, error.retry_after) == ("STORE_UNAVAILABLE", 1.0)
        assert found.figures["reserved_tokens"] == 0
        assert (await stream.reserve()).reservation_id


async def test_a_key_that_cannot_be_written_is_not_given_out(monkeypatch):
    async with auth() as found:
        monkeypatch.setattr(rows, "apply", disk_is_full)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await found.admin.CreateKey(pb.CreateKeyRequest(tenant_id="default"))
        assert error_from_rpc(failure.value).reason == "STORE_UNAVAILABLE"
        assert found.figures["keys"] == 1


async def test_edges_are_told_to_leave_after_the_answers_they_wait_for():
    async with auth() as found, edge(found) as stream:
        await stream.say(reserve=Reserve(request_id="request-1", credential=stream.credential, prompt_tokens=1))
        await figure(found, "reservations", 1)
        await found.service.send_away()
        assert (await stream.hear()).request_id == "request-1"
        assert (await stream.hear()).reason == "draining"


async def test_a_reserve_is_a_span_of_the_callers_trace(receiver):
    trace_id = "5b8aa5a2d2c872e8321cf37308d69df2"
    async with auth() as found, edge(found) as stream:
        await stream.reserve(traceparent=f"00-{trace_id}-051581bf3cb55c13-01")
        await stream.reserve("request-2", credential=Credential(), traceparent=f"00-{trace_id}-051581bf3cb55c13-01")
    receiver.wait_for_spans("auth.reserve", "auth.reserve", trace_id=trace_id)
    async with asyncio.timeout(10):
        while len(receiver.spans(trace_id=trace_id)) < 2:
            await asyncio.to_thread(receiver.wait_for_export)
    admitted, refused = receiver.spans(trace_id=trace_id)
    assert admitted.parent_id == "051581bf3cb55c13"
    assert admitted.attributes["penstock.tenant_id"] == "default"
    assert refused.attributes["penstock.reason"] == "KEY_MISSING"


async def test_a_trace_that_is_not_recorded_costs_no_span(receiver):
    trace_id = "6b8aa5a2d2c872e8321cf37308d69df2"
    async with auth() as found, edge(found) as stream:
        await stream.reserve("request-1", traceparent=f"00-{trace_id}-051581bf3cb55c13-00")
        await stream.reserve("request-2", traceparent=f"00-{trace_id}-051581bf3cb55c13-01")
    receiver.wait_for_spans("auth.reserve", trace_id=trace_id)
    [span] = receiver.spans(trace_id=trace_id)
    assert span.attributes["penstock.request_id"] == "request-2"


@pytest.mark.parametrize("key", ["dev", "pk_dev_short", "sk-1234567890123456789012345678"])
def test_a_dev_key_that_is_none_stops_the_start(key):
    with pytest.raises(ConfigError, match="pk_ID_SECRET"):
        load(AuthConfig, "auth", {"PENSTOCK_AUTH_DEV_KEY": key})


def test_secrets_are_not_shown_with_the_settings():
    config = AuthConfig(dev_key=DEV_KEY, **SECRETS)
    assert not any(secret in repr(config) for secret in (DEV_KEY, *SECRETS.values()))


async def test_the_process_keeps_its_books_over_a_kill_and_drains_with_status_0(tmp_path):
    """What it admitted is there after SIGKILL, its secrets too; SIGTERM ends it in order."""
    async with auth_process(tmp_path) as (process, found), edge(found) as stream:
        made = await found.admin.CreateKey(pb.CreateKeyRequest(tenant_id="default"))
        admitted = await stream.reserve(credential=Credential(bearer=made.secret))
        process.kill()
        await process.wait()
    async with auth_process(tmp_path) as (process, found), edge(found) as stream:
        again = await stream.reserve(credential=Credential(bearer=made.secret))
        assert again.reservation_id == admitted.reservation_id
        assert again.identity.cache_salt == admitted.identity.cache_salt
        await stream.settle(admitted.reservation_id)
        process.send_signal(signal.SIGTERM)
        assert (await stream.hear()).reason == "draining"
        stream.call.cancel()
        assert await asyncio.wait_for(process.wait(), 20) == 0


@asynccontextmanager
async def auth_process(folder):
    settings = {
        "PENSTOCK_AUTH_LISTEN": "127.0.0.1:0",
        "PENSTOCK_AUTH_STORE": str(folder / "auth.sqlite"),
        "PENSTOCK_AUTH_DEV_KEY": DEV_KEY,
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")} | settings
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "penstock.auth", env=environment, stderr=asyncio.subprocess.PIPE
    )
    try:
        address = await address_of(process)
        async with channel(address) as to_auth:
            yield process, Auth(None, address, Clock(), AdminStub(to_auth), AdmissionServiceStub(to_auth))
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def address_of(process) -> str:
    async for line in process.stderr:
        if b'"listening"' in line:
            return json.loads(line)["address"]
    message = f"auth ended with {await process.wait()}"
    raise AssertionError(message)


async def tenant_with_key(found: Auth, **limits) -> Credential:
    await found.admin.PutTenant(pb.PutTenantRequest(tenant=pb.Tenant(tenant_id="acme", **limits)))
    return Credential(bearer=(await found.admin.CreateKey(pb.CreateKeyRequest(tenant_id="acme"))).secret)


def disk_is_full(connection, change):
    raise rows.sqlite3.OperationalError("database or disk is full")
