"""Limits, budgets and prices that an operator sets by Admin, over a real server and over restarts of auth."""

import asyncio

import grpc
import pytest
from structlog.testing import capture_logs

from auth_server import FakeClock, auth_process, edge, rejection_of, tenant_with_key
from penstock.chassis.errors import InvalidArgument, PenstockError, error_from_rpc
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1 import admin_pb2 as pb

DAY_TOKENS = pb.Budget(period=pb.BUDGET_PERIOD_DAY, tokens=40)
MONTH_MONEY = pb.Budget(period=pb.BUDGET_PERIOD_MONTH, money_nanos=100)
PRICE = pb.Price(model="m", input_nanos=1_000_000, output_nanos=2_000_000)  # 1 and 2 nanos per token
ACME = pb.Tenant(
    tenant_id="acme",
    requests_per_minute=60,
    tokens_per_minute=6_000,
    concurrent_requests=50,
    input_tokens_per_minute=5_000,
    output_tokens_per_minute=4_000,
    allowed_models=["m", "qwen*"],
    allowed_regions=["eu", "us"],
    model_limits=[pb.ModelLimits(model="m", limits=pb.Limits(requests_per_minute=10, concurrent_requests=2))],
    budgets=[DAY_TOKENS, MONTH_MONEY],
    soft_share=0.75,
)
LIMITS = pb.KeyLimits(
    limits=pb.Limits(
        requests_per_minute=30,
        input_tokens_per_minute=3_000,
        output_tokens_per_minute=2_000,
        tokens_per_minute=4_000,
        concurrent_requests=40,
    ),
    allowed_models=["m"],
    budgets=[MONTH_MONEY],
    soft_share=0.5,
    shadow=True,
)


async def put_tenant(found, **fields):
    return await found.admin.PutTenant(pb.PutTenantRequest(tenant=pb.Tenant(tenant_id="acme", **fields)))


async def error_of(call) -> PenstockError:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return error_from_rpc(failure.value)


async def listed_tenant(found) -> tuple[pb.Tenant, pb.TenantUse]:
    response = await found.admin.ListTenants(pb.ListTenantsRequest())
    [place] = [number for number, each in enumerate(response.tenants) if each.tenant_id == "acme"]
    return response.tenants[place], response.uses[place]


async def test_all_limits_are_kept_over_a_restart(tmp_path):
    path = tmp_path / "auth.sqlite"
    async with auth_process(path) as found:
        stored = (await found.admin.PutTenant(pb.PutTenantRequest(tenant=ACME))).tenant
        assert stored.budgets == ACME.budgets
        request = pb.CreateKeyRequest(tenant_id="acme", limits=LIMITS)
        assert (await found.admin.CreateKey(request)).key.limits == LIMITS
        await found.admin.PutPrice(pb.PutPriceRequest(price=PRICE))
    async with auth_process(path) as found:
        tenant, _ = await listed_tenant(found)
        assert pb.Tenant(**{name: getattr(tenant, name) for name in fields_of(ACME)}) == ACME
        [key] = (await found.admin.ListKeys(pb.ListKeysRequest(tenant_id="acme"))).keys
        assert key.limits == LIMITS
        [price] = (await found.admin.ListPrices(pb.ListPricesRequest())).prices
        assert (price.cached_input_nanos, price.output_nanos) == (1_000_000, 2_000_000)


def fields_of(message) -> list[str]:
    return [field.name for field, _ in message.ListFields()]


