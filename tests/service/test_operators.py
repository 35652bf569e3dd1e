"""The listeners of operators and probes on real servers: who is served where, and what wrong tokens cost."""

import stat
from contextlib import asynccontextmanager

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_channelz.v1.channelz_pb2 import GetServersRequest
from grpc_channelz.v1.channelz_pb2_grpc import ChannelzStub
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub
from structlog.testing import capture_logs

from edge_mesh import edge_mesh
from inference_server import scripted_servicer
from mesh_identities import Identities
from operators import admin_socket, operators_at_socket
from penstock.chassis.channels import channel
from penstock.chassis.config import ConfigError
from penstock.chassis.errors import error_from_rpc
from penstock.chassis.lifecycle import current_stop, request_stop
from penstock.chassis.operators.listeners import OperatorListeners
from penstock.chassis.operators.throttle import FAILURE_BURST
from penstock.chassis.operators.unix_socket import path_of
from penstock.chassis.server.admin import AdminService
from penstock.chassis.server.server import serving
from penstock.v1.admin_pb2 import DrainRequest, GetSnapshotRequest
from penstock.v1.admin_pb2_grpc import AdminStub
from penstock.v1.inference_pb2_grpc import add_InferenceServicer_to_server
from tier_process import address_of, tier_process, wait_for_event

LOOPBACK = "127.0.0.1:0"
TOKEN = "t0ken"
BEARER = (("authorization", f"Bearer {TOKEN}"),)
OPERATORS_METHODS = [
    "/penstock.v1.Admin/GetSnapshot",
    "/penstock.v1.Admin/Drain",
    "/penstock.v1.Admin/CreateKey",
    "/grpc.channelz.v1.Channelz/GetServers",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
]


@asynccontextmanager
async def server_of(operators, **options):
    admin = AdminService("demo", "demo-1")
    registration = add_InferenceServicer_to_server, scripted_servicer()
    async with serving(LOOPBACK, [registration], admin=admin, operators=operators, **options) as server:
        yield server


async def error_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return error_from_rpc(failure.value)


async def code_of(to_server, method, message=b""):
    """The status of a call with the right token."""
    kind = "stream_stream" if "Reflection" in method else "unary_unary"
    call = getattr(to_server, kind)(method, request_serializer=None, response_deserializer=None)
    try:
        if kind == "stream_stream":
            # Without a message there is no write that could fail before the status arrives.
            await (call(iter([message]), metadata=BEARER) if message else call(metadata=BEARER)).read()
        else:
            await call(message, metadata=BEARER)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("tier", ["auth", "queue", "scheduler"])
async def test_the_main_port_of_a_process_serves_no_operator(tier):
    async with tier_process(tier, ADMIN_TOKEN=TOKEN) as process, channel(await address_of(process)) as to_process:
        codes = [await code_of(to_process, method) for method in OPERATORS_METHODS]
        assert codes == [grpc.StatusCode.UNIMPLEMENTED] * len(OPERATORS_METHODS)
        async with channel(process.admin_address) as to_admin:
            assert await code_of(to_admin, OPERATORS_METHODS[0]) is grpc.StatusCode.OK


async def test_the_main_port_of_an_edge_serves_no_operator():
    async with edge_mesh(admin_token=TOKEN) as mesh, channel(mesh.address) as to_edge:
        codes = [await code_of(to_edge, method) for method in OPERATORS_METHODS]
    assert codes == [grpc.StatusCode.UNIMPLEMENTED] * len(OPERATORS_METHODS)
    assert not current_stop().is_requested


async def test_without_admin_listen_there_is_no_admin():
    async with server_of(OperatorListeners(admin_token=TOKEN)) as server, channel(server.address) as to_server:
        assert server.admin_address == ""
        assert await code_of(to_server, OPERATORS_METHODS[0]) is grpc.StatusCode.UNIMPLEMENTED


async def test_operators_are_served_nothing_but_their_services():
    with operators_at_socket() as operators:
        async with server_of(operators) as server, channel(server.admin_address) as to_admin:
            for method in ("/penstock.v1.Inference/CountTokens", "/grpc.health.v1.Health/Check"):
                assert await code_of(to_admin, method) is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0"])
