"""Rate limits and budgets as headers of HTTP answers and as trailing metadata of gRPC, from a real auth."""

import grpc
import httpx
import pytest

from edge_auth_mesh import KEY, edge_auth_mesh
from edge_calls import read_answer
from free_ports import free_port
from penstock.auth.identity.policy import Budget, BudgetPeriod, BudgetUnit, Policy
from penstock.auth.identity.tenant import Tenant
from penstock.chassis.channels import channel
from penstock.chassis.errors import error_from_rpc
from penstock.client.request import embed_request
from penstock.v1.inference_pb2 import GenerateRequest
from penstock.v1.inference_pb2_grpc import InferenceStub

LIMITS = {"requests_per_minute": 3, "tokens_per_minute": 60}
PREFIX = "x-ratelimit-"
CALLS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 4},
    "/v1/completions": {"prompt": "hi", "max_tokens": 4},
    "/v1/responses": {"input": "hi", "max_output_tokens": 4},
}


def limit_tenant(mesh, policy=None, **limits) -> None:
    tenant = Tenant(tenant_id="default", policy=policy or Policy(), **limits)
    mesh.auth.authorizer.put_tenant(tenant, mesh.auth.now)


def limits_in(headers) -> dict[str, str]:
    return {name.removeprefix(PREFIX): value for name, value in dict(headers).items() if name.startswith(PREFIX)}


class HttpCaller:
    """Calls the OpenAI API of the edge of a mesh."""

    def __init__(self, port, client):
        self.url, self.client = f"http://127.0.0.1:{port}", client

    async def post(self, path="/v1/completions", *, stream=False):
        body = {"model": "tiny", "stream": stream, **CALLS[path]}
        return await self.client.post(self.url + path, json=body, headers={"authorization": f"Bearer {KEY}"})

    async def embed(self, texts):
        body, headers = {"model": "tiny", "input": texts}, {"authorization": f"Bearer {KEY}"}
        return await self.client.post(f"{self.url}/v1/embeddings", json=body, headers=headers)


@pytest.fixture
async def http_mesh(tmp_path):
    port = free_port()
    async with edge_auth_mesh(tmp_path, http_listen=f"127.0.0.1:{port}") as mesh, httpx.AsyncClient() as client:
        yield mesh, HttpCaller(port, client)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", CALLS)
async def test_every_admitted_answer_has_the_tightest_limits(http_mesh, path, stream):
    mesh, caller = http_mesh
    limit_tenant(mesh, **LIMITS)
    answer = await caller.post(path, stream=stream)
    assert answer.status_code == 200, answer.text
    found = limits_in(answer.headers)
    left = int(found.pop("remaining-tokens"))
    assert found == {
        "limit-requests": "3",
        "remaining-requests": "2",
        "reset-requests": "20s",
        "limit-tokens": "60",
        "reset-tokens": f"{60 - left}s",
    }
    assert 0 < left < 60


async def test_only_limits_that_exist_are_shown(http_mesh):
    mesh, caller = http_mesh
    assert limits_in((await caller.post()).headers) == {}
    limit_tenant(mesh, requests_per_minute=3)
    assert limits_in((await caller.post()).headers) == {
        "limit-requests": "3",
        "remaining-requests": "2",
        "reset-requests": "20s",
    }


async def test_a_refused_request_has_the_limits_and_the_exact_time_to_retry(http_mesh):
    mesh, caller = http_mesh
    limit_tenant(mesh, requests_per_minute=7)
    for _ in range(7):
        assert (await caller.post()).status_code == 200
    refused = await caller.post()
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert (refused.headers["retry-after"], refused.headers["retry-after-ms"]) == ("9", "8572")  # 60 s / 7
    assert limits_in(refused.headers) == {
        "limit-requests": "7",
        "remaining-requests": "0",
        "reset-requests": "1m0s",
    }


async def test_an_exhausted_budget_and_its_soft_share_are_told(http_mesh):
    mesh, caller = http_mesh
    budget = Budget(BudgetPeriod.DAY, BudgetUnit.TOKENS, 10)
    limit_tenant(mesh, Policy(budgets=(budget,), soft_share=0.5))
    admitted = await caller.post()
    assert admitted.status_code == 200
    assert admitted.headers["x-penstock-budget-warning"].startswith("tenant:default has used ")
    refused = await caller.post()
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
    assert refused.headers["x-penstock-reason"] == "BUDGET_EXCEEDED"
    assert "it begins anew at 2027-01-16T00:00:00Z" in refused.json()["error"]["message"]


