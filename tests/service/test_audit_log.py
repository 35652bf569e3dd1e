"""The audit log of real processes: every action is recorded, a kill breaks no chain, a full disk refuses changes."""

import asyncio
import json
from contextlib import asynccontextmanager

import grpc
import psutil
import pytest
from google.protobuf.duration_pb2 import Duration
from structlog.testing import capture_logs

from auth_server import DEV_KEY, auth_process
from command import run_penstock
from operators import admin_socket
from penstock.chassis.channels import channel
from penstock.chassis.config import ConfigError
from penstock.chassis.errors import error_from_rpc
from penstock.chassis.lifecycle import current_stop
from penstock.chassis.operators.audit.chain import GENESIS
from penstock.chassis.operators.audit.verify import Verification
from penstock.chassis.operators.listeners import OperatorListeners
from penstock.chassis.server.admin import AdminService
from penstock.chassis.server.server import serving
from penstock.v1 import admin_pb2 as pb
from penstock.v1.admin_pb2_grpc import AdminStub
from penstock.v1.inference_pb2 import PRIORITY_INTERACTIVE
from tier_process import address_of, tier_process, wait_for_event

ACME = pb.Tenant(tenant_id="acme", priority=PRIORITY_INTERACTIVE, weight=2.0, tokens_per_minute=1_000)
TOKEN = "t0ken"


