"""A caller is authenticated before its request costs any work and before the request is reported as invalid."""

import grpc
import pytest

from edge_calls import read_answer, rejected_call, wait_at_rest
from edge_http import http_edge
from edge_mesh import CONTEXT, KEY, edge_mesh, hello, text_of
from edge_sessions import session
from penstock.chassis.errors import Unauthenticated, error_from_failure, error_from_rpc
from penstock.client import Client
from penstock.edge.models import planner
from penstock.edge.text.executor import SMALL_INPUT_BYTES
from penstock.v1.inference_pb2 import CountTokensRequest, GenerateRequest, Resume, SessionGenerate, SessionRequest

BOGUS = (("authorization", "Bearer bogus"),)
UNKNOWN = (grpc.StatusCode.UNAUTHENTICATED, "KEY_UNKNOWN")
INVALID = [
    pytest.param({}, id="valid"),
    pytest.param({"text": "x" * 10 * CONTEXT}, id="prompt too long"),
    pytest.param({"model": "other"}, id="model unknown"),
    pytest.param({"max_output_tokens": 10 * CONTEXT}, id="output above the context"),
    pytest.param({"stop": ["x" * 10_000]}, id="invalid stop string"),
    pytest.param({"resume": Resume(token_ids=[10**6])}, id="token outside of the vocabulary"),
]


@pytest.fixture
async def mesh(monkeypatch):
    """An edge that counts the prompts that it tokenizes, in `mesh.tokenized`."""
    plan_generation = planner.plan_generation

    def count_and_plan(*args, **options):
        found.tokenized += 1
        return plan_generation(*args, **options)

    monkeypatch.setattr(planner, "plan_generation", count_and_plan)
    async with edge_mesh() as found:
        found.tokenized = 0
        yield found


@pytest.mark.parametrize("fields", INVALID)
async def test_a_bogus_key_is_rejected_as_such_and_nothing_is_tokenized(mesh, fields):
    error = await rejected_call(mesh.generate(metadata=BOGUS, **fields))
    assert (error.code, error.reason) == UNKNOWN
    assert mesh.tokenized == 0


async def test_a_session_of_a_bogus_key_is_rejected_before_its_first_frame_is_read(mesh):
    async def frames():
        yield SessionRequest(hello=hello("client", "c1"))
        yield SessionRequest(generate=SessionGenerate(handle=1, request=GenerateRequest(text="x" * (8 << 20))))

    call = mesh.inference.Session(frames(), metadata=BOGUS)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call.read()
    assert (failure.value.code(), error_from_rpc(failure.value).reason) == UNKNOWN
    assert mesh.tokenized == 0


async def test_the_sdk_reports_the_rejection_of_its_key_to_requests_of_a_session(mesh):
    async with Client(mesh.address, api_key="bogus") as client, client.session() as requests:
        for _ in range(2):
            with pytest.raises(Unauthenticated) as failure:
                await requests.complete("hi")
            assert failure.value.reason == "KEY_UNKNOWN"


@pytest.mark.parametrize("fields", INVALID[1:])
async def test_a_valid_key_receives_the_error_of_its_request(mesh, fields):
    error = await rejected_call(mesh.generate(**fields))
    assert error.code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    async with session(mesh) as client:
        client.generate(1, **fields)
        assert error_from_failure((await client.next_frame("failed")).failure).reason == error.reason


async def test_a_bogus_key_counts_no_tokens(mesh):
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await mesh.inference.CountTokens(CountTokensRequest(text=""), metadata=BOGUS)
    error = error_from_rpc(failure.value)
    assert (error.code, error.reason) == UNKNOWN


async def test_auth_identifies_a_caller_once(mesh):
    asked = []
    answer = mesh.auth.answer
    mesh.auth.answer = lambda frame: asked.append(frame.WhichOneof("frame")) or answer(frame)
    for _ in range(3):
        assert (await read_answer(mesh.generate(max_output_tokens=2)))[1] == text_of(2)
    await rejected_call(mesh.generate("x" * 10 * CONTEXT))
    await wait_at_rest(mesh)
    assert asked.count("identify") == 1
    assert mesh.tokenized == 4


async def test_a_key_that_auth_no_longer_accepts_is_identified_again(mesh):
    await read_answer(mesh.generate(max_output_tokens=2))
    mesh.auth.rejections = [Unauthenticated("revoked", reason="KEY_REVOKED")]
    assert (await rejected_call(mesh.generate())).reason == "KEY_REVOKED"
    tokenized, answer = mesh.tokenized, mesh.auth.answer

    def answer_revoked(frame):
        getattr(frame, frame.WhichOneof("frame")).credential.bearer = "bogus"
        return answer(frame)

    mesh.auth.answer = answer_revoked
    assert (await rejected_call(mesh.generate("x" * 10 * CONTEXT, metadata=KEY))).reason == "KEY_UNKNOWN"
    assert mesh.tokenized == tokenized


async def test_an_invalid_body_of_a_bogus_key_is_rejected_for_its_key():
    async with http_edge() as edge:
        edge.gateway.auth_rejection = Unauthenticated("no such key", reason="KEY_UNKNOWN")
        assert (await edge.post(model="tiny", prompt="hi", temperature=99)).status_code == 401
        edge.gateway.auth_rejection = None
        assert (await edge.post(model="tiny", prompt="hi", temperature=99)).status_code == 400


async def test_a_large_body_is_not_parsed_for_a_bogus_key():
    async with http_edge() as edge:
        edge.gateway.auth_rejection = Unauthenticated("no such key", reason="KEY_UNKNOWN")
        assert (await edge.post(model="tiny", prompt="x" * SMALL_INPUT_BYTES)).status_code == 401
        assert not edge.gateway.was_called
