"""Log lines of errors and rejections name a known caller by tenant and key id, and contain no key."""

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from auth_server import auth_process, edge, rejection_of, tenant_with_key
from edge_calls import read_answer, rejected_call, wait_at_rest
from edge_mesh import CONTEXT, KEY, edge_mesh
from edge_sessions import session
from penstock.auth.identity.keys import key_id_of
from penstock.chassis.errors import Overloaded, QuotaExceeded
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1 import admin_pb2 as pb

KNOWN_CALLER = ("acme", "key-1")


def lines_of(logs, event):
    return [(line.get("tenant", ""), line.get("key_id", "")) for line in logs if line["event"] == event]


async def quota_exceeded(mesh):
    mesh.auth.rejections.append(QuotaExceeded("60 requests a minute", retry_after=1.0))
    return await rejected_call(mesh.generate())


async def shed_by_the_queue(mesh):
    mesh.queue.sheds.append(Overloaded("full", reason="QUEUE_FULL", retry_after=1.5))
    return await rejected_call(mesh.generate())


async def prompt_too_long(mesh):
    await read_answer(mesh.generate(max_output_tokens=1))  # so that the edge has cached the caller
    return await rejected_call(mesh.generate("x" * (CONTEXT + 1)))


async def text_too_long(mesh):
    return await rejected_call(mesh.generate("far more than the context holds " * 4_000))


@pytest.mark.parametrize("ending", [quota_exceeded, shed_by_the_queue, prompt_too_long, text_too_long])
async def test_a_rejected_request_is_logged_with_its_caller(ending):
    async with edge_mesh() as mesh:
        with capture_logs() as logs:
            error = await ending(mesh)
            await wait_at_rest(mesh)
    (line,) = [each for each in logs if each["event"] == "ticket_done" and each["reason"]]
    assert line["reason"] == error.reason
    assert (line["tenant"], line["key_id"]) == KNOWN_CALLER
    assert "good" not in str(logs)


async def test_an_unauthenticated_caller_and_its_key_are_not_logged():
    async with edge_mesh() as mesh:
        await read_answer(mesh.generate(max_output_tokens=1))
        with capture_logs() as logs:
            await rejected_call(mesh.generate(metadata=(("authorization", "Bearer pk_abc_stolen"),)))
            await wait_at_rest(mesh)
    assert lines_of(logs, "ticket_done") == []  # a stranger's call is counted, and costs no line
    assert "stolen" not in str(logs)


async def crashed_in_a_call(mesh):
    return await rejected_call(mesh.generate())


async def crashed_in_a_session(mesh):
    async with session(mesh) as client:
        client.generate(1)
        return (await client.next_frame("failed")).failure


@pytest.mark.parametrize("crashed", [crashed_in_a_call, crashed_in_a_session])
async def test_an_unexpected_error_is_logged_with_its_caller(monkeypatch, crashed):
    async with edge_mesh() as mesh:
        await read_answer(mesh.generate(max_output_tokens=1))
        monkeypatch.setattr("penstock.edge.models.planner.plan_generation", lambda *_, **__: 1 / 0)
        with capture_logs([merge_contextvars]) as logs:
            assert (await crashed(mesh)).reason == "INTERNAL"
            await wait_at_rest(mesh)
    assert lines_of(logs, "unmapped_error") == [KNOWN_CALLER]


async def test_a_crashed_handler_is_logged_with_its_caller(monkeypatch):
    async with edge_mesh() as mesh:
        await read_answer(mesh.generate(max_output_tokens=1))
        monkeypatch.setattr("penstock.edge.api.grpc.service.spec_of", lambda _: 1 / 0)
        with capture_logs([merge_contextvars]) as logs:
            await rejected_call(mesh.generate())
    assert lines_of(logs, "handler_crashed") == [KNOWN_CALLER]


async def test_auth_names_a_rejected_caller_that_presented_a_valid_secret():
    async with auth_process() as found, edge(found) as stream:
        credential = await tenant_with_key(found, requests_per_minute=1)
        key_id = key_id_of(credential.bearer)
        guessed = f"pk_{key_id}_{'x' * 32}"
        await stream.reserve("request-1", credential=credential)
        with capture_logs() as logs:
            over = await stream.reserve("request-2", credential=credential)
            unknown = await stream.reserve("request-3", credential=Credential(bearer=guessed))
            await found.admin.RevokeKey(pb.RevokeKeyRequest(key_id=key_id))
            revoked = await stream.reserve("request-4", credential=credential)
    answers = [over, unknown, revoked]
    assert [rejection_of(each).reason for each in answers] == ["QUOTA_EXCEEDED", "KEY_UNKNOWN", "KEY_REVOKED"]
    names = [("acme", key_id), ("", ""), ("acme", key_id)]
    assert lines_of(logs, "reservation_rejected") == names
    assert [(each.tenant_id, each.key_id) for each in answers] == names
    assert credential.bearer not in str(logs)


@pytest.mark.parametrize(("given", "logged"), [("envoy-1", "envoy-1"), ("not valid!", None)])
async def test_the_id_that_a_proxy_gave_a_call_is_in_the_line_of_the_request_and_at_its_worker(given, logged):
    async with edge_mesh() as mesh:
        with capture_logs() as logs:
            await read_answer(mesh.generate(max_output_tokens=1, metadata=(*KEY, ("x-request-id", given))))
            await wait_at_rest(mesh)
        (line,) = [each for each in logs if each["event"] == "ticket_done"]
        (start,) = mesh.workers[0].starts
    assert line["request_id"] == start.request_id == (logged or line["ticket_id"])