def records(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def verified(path, head=""):
    verification = Verification(head)
    verification.add_file(path.read_bytes().splitlines(keepends=True))
    return verification.finish()


def store_of(tmp_path):
    return tmp_path / "auth.sqlite", tmp_path / "auth.sqlite.audit.jsonl"


async def reason_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return error_from_rpc(failure.value).reason


async def test_each_action_is_recorded_with_its_actor_parameters_and_result(tmp_path):
    store, path = store_of(tmp_path)
    async with auth_process(store) as found:
        admin = found.admin
        await admin.PutTenant(pb.PutTenantRequest(tenant=ACME))
        key = pb.CreateKeyRequest(tenant_id="acme", display_name="for Anna", ttl=Duration(seconds=60))
        made = await admin.CreateKey(key)
        await admin.RevokeKey(pb.RevokeKeyRequest(key_id=made.key.key_id))
        assert await reason_of(admin.CreateKey(pb.CreateKeyRequest(tenant_id="absent"))) == "TENANT_UNKNOWN"
        await admin.DeleteTenant(pb.DeleteTenantRequest(tenant_id="acme"))
        await admin.ListKeys(pb.ListKeysRequest())
        await admin.Drain(pb.DrainRequest(grace=Duration(seconds=3)))
    written = [(each["action"], each["parameters"], each["result"]) for each in records(path)]
    tenant = {
        "tenant_id": "acme",
        "priority": "PRIORITY_INTERACTIVE",
        "weight": 2.0,
        "requests_per_minute": 0,
        "tokens_per_minute": 1_000,
        "concurrent_requests": 0,
    }
    assert written == [
        ("log.begin", {}, "OK"),
        ("tenants.put", tenant, "begun"),
        ("tenants.put", {}, "OK"),
        ("keys.create", {"tenant_id": "acme", "display_name": "for Anna", "ttl": 60.0}, "begun"),
        ("keys.create", {"key_id": made.key.key_id}, "OK"),
        ("keys.revoke", {"key_id": made.key.key_id}, "begun"),
        ("keys.revoke", {"tenant_id": "acme"}, "OK"),
        ("keys.create", {"tenant_id": "absent", "display_name": ""}, "begun"),
        ("keys.create", {}, "NOT_FOUND/TENANT_UNKNOWN"),
        ("tenants.delete", {"tenant_id": "acme"}, "begun"),
        ("tenants.delete", {"deleted_keys": 1}, "OK"),
        ("process.drain", {"grace": 3.0}, "begun"),
        ("process.drain", {"running": 0}, "OK"),
    ]
    begun = [each["begun"] for each in records(path) if "begun" in each]
    assert begun == [2, 4, 6, 8, 10, 12]
    assert {each["actor"] for each in records(path)} == {"process", f"unix:{path.stat().st_uid}"}
    assert made.secret.removeprefix(f"pk_{made.key.key_id}_") not in path.read_text()
    assert verified(path).broken_at == 0


async def test_changes_of_limits_and_prices_are_recorded_with_all_values(tmp_path):
    store, path = store_of(tmp_path)
    limits = pb.KeyLimits(
        limits=pb.Limits(requests_per_minute=3),
        allowed_models=["m*"],
        budgets=[pb.Budget(period=pb.BUDGET_PERIOD_DAY, tokens=5)],
        shadow=True,
    )
    as_recorded = {
        "limits": {"requests_per_minute": 3},
        "allowed_models": ["m*"],
        "budgets": [{"period": "BUDGET_PERIOD_DAY", "tokens": "5"}],
        "shadow": True,
    }
    async with auth_process(store) as found:
        admin = found.admin
        made = await admin.CreateKey(pb.CreateKeyRequest(tenant_id="default", limits=limits))
        key_id = made.key.key_id
        await admin.PutKeyLimits(pb.PutKeyLimitsRequest(key_id=key_id, limits=limits))
        await admin.PutPrice(pb.PutPriceRequest(price=pb.Price(model="m", output_nanos=7)))
        await admin.DeletePrice(pb.DeletePriceRequest(model="m"))
        await admin.ListPrices(pb.ListPricesRequest())
        tenant = pb.Tenant(tenant_id="acme", model_limits=[pb.ModelLimits(model="m")], soft_share=0.5)
        await admin.PutTenant(pb.PutTenantRequest(tenant=tenant))
    begun = [(each["action"], each["parameters"]) for each in records(path) if each["result"] == "begun"]
    assert begun[:4] == [
        ("keys.create", {"tenant_id": "default", "display_name": "", "limits": as_recorded}),
        ("keys.limit", {"key_id": key_id, "limits": as_recorded}),
        ("prices.put", {"model": "m", "output_nanos": "7"}),
        ("prices.delete", {"model": "m"}),
    ]
    action, parameters = begun[4]
    assert (action, parameters["model_limits"], parameters["soft_share"]) == ("tenants.put", [{"model": "m"}], 0.5)


@asynccontextmanager
async def demo_server(**listeners):
    operators = OperatorListeners(**listeners)
    async with (
        serving("127.0.0.1:0", [], admin=AdminService("demo", "demo-1"), operators=operators) as server,
        channel(server.admin_address) as to_admin,
    ):
        yield AdminStub(to_admin)


async def test_refused_attempts_are_recorded_without_the_token_once_a_second(tmp_path):
    path = tmp_path / "audit.jsonl"
    async with demo_server(admin_listen="127.0.0.1:0", admin_token=TOKEN, audit_log=str(path)) as admin:
        for _ in range(20):
            await reason_of(admin.Drain(pb.DrainRequest(), metadata=(("authorization", "Bearer guess"),)))
    refused = [each for each in records(path) if each["action"] == "refused"]
    assert 1 <= len(refused) < 20
    assert refused[0]["actor"] == "unknown"
    assert refused[0]["peer"].startswith("ipv4:127.0.0.1:")
    assert refused[0]["parameters"] == {"method": "penstock.v1.Admin/Drain", "count": 1}
    assert refused[0]["result"] == "PERMISSION_DENIED/ADMIN_ONLY"
    assert sum(each["parameters"]["count"] for each in refused) == 20
    assert "guess" not in path.read_text()
    assert TOKEN not in path.read_text()


async def test_without_a_file_the_lines_are_in_the_log_and_can_be_verified(tmp_path):
    with capture_logs() as logs, admin_socket() as listen:
        async with demo_server(admin_listen=listen) as admin:
            await admin.Drain(pb.DrainRequest())
    lines = [each["line"] for each in logs if each["event"] == "audit"]
    assert [json.loads(line)["action"] for line in lines] == ["process.drain", "process.drain"]
    assert json.loads(lines[0])["previous"] == GENESIS
    heads = [each["head"] for each in logs if each["event"] == "audit_head"]
    assert (heads[0], len(heads)) == (GENESIS, 2)


async def test_the_chain_survives_kills_and_a_torn_line(tmp_path):
    """SIGKILL at any time leaves at most one incomplete line; the next process chains over it."""
    store, path = store_of(tmp_path)
    for number in range(3):
        async with auth_at(store) as (process, admin):
            writes = [
                asyncio.create_task(put_tenant(admin, f"tenant-{number}-{each}"), name=f"put {each}")
                for each in range(10)
            ]
            await writes[0]
            process.kill()
            await process.wait()
            await asyncio.gather(*writes, return_exceptions=True)
        with path.open("ab") as torn:
            torn.write(b'{"seq":9')
    async with auth_at(store) as (process, admin):
        await put_tenant(admin, "acme")
        process.terminate()
        head = (await wait_for_event(process, "audit_head"))["head"]
        assert await process.wait() == 0
    report = verified(path, head)
    assert (report.broken_at, len(report.torn_lines)) == (0, 3)
    assert [each["action"] for each in whole_records(path)].count("log.resume") == 3


def whole_records(path):
    return [json.loads(line) for line in path.read_bytes().splitlines() if line.endswith(b"}")]


async def put_tenant(admin, tenant_id):
    await admin.PutTenant(pb.PutTenantRequest(tenant=pb.Tenant(tenant_id=tenant_id)))


@asynccontextmanager
async def auth_at(store):
    async with tier_process("auth", STORE=str(store), DEV_KEY=DEV_KEY) as process:
        await address_of(process)
        async with channel(process.admin_address) as to_admin:
            yield process, AdminStub(to_admin)


async def test_on_a_full_disk_changes_are_refused_and_a_revocation_and_a_drain_are_not(tmp_path):
    store, path = store_of(tmp_path)
    async with auth_at(store) as (process, admin):
        made = await admin.CreateKey(pb.CreateKeyRequest(tenant_id="default"))
        written = path.read_bytes()
        psutil.Process(process.pid).rlimit(psutil.RLIMIT_FSIZE, (0, psutil.RLIM_INFINITY))
        for change, request in (
            (admin.PutTenant, pb.PutTenantRequest(tenant=ACME)),
            (admin.CreateKey, pb.CreateKeyRequest(tenant_id="default")),
            (admin.DeleteTenant, pb.DeleteTenantRequest(tenant_id="default")),
        ):
            assert await reason_of(change(request)) == "AUDIT_UNAVAILABLE"
        assert len((await admin.ListTenants(pb.ListTenantsRequest())).tenants) == 1
        assert await reason_of(admin.RevokeKey(pb.RevokeKeyRequest(key_id=made.key.key_id))) == "STORE_UNAVAILABLE"
        listed = {each.key_id: each for each in (await admin.ListKeys(pb.ListKeysRequest())).keys}
        assert listed[made.key.key_id].HasField("revoke_time")
        await admin.Drain(pb.DrainRequest())
        failed = await wait_for_event(process, "audit_write_failed")
        assert (failed["action"], failed["parameters"]["tenant_id"]) == ("tenants.put", "acme")
        await process.wait()
        assert path.read_bytes() == written
    assert verified(path).broken_at == 0


async def test_a_file_that_cannot_be_written_stops_the_start(tmp_path):
    with admin_socket() as listen, pytest.raises(ConfigError, match="cannot write the audit log"):
        async with demo_server(admin_listen=listen, audit_log=str(tmp_path / "absent" / "audit.jsonl")):
            pass
    assert not current_stop().is_requested


async def test_the_command_verifies_and_shows_a_log(tmp_path):
    store, path = store_of(tmp_path)
    async with auth_process(store) as found:
        await put_tenant(found.admin, "acme")
        await put_tenant(found.admin, "other")
    code, out, _ = await run_penstock("audit", "verify", str(path))
    assert (code, out.split(";")[0]) == (0, "5 lines, whole")
    code, out, _ = await run_penstock("audit", "show", str(path), "--action", "tenants", "--json")
    assert [each["seq"] for each in json.loads(out)] == [2, 3, 4, 5]
    code, out, _ = await run_penstock("audit", "show", str(path), "--since", "2100-01-01", "--json")
    assert (code, json.loads(out)) == (0, [])
    _, out, _ = await run_penstock("audit", "show", str(path), "--actor", "process")
    assert "log.begin" in out
    assert "tenants.put" not in out
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    code, _, err = await run_penstock("audit", "verify", str(path))
    assert code == 1
    assert err.startswith("broken at line 3: `previous` is not the hash of the line before it")
    path.write_bytes(b"".join(lines[:-1]))
    head = json.loads(lines[-1])["previous"]
    assert (await run_penstock("audit", "verify", str(path), "--head", head))[0] == 0
    code, _, err = await run_penstock("audit", "verify", str(path), "--head", "0" * 64)
    assert (code, "removed from the end" in err) == (1, True)