async def test_putting_a_tenant_again_resets_the_fields_that_are_unset():
    async with auth_process() as found:
        await found.admin.PutTenant(pb.PutTenantRequest(tenant=ACME))
        await put_tenant(found)
        tenant, use = await listed_tenant(found)
        assert fields_of(tenant) == ["tenant_id", "priority", "weight"]
        assert not use.budgets


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input_tokens_per_minute": 2**40}, "tenant.input_tokens_per_minute"),
        ({"output_tokens_per_minute": 2**63}, "tenant.output_tokens_per_minute"),
        ({"allowed_models": ["a*b"]}, "tenant.allowed_models[0]"),
        ({"allowed_models": ["m", ""]}, "tenant.allowed_models[1]"),
        ({"allowed_models": ["m"] * 65}, "tenant.allowed_models"),
        ({"allowed_regions": ["eu", "US"]}, "tenant.allowed_regions[1]"),
        ({"allowed_regions": ["eu,us"]}, "tenant.allowed_regions[0]"),
        ({"allowed_regions": [f"r{each}" for each in range(17)]}, "tenant.allowed_regions"),
        ({"soft_share": 1.0}, "tenant.soft_share"),
        ({"soft_share": float("nan")}, "tenant.soft_share"),
        ({"budgets": [pb.Budget(period=pb.BUDGET_PERIOD_DAY)]}, "tenant.budgets[0].tokens"),
        ({"budgets": [pb.Budget(tokens=1)]}, "tenant.budgets[0].period"),
        ({"budgets": [pb.Budget(period=7, tokens=1)]}, "tenant.budgets[0].period"),
        ({"budgets": [pb.Budget(period=1, money_nanos=2**60 + 1)]}, "tenant.budgets[0].money_nanos"),
        ({"budgets": [DAY_TOKENS, DAY_TOKENS]}, "tenant.budgets[1]"),
        ({"model_limits": [pb.ModelLimits()]}, "tenant.model_limits[0].model"),
        ({"model_limits": [pb.ModelLimits(model="m")] * 2}, "tenant.model_limits[1].model"),
        (
            {"model_limits": [pb.ModelLimits(model="m", limits=pb.Limits(tokens_per_minute=2**63))]},
            "tenant.model_limits[0].limits.tokens_per_minute",
        ),
    ],
)
async def test_an_invalid_limit_of_a_tenant_is_named(fields, field):
    async with auth_process() as found:
        error = await error_of(put_tenant(found, **fields))
        assert isinstance(error, InvalidArgument)
        assert [each.field for each in error.field_violations] == [field]


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (pb.KeyLimits(limits=pb.Limits(tokens_per_minute=2**63)), "limits.limits.tokens_per_minute"),
        (pb.KeyLimits(allowed_models=["\n"]), "limits.allowed_models[0]"),
        (pb.KeyLimits(budgets=[pb.Budget(period=2, tokens=2**61)]), "limits.budgets[0].tokens"),
    ],
)
async def test_an_invalid_limit_of_a_key_is_named_at_its_creation_and_its_change(limits, field):
    async with auth_process() as found:
        created = await error_of(found.admin.CreateKey(pb.CreateKeyRequest(tenant_id="default", limits=limits)))
        changed = await error_of(found.admin.PutKeyLimits(pb.PutKeyLimitsRequest(key_id="dev", limits=limits)))
        assert [each.field for each in created.field_violations] == [field]
        assert [each.field for each in changed.field_violations] == [field]


@pytest.mark.parametrize(
    ("price", "field"),
    [
        (pb.Price(), "price.model"),
        (pb.Price(model="m*"), "price.model"),
        (pb.Price(model="m", input_nanos=10**15 + 1), "price.input_nanos"),
        (pb.Price(model="m", output_nanos=2**63), "price.output_nanos"),
        (pb.Price(model="m", input_nanos=1, cached_input_nanos=2), "price.cached_input_nanos"),
    ],
)
async def test_an_invalid_price_is_named(price, field):
    async with auth_process() as found:
        error = await error_of(found.admin.PutPrice(pb.PutPriceRequest(price=price)))
        assert field in [each.field for each in error.field_violations]
        assert error.reason == "INVALID_ARGUMENT"


async def test_unknown_keys_and_prices_and_the_development_key_cannot_be_changed():
    async with auth_process() as found:
        unknown = await error_of(found.admin.PutKeyLimits(pb.PutKeyLimitsRequest(key_id="x")))
        development = await error_of(found.admin.PutKeyLimits(pb.PutKeyLimitsRequest(key_id="dev")))
        price = await error_of(found.admin.DeletePrice(pb.DeletePriceRequest(model="m")))
        assert (unknown.reason, development.reason, price.reason) == ("KEY_UNKNOWN", "KEY_NOT_STORED", "PRICE_UNKNOWN")


async def test_new_limits_of_a_key_apply_at_once_and_keep_its_use():
    async with auth_process() as found, edge(found) as stream:
        credential = await tenant_with_key(found)
        [key] = (await found.admin.ListKeys(pb.ListKeysRequest(tenant_id="acme"))).keys
        own = pb.KeyLimits(limits=pb.Limits(tokens_per_minute=60))
        await found.admin.PutKeyLimits(pb.PutKeyLimitsRequest(key_id=key.key_id, limits=own))
        await stream.reserve("request-1", credential=credential)
        own = pb.KeyLimits(limits=pb.Limits(tokens_per_minute=45))
        await found.admin.PutKeyLimits(pb.PutKeyLimitsRequest(key_id=key.key_id, limits=own))
        rejected = await stream.reserve("request-2", credential=credential)
        error = rejection_of(rejected)
        assert [each.subject for each in error.quota_violations] == [f"key:{key.key_id}"]
        assert error.retry_after == 20.0  # 15 of 45 are missing
        assert (rejected.rate_limits.limit_tokens, rejected.rate_limits.remaining_tokens) == (45, 15)
        revoked = await found.admin.RevokeKey(pb.RevokeKeyRequest(key_id=key.key_id))
        assert revoked.key.limits == own


