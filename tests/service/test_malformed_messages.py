"""Bytes that do not parse end the call of their sender, with a clear status and one plain line in the log."""

import asyncio
import logging

import grpc
import pytest
from structlog.testing import capture_logs

from auth_server import auth_process, edge
from edge_mesh import KEY, edge_mesh, text_of
from edge_sessions import session
from inference_server import scripted_servicer
from operators import operators_at_socket
from paths import REPO
from penstock.chassis.channels import channel
from penstock.chassis.errors import error_from_rpc
from penstock.chassis.server.admin import AdminService
from penstock.chassis.server.server import serving
from penstock.mesh.v1.admission_pb2 import AdmitRequest
from penstock.v1.admin_pb2 import GetSnapshotRequest
from penstock.v1.admin_pb2_grpc import AdminStub
from penstock.v1.inference_pb2 import CountTokensResponse, GenerateResponse, SessionRequest
from penstock.v1.inference_pb2_grpc import add_InferenceServicer_to_server
from penstock.v1.stream_pb2 import Hello

MALFORMED_BYTES = b"\xff\xff\xff"
SESSION_METHOD = "/penstock.v1.Inference/Session"
METHODS = [
    ("/penstock.v1.Inference/CountTokens", "unary_unary"),
    ("/penstock.v1.Inference/Generate", "unary_stream"),
    (SESSION_METHOD, "stream_stream"),
    ("/penstock.v1.Admin/GetSnapshot", "unary_unary"),
    ("/grpc.health.v1.Health/Check", "unary_unary"),
    ("/grpc.health.v1.Health/Watch", "unary_stream"),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "stream_stream"),
]
OPERATORS_METHODS = ("/penstock.v1.Admin/", "/grpc.reflection.")


def raw(to_server, method, kind, *messages, metadata=()):
    """A call of `method` that sends bytes as they are."""
    call = getattr(to_server, kind)(method, request_serializer=None, response_deserializer=None)
    return call(iter(messages) if kind.startswith("stream") else messages[0], metadata=metadata)


async def error_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        if hasattr(call, "read"):
            while await call.read() is not grpc.aio.EOF:
                pass
        await call
    return failure.value


def malformed_lines(logs):
    return [each for each in logs if each["log_level"] in ("warning", "error")]


async def answers(*_):
    return CountTokensResponse()


async def streams(*_):
    yield GenerateResponse()


async def iterates(frames, _):
    async for _frame in frames:
        pass


async def reads(_, context):
    await context.read()


async def reads_in_a_group(_, context):
    async with asyncio.TaskGroup() as group:
        group.create_task(context.read())


READER_CASES = [(each, iterates) for each in METHODS] + [(METHODS[2], reads), (METHODS[2], reads_in_a_group)]


@pytest.mark.parametrize(("called", "reader"), READER_CASES)
async def test_a_message_that_does_not_parse_is_its_senders_fault(caplog, called, reader):
    servicer = scripted_servicer(CountTokens=answers, Generate=streams, Session=reader)
    admin = AdminService("demo", "demo-1")
    registration = add_InferenceServicer_to_server, servicer
    with operators_at_socket() as operators:
        async with (
            serving("127.0.0.1:0", [registration], admin=admin, operators=operators) as server,
            channel(server.address) as to_server,
            channel(server.admin_address) as to_admin,
        ):
            is_admin = called[0].startswith(OPERATORS_METHODS)
            with capture_logs() as logs, caplog.at_level(logging.INFO):
                failure = await error_of(raw(to_admin if is_admin else to_server, *called, MALFORMED_BYTES))
            figures = (await AdminStub(to_admin).GetSnapshot(GetSnapshotRequest())).snapshot.figures
    error = error_from_rpc(failure)
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MESSAGE_MALFORMED")
    assert "3 bytes" in error.message
    (line,) = malformed_lines(logs)
    assert (line["event"], line["bytes"], "exc_info" in line) == ("message_malformed", 3, False)
    assert line["peer"].startswith("unix:" if is_admin else "ipv4:127.")
    assert not caplog.records
    assert figures["malformed_messages"] >= 1


async def test_a_malformed_frame_ends_the_session_it_came_on_and_no_other():
    async with edge_mesh() as mesh, channel(mesh.address) as to_edge, session(mesh) as client:
        mesh.workers[0].pause_at_index = 3
        client.generate(1, max_output_tokens=5)
        handle = await mesh.workers[0].paused.get()
        greeting = SessionRequest(hello=Hello(protocol=1, instance_id="c2", tier="client")).SerializeToString()
        with capture_logs() as logs:
            failure = await error_of(
                raw(to_edge, SESSION_METHOD, "stream_stream", greeting, MALFORMED_BYTES, metadata=KEY)
            )
        assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert [each["event"] for each in malformed_lines(logs)] == ["message_malformed"]
        mesh.workers[0].send_tokens(handle)
        await client.next_frame("finished")
        assert client.texts[1] == text_of(5)


async def test_a_malformed_frame_on_a_stream_between_tiers_ends_that_stream_alone():
    async with auth_process() as found, edge(found) as other, channel(found.address) as to_auth:
        admit = "/penstock.mesh.v1.AdmissionService/Admit"
        greeting = AdmitRequest(hello=Hello(protocol=1, instance_id="edge-2", tier="edge")).SerializeToString()
        failure = await error_of(raw(to_auth, admit, "stream_stream", greeting, MALFORMED_BYTES))
        assert error_from_rpc(failure).reason == "MESSAGE_MALFORMED"
        assert (await other.reserve()).reservation_id


def test_every_port_is_served_through_the_chassis():
    """Malformed messages become statuses there. The floor of the proofs measures bare gRPC."""
    found = [path for path in (REPO / "services" / "penstock").rglob("*.py") if "aio.server(" in path.read_text()]
    assert sorted(path.name for path in found) == ["rejection_floor.py", "server.py"]