async def test_tcp_without_token_and_certificates_stops_the_start(listen):
    with pytest.raises(ConfigError, match="would serve every caller"):
        async with server_of(OperatorListeners(admin_listen=listen)):
            pass


async def test_a_process_with_an_open_admin_listener_exits_with_status_2():
    async with tier_process("queue", ADMIN_LISTEN="127.0.0.1:0") as process:
        _, err = await process.communicate()
    assert process.returncode == 2
    assert b"PENSTOCK_ADMIN_TOKEN" in err


async def test_a_socket_admits_its_owner_alone_and_is_removed_at_the_end():
    with admin_socket() as listen:
        async with server_of(OperatorListeners(admin_listen=listen)) as server, channel(listen) as to_admin:
            assert server.admin_address == listen
            assert stat.S_IMODE(path_of(listen).stat().st_mode) == 0o600
            await AdminStub(to_admin).GetSnapshot(GetSnapshotRequest())
        assert not path_of(listen).exists()


async def test_a_second_process_does_not_take_over_a_socket():
    with admin_socket() as listen:
        async with server_of(OperatorListeners(admin_listen=listen)), channel(listen) as to_admin:
            with pytest.raises(ConfigError, match="another process listens"):
                async with server_of(OperatorListeners(admin_listen=listen)):
                    pass
            await AdminStub(to_admin).GetSnapshot(GetSnapshotRequest())


async def test_the_socket_of_a_killed_process_is_used_again():
    with admin_socket() as listen:
        for _ in range(2):
            async with tier_process("queue", ADMIN_LISTEN=listen) as process, channel(listen) as to_admin:
                await address_of(process)
                await AdminStub(to_admin).GetSnapshot(GetSnapshotRequest(), wait_for_ready=True)
                process.kill()
                await process.wait()
            assert path_of(listen).exists()


async def test_on_loopback_a_caller_without_the_token_is_no_operator():
    operators = OperatorListeners(admin_listen=LOOPBACK, admin_token=TOKEN)
    async with server_of(operators) as server, channel(server.admin_address) as to_admin:
        admin = AdminStub(to_admin)
        error = await error_of(admin.Drain(DrainRequest()))
        assert (error.code, error.reason) == (grpc.StatusCode.PERMISSION_DENIED, "ADMIN_ONLY")
        assert not current_stop().is_requested
        assert await code_of(to_admin, OPERATORS_METHODS[0]) is grpc.StatusCode.OK
        figures = (await admin.GetSnapshot(GetSnapshotRequest(), metadata=BEARER)).snapshot.figures
        assert (figures["admin_refused"], figures["admin_throttled"]) == (1, 0)


@pytest.mark.parametrize("method", OPERATORS_METHODS)
async def test_every_method_of_the_listener_needs_the_token(method):
    operators = OperatorListeners(admin_listen=LOOPBACK, admin_token="another")
    async with server_of(operators) as server, channel(server.admin_address) as to_admin:
        assert await code_of(to_admin, method) is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("method", OPERATORS_METHODS)
async def test_a_caller_is_authorized_before_its_message_is_judged(method):
    operators = OperatorListeners(admin_listen=LOOPBACK, admin_token="another")
    async with server_of(operators) as server, channel(server.admin_address) as to_admin:
        assert await code_of(to_admin, method, b"\xff\xff\xff") is grpc.StatusCode.PERMISSION_DENIED


async def test_wrong_tokens_are_throttled_and_logged_once_a_second():
    operators = OperatorListeners(admin_listen=LOOPBACK, admin_token=TOKEN)
    async with server_of(operators) as server, channel(server.admin_address) as to_admin:
        admin, wrong = AdminStub(to_admin), (("authorization", "Bearer wrong"),)
        with capture_logs() as logs:
            errors = [await error_of(admin.GetSnapshot(GetSnapshotRequest(), metadata=wrong)) for _ in range(20)]
        reasons = [each.reason for each in errors]
        assert reasons[: int(FAILURE_BURST)] == ["ADMIN_ONLY"] * int(FAILURE_BURST)
        assert "ADMIN_THROTTLED" in reasons
        throttled = next(each for each in errors if each.reason == "ADMIN_THROTTLED")
        assert throttled.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert 0 < throttled.retry_after <= 1
        lines = [each for each in logs if each["event"] == "admin_refused"]
        assert 1 <= len(lines) < 10
        assert "wrong" not in str(logs)