async def test_a_budget_survives_a_restart_with_its_reservations(tmp_path):
    path, clock = tmp_path / "auth.sqlite", FakeClock()
    async with auth_process(path, clock=clock) as found, edge(found) as stream:
        await found.admin.PutPrice(pb.PutPriceRequest(price=PRICE))
        credential = await tenant_with_key(found, budgets=[MONTH_MONEY])
        first = await stream.reserve("request-1", credential=credential)
        await stream.settle(first.reservation_id)
        await stream.reserve("request-2", credential=credential)
    async with auth_process(path, clock=clock) as found, edge(found) as stream:
        _, use = await listed_tenant(found)
        assert [(each.spent, each.reserved) for each in use.budgets] == [(24, 50)]
        error = rejection_of(await stream.reserve("request-3", credential=credential))
        assert error.reason == "BUDGET_EXCEEDED"
        again = await stream.reserve("request-2", credential=credential)
        await stream.settle(again.reservation_id, prompt=10, output=0)
        assert (await stream.reserve("request-3", credential=credential)).reservation_id
        _, use = await listed_tenant(found)
        assert [(each.spent, each.reserved) for each in use.budgets] == [(34, 50)]


async def test_an_admission_beyond_the_soft_share_carries_a_warning_that_is_counted():
    async with auth_process() as found, edge(found) as stream:
        credential = await tenant_with_key(found, budgets=[DAY_TOKENS], soft_share=0.75)
        admitted = await stream.reserve(credential=credential)
        assert admitted.budget_warning == "tenant:acme has used 75.0% of its budget day_tokens"
        assert found.figures["budget_warnings"] == 1


async def test_shadow_mode_refuses_nothing_and_shows_what_it_would_refuse():
    async with auth_process() as found, edge(found) as stream:
        credential = await tenant_with_key(found, requests_per_minute=1, shadow=True, budgets=[DAY_TOKENS])
        own = pb.KeyLimits(limits=pb.Limits(output_tokens_per_minute=20), shadow=True)
        [key] = (await found.admin.ListKeys(pb.ListKeysRequest(tenant_id="acme"))).keys
        await found.admin.PutKeyLimits(pb.PutKeyLimitsRequest(key_id=key.key_id, limits=own))
        for number in (1, 2):
            admitted = await stream.reserve(f"request-{number}", credential=credential)
            assert admitted.reservation_id
            assert not admitted.HasField("rate_limits")
        _, use = await listed_tenant(found)
        assert dict(use.shadow_refusals) == {
            "tenant:acme requests": 1,
            "tenant:acme budget_day_tokens": 1,
            f"key:{key.key_id} output_tokens": 1,
        }
        [of_key] = (await found.admin.ListKeys(pb.ListKeysRequest(tenant_id="acme"))).uses
        assert dict(of_key.shadow_refusals) == {"output_tokens": 1}
        assert found.figures["shadow_refusals"] == 3


@pytest.mark.parametrize(
    ("tenant_models", "key_models", "subject"),
    [(["other", "qwen*"], [], "tenant acme"), ([], ["other", "qwen*"], "key "), (["*"], ["other", "qwen*"], "key ")],
)
async def test_a_model_that_is_not_allowed_is_refused_with_those_that_are(tenant_models, key_models, subject):
    async with auth_process() as found, edge(found) as stream:
        await put_tenant(found, allowed_models=tenant_models)
        request = pb.CreateKeyRequest(tenant_id="acme", limits=pb.KeyLimits(allowed_models=key_models))
        credential = Credential(bearer=(await found.admin.CreateKey(request)).secret)
        error = rejection_of(await stream.reserve(credential=credential))
        assert error.reason == "MODEL_FORBIDDEN"
        assert error.message.startswith(subject)
        assert "does not allow the model 'm'; it allows other, qwen*: use one of them" in error.message
        assert (await stream.reserve("request-2", credential=credential, model="qwen:7b")).reservation_id
        assert found.figures["reservations"] == 1


async def test_a_fallback_grant_is_a_share_of_what_the_budget_leaves():
    async with auth_process(fallback_share=0.5) as found, edge(found) as stream:
        credential = await tenant_with_key(found, budgets=[DAY_TOKENS])
        assert (await stream.reserve(credential=credential)).fallback_tokens == 5  # half of 40 - 30


async def test_a_model_without_a_price_is_reported_once():
    with capture_logs() as logs:
        async with auth_process() as found, edge(found) as stream:
            credential = await tenant_with_key(found, budgets=[MONTH_MONEY])
            for number in (1, 2):
                await stream.reserve(f"request-{number}", credential=credential)
            async with asyncio.timeout(10):
                while "model_without_price" not in (each["event"] for each in logs):  # noqa: ASYNC110  # logs have no event
                    await asyncio.sleep(0)
            assert found.figures["models_without_price"] == 1
    assert [each["event"] for each in logs].count("model_without_price") == 1


async def test_a_tenant_without_limits_is_told_of_none():
    async with auth_process() as found, edge(found) as stream:
        admitted = await stream.reserve()
        assert not admitted.HasField("rate_limits")
        assert admitted.budget_warning == ""
