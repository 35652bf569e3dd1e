"""Delegations over a real server: a batch is created at one edge, and its lines run at another one."""

from auth_server import START_UNIX_S, FakeClock, auth_process, edge, rejection_of, tenant_use, tenant_with_key
from penstock.auth.identity.authenticator import REJECTION_TTL_S
from penstock.auth.identity.delegation import DELEGATION_TTL_S
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1 import admin_pb2 as pb
from penstock.v1.inference_pb2 import PRIORITY_BATCH


async def limit_models(found, key_id, *models):
    limits = pb.KeyLimits(allowed_models=models)
    await found.admin.PutKeyLimits(pb.PutKeyLimitsRequest(key_id=key_id, limits=limits))


async def test_a_line_runs_for_the_key_that_created_its_batch_at_any_edge():
    async with auth_process() as found, edge(found) as first, edge(found, "edge-2") as second:
        key = await tenant_with_key(found)
        delegated = await first.delegate(key)
        assert 0 < len(delegated.delegation) <= 512
        assert not (await first.identify(key)).delegation
        identified = await second.identify(delegated)
        admitted = await second.reserve(credential=delegated, priority=PRIORITY_BATCH)
        assert admitted.identity.key_id == identified.identity.key_id == key.bearer.split("_")[1]
        assert admitted.identity.priority == PRIORITY_BATCH
        await second.settle(admitted.reservation_id, tenant_id="acme")
        assert (await tenant_use(found, "acme")).output_tokens == 7


async def test_a_delegation_obtains_no_other_one():
    async with auth_process() as found, edge(found) as stream:
        delegated = await stream.delegate(stream.credential)
        refused = rejection_of(await stream.identify(delegated, delegates=True))
        assert (refused.reason, refused.message) == (
            "DELEGATION_REFUSED",
            "a delegation cannot obtain another one; send an API key or a token",
        )
        assert rejection_of(await stream.identify(Credential(), delegates=True)).reason == "KEY_MISSING"


async def test_what_stops_a_key_or_its_tenant_stops_its_lines_with_the_same_reason():
    async with auth_process() as found, edge(found) as stream:
        key = await tenant_with_key(found)
        key_id = key.bearer.split("_")[1]
        delegated = await stream.delegate(key)
        await limit_models(found, key_id, "other")
        assert rejection_of(await stream.reserve(credential=delegated)).reason == "MODEL_FORBIDDEN"
        await limit_models(found, key_id)
        await found.admin.PutTenant(pb.PutTenantRequest(tenant=pb.Tenant(tenant_id="acme", tokens_per_minute=5)))
        assert rejection_of(await stream.reserve(credential=delegated)).reason == "QUOTA_EXCEEDED"
        await found.admin.RevokeKey(pb.RevokeKeyRequest(key_id=key_id))
        rejected = await stream.reserve(credential=delegated)
        assert rejection_of(rejected).reason == "KEY_REVOKED"
        assert (rejected.tenant_id, rejected.key_id) == ("acme", key_id)
        await found.admin.DeleteTenant(pb.DeleteTenantRequest(tenant_id="acme"))
        found.clock.now += REJECTION_TTL_S
        assert rejection_of(await stream.reserve("request-2", credential=delegated)).reason == "KEY_UNKNOWN"
        assert found.figures["failed_authentications"] == 0


async def test_a_line_that_runs_twice_is_charged_once_and_at_half_of_the_price():
    price = pb.Price(model="*", input_nanos=2_000_000, output_nanos=4_000_000)  # 2 and 4 nanos per token
    budget = pb.Budget(period=pb.BUDGET_PERIOD_DAY, money_nanos=48)
    async with auth_process() as found, edge(found) as first, edge(found, "edge-2") as second:
        await found.admin.PutPrice(pb.PutPriceRequest(price=price))
        key = await tenant_with_key(found, budgets=[budget])
        line = {"credential": await first.delegate(key), "priority": PRIORITY_BATCH, "answer_id": "line-1"}
        for stream, request_id in ((first, "run-1"), (second, "run-2")):
            admitted = await stream.reserve(request_id, 10, 7, **line)  # at most 24 nanos
            await stream.settle(admitted.reservation_id, tenant_id="acme")
        use = await tenant_use(found, "acme")
        assert (use.prompt_tokens, use.output_tokens, use.requests) == (10, 7, 2)
        assert [each.spent for each in use.budgets] == [24]


async def test_a_delegation_outlives_auth_for_eight_days(tmp_path):
    clock = FakeClock()
    async with auth_process(tmp_path / "auth.sqlite", clock=clock) as found, edge(found) as stream:
        delegated = await stream.delegate(await tenant_with_key(found))
    clock.now = START_UNIX_S + DELEGATION_TTL_S - 1.0
    async with auth_process(tmp_path / "auth.sqlite", clock=clock) as found, edge(found, beats=True) as stream:
        assert (await stream.reserve(credential=delegated)).identity.tenant_id == "acme"
        clock.now += 1.0
        assert rejection_of(await stream.reserve("request-2", credential=delegated)).reason == "DELEGATION_EXPIRED"


async def test_a_false_delegation_is_logged_without_a_caller_and_counted_as_a_failure():
    async with auth_process() as found, edge(found) as stream:
        rejected = await stream.reserve(credential=Credential(delegation=b"x" * 64))
        assert rejection_of(rejected).reason == "DELEGATION_INVALID"
        assert (rejected.tenant_id, rejected.key_id) == ("", "")
        assert found.figures["failed_authentications"] == 1