async def test_an_operator_s_certificate_is_admitted_and_no_other_caller_is(tmp_path):
    identities = Identities.create(tmp_path)
    operators = OperatorListeners(admin_listen=LOOPBACK)
    async with server_of(operators, security=identities.security("queue")) as server:
        async with identities.channel(server.admin_address, "queue", "operator", "anna") as to_admin:
            assert await code_of(to_admin, OPERATORS_METHODS[0]) is grpc.StatusCode.OK
        for tier in ("edge", "queue", "worker", "envoy"):
            async with identities.channel(server.admin_address, "queue", tier) as to_admin:
                assert await code_of(to_admin, OPERATORS_METHODS[0]) is grpc.StatusCode.PERMISSION_DENIED
        async with identities.bad_callers(server.admin_address, "queue", "operator") as callers:
            refused = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED
            for problem, to_admin in callers.items():
                assert await code_of(to_admin, OPERATORS_METHODS[0]) in refused, problem


async def test_probes_are_served_in_plaintext_by_a_process_with_certificates(tmp_path):
    operators = OperatorListeners(health_listen=LOOPBACK)
    security = Identities.create(tmp_path).security("queue")
    async with server_of(operators, security=security) as server, channel(server.health_address) as to_health:
        assert (await HealthStub(to_health).Check(HealthCheckRequest())).status == HealthCheckResponse.SERVING


async def test_reflection_describes_the_services_of_both_ports():
    with operators_at_socket() as operators:
        async with server_of(operators) as server, channel(server.admin_address) as to_admin:
            requests = [
                ServerReflectionRequest(list_services=""),
                ServerReflectionRequest(file_containing_symbol="penstock.v1.Inference"),
            ]
            answers = [each async for each in ServerReflectionStub(to_admin).ServerReflectionInfo(iter(requests))]
    assert {each.name for each in answers[0].list_services_response.service} == {
        "grpc.channelz.v1.Channelz",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "penstock.v1.Admin",
        "penstock.v1.Inference",
    }
    assert b"CountTokens" in answers[1].file_descriptor_response.file_descriptor_proto[0]


async def test_channelz_shows_the_servers_of_the_process():
    with operators_at_socket() as operators:
        async with server_of(operators) as server, channel(server.admin_address) as to_admin:
            assert len((await ChannelzStub(to_admin).GetServers(GetServersRequest())).server) >= 2


async def test_probes_are_served_health_and_nothing_else():
    async with (
        server_of(OperatorListeners(health_listen=LOOPBACK), is_ready=False) as server,
        channel(server.health_address) as to_health,
    ):
        health = HealthStub(to_health)
        statuses = HealthCheckResponse.NOT_SERVING, HealthCheckResponse.SERVING
        assert (await health.Check(HealthCheckRequest())).status == statuses[0]
        server.set_ready(is_ready=True)
        assert (await health.Check(HealthCheckRequest())).status == statuses[1]
        request_stop("test")
        watch = health.Watch(HealthCheckRequest())
        while (await watch.read()).status != statuses[0]:
            pass
        assert (await health.Check(HealthCheckRequest(service="liveness"))).status == statuses[1]
        for method in (*OPERATORS_METHODS, "/penstock.v1.Inference/CountTokens"):
            assert await code_of(to_health, method) is grpc.StatusCode.UNIMPLEMENTED


async def test_a_drain_by_an_operator_is_answered_and_ends_the_process():
    async with tier_process("queue") as process, channel(process.admin_address) as to_admin:
        await address_of(process)
        assert (await AdminStub(to_admin).Drain(DrainRequest(grace=Duration(seconds=5)))).running == 0
        assert (await wait_for_event(process, "audit_head"))["seq"] == 2
        assert await process.wait() == 0