async def test_a_forbidden_model_names_the_allowed_ones(http_mesh):
    mesh, caller = http_mesh
    limit_tenant(mesh, Policy(allowed_models=("llama*", "qwen")))
    refused = await caller.post()
    assert refused.status_code == 403
    assert refused.headers["x-penstock-reason"] == "MODEL_FORBIDDEN"
    assert "it allows llama*, qwen: use one of them" in refused.json()["error"]["message"]


async def test_a_grpc_answer_has_the_limits_as_trailing_metadata(tmp_path):
    async with edge_auth_mesh(tmp_path) as mesh, channel(mesh.addresses[0]) as to_edge:
        limit_tenant(mesh, requests_per_minute=1)
        stub, metadata = InferenceStub(to_edge), (("authorization", f"Bearer {KEY}"),)
        call = stub.Generate(GenerateRequest(text="hi", max_output_tokens=4), metadata=metadata)
        await read_answer(call)
        shown = {"limit-requests": "1", "remaining-requests": "0", "reset-requests": "1m0s"}
        assert limits_in(await call.trailing_metadata()) == shown
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await read_answer(stub.Generate(GenerateRequest(text="hi", max_output_tokens=4), metadata=metadata))
        error = error_from_rpc(failure.value)
        assert (error.reason, error.retry_after) == ("QUOTA_EXCEEDED", 60.0)
        assert limits_in(failure.value.trailing_metadata()) == shown


async def test_embeddings_have_the_limits_of_the_last_input_and_of_the_refused_one(http_mesh):
    mesh, caller = http_mesh
    limit_tenant(mesh, requests_per_minute=2)
    shown = {"limit-requests": "2", "remaining-requests": "0", "reset-requests": "1m0s"}
    admitted = await caller.embed(["a", "b"])
    assert (admitted.status_code, limits_in(admitted.headers)) == (200, shown)
    refused = await caller.embed(["a", "b"])
    assert (refused.status_code, limits_in(refused.headers)) == (429, shown)
    assert refused.headers["retry-after"] == "30"


async def test_embeddings_have_the_limits_as_trailing_metadata(tmp_path):
    async with edge_auth_mesh(tmp_path) as mesh, channel(mesh.addresses[0]) as to_edge:
        limit_tenant(mesh, requests_per_minute=1)
        stub, metadata = InferenceStub(to_edge), (("authorization", f"Bearer {KEY}"),)
        shown = {"limit-requests": "1", "remaining-requests": "0", "reset-requests": "1m0s"}
        call = stub.Embed(embed_request(["hi"], "", None), metadata=metadata)
        assert len((await call).embeddings) == 1
        assert limits_in(await call.trailing_metadata()) == shown
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await stub.Embed(embed_request(["hi"], "", None), metadata=metadata)
        assert error_from_rpc(failure.value).reason == "QUOTA_EXCEEDED"
        assert limits_in(failure.value.trailing_metadata()) == shown


async def test_a_request_that_the_edge_admits_by_fallback_has_no_limits_to_show(tmp_path):
    settings = {"auth_fallback_after": 0.05}
    async with edge_auth_mesh(tmp_path, **settings) as mesh, channel(mesh.addresses[0]) as to_edge:
        limit_tenant(mesh, requests_per_minute=60)
        stub, metadata = InferenceStub(to_edge), (("authorization", f"Bearer {KEY}"),)
        await read_answer(stub.Generate(GenerateRequest(text="hi", max_output_tokens=4), metadata=metadata))
        await mesh.wait_for_figure("reservations_open", 0)
        await mesh.auth.stop()
        await mesh.wait_for_figure("auth_unreachable", 1)
        call = stub.Generate(GenerateRequest(text="hi", max_output_tokens=4), metadata=metadata)
        await read_answer(call)
        assert limits_in(await call.trailing_metadata()) == {}
        await mesh.auth.start()
        await mesh.wait_for_figure("deferred_reservations", 0)
