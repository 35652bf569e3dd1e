"""Processes of auth on PostgreSQL: takeover after a kill, a pause and a drain; roles and passwords."""

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import psycopg
import pytest

from auth_server import DEV_KEY, AuthProcess, FakeClock, edge, rejection_of, tenant_use
from penstock.chassis.channels import channel
from penstock.chassis.database.errors import StoreUnusable
from penstock.chassis.errors import error_from_rpc
from penstock.mesh.partitions import PARTITIONS, partition_of
from penstock.mesh.v1.admission_pb2 import Admitted, Credential, Identified, NotOwner, Rejected, Settle, Settled
from penstock.mesh.v1.admission_pb2_grpc import AdmissionServiceStub
from penstock.mesh.v1.responses_pb2_grpc import ResponseStoreServiceStub
from penstock.v1 import admin_pb2 as pb
from penstock.v1.admin_pb2_grpc import AdminStub
from penstock.v1.route_pb2 import Route, RouteDefinition, RouteTarget
from response_calls import PATIENT, claim, create, finish, part, read, response_stream
from store_changes import stored_state
from stores import administer
from tier_process import address_of, tier_process, wait_for_event

PASSWORD = "hunter2-secret"
PATIENT_ON_POSTGRES = f"""
{PATIENT}
import penstock.auth.store.responses.postgres as postgres
postgres.STATEMENT_TIMEOUT_S = 60.0
"""


@asynccontextmanager
async def auth_process(store, **more):
    async with tier_process("auth", STORE=store, DEV_KEY=DEV_KEY, **more) as process:
        yield process


@asynccontextmanager
async def connected(process):
    address = await address_of(process)
    async with channel(address) as to_auth, channel(process.admin_address) as to_admin:
        yield AuthProcess(None, address, FakeClock(), AdminStub(to_admin), AdmissionServiceStub(to_auth))


async def test_a_killed_process_is_replaced_with_its_keys_reservations_and_secrets(database):
    async with auth_process(database) as first:
        async with connected(first) as found, edge(found, beats=True) as stream:
            made = await found.admin.CreateKey(pb.CreateKeyRequest(tenant_id="default"))
            credential = Credential(bearer=made.secret)
            admitted = await stream.reserve(credential=credential)
            first.kill()
        async with auth_process(database) as second, connected(second) as found, edge(found, beats=True) as stream:
            again = await stream.reserve_at_owner(credential=credential)
            assert again.reservation_id == admitted.reservation_id
            assert again.identity.cache_salt == admitted.identity.cache_salt
            await stream.settle(admitted.reservation_id)
            assert (await tenant_use(found)).requests == 1


async def test_replicas_share_the_partitions_and_each_says_who_is_not_its_own(database):
    async with replicas(database, 3) as streams:
        owned = [each.owned_partitions for each in streams]
        assert sorted(len(each.partitions) for each in owned) == [21, 21, 22]
        assert sorted(partition for each in owned for partition in each.partitions) == list(range(PARTITIONS))
        answers = [await each.reserve() for each in streams]
        assert sorted(type(each).__name__ for each in answers) == ["Admitted", "NotOwner", "NotOwner"]
        (admitted,) = (each for each in answers if isinstance(each, Admitted))
        others = [each for each in answers if isinstance(each, NotOwner)]
        assert all(each.identity.tenant_id == "default" for each in others)
        told = [await each.settle(admitted.reservation_id) for each in streams]
        assert sorted(type(each).__name__ for each in told) == ["NotOwner", "NotOwner", "Settled"]
        assert all(each.reservation_id == admitted.reservation_id for each in told)
    assert administer(database, "SELECT requests, output_tokens FROM usage") == [(1, 7)]


async def test_a_replica_that_drains_hands_its_reservations_over_before_it_ends(database):
    async with auth_process(database) as first, connected(first) as found, edge(found, beats=True) as stream:
        admitted = await stream.reserve()
        async with auth_process(database) as second, connected(second) as other, edge(other, beats=True) as later:
            await until_owner_of(stream, PARTITIONS // 2)
            first.send_signal(signal.SIGTERM)
            assert (await stream.receive()).reason == "draining"
            assert list(stream.owned_partitions.partitions) == []
            again = await later.reserve_at_owner()
            assert again.reservation_id == admitted.reservation_id
            await until_owner_of(later, PARTITIONS)
            stream.call.cancel()
            assert await asyncio.wait_for(first.wait(), 20) == 0


async def test_a_paused_replica_spends_nothing_after_another_took_over_and_shares_the_work_again(database):
    async with auth_process(database) as paused, connected(paused) as found, edge(found, beats=True) as stream:
        admitted = await stream.reserve()
        os.kill(paused.pid, signal.SIGSTOP)
        await stream.send(settle=Settle(reservation_id=admitted.reservation_id, prompt_tokens=10, output_tokens=20))
        async with auth_process(database) as second, connected(second) as other, edge(other, beats=True) as later:
            again = await later.reserve_at_owner()
            assert again.reservation_id == admitted.reservation_id
            assert (await later.settle(admitted.reservation_id)).reservation_id == admitted.reservation_id
            os.kill(paused.pid, signal.SIGCONT)
            async with edge(found, "edge-2") as resumed:
                assert isinstance(await resumed.settle(admitted.reservation_id), NotOwner | Settled)
                await until_owner_of(resumed, PARTITIONS // 2)
            assert administer(database, "SELECT requests, output_tokens FROM usage") == [(1, 7)]


async def test_a_key_and_a_limit_that_one_replica_has_received_hold_at_all(database):
    async with (
        replica(database) as (one, here),
        replica(database) as (other, there),
    ):
        await one.admin.PutTenant(pb.PutTenantRequest(tenant=pb.Tenant(tenant_id="acme", concurrent_requests=1)))
        made = await one.admin.CreateKey(pb.CreateKeyRequest(tenant_id="acme"))
        credential = Credential(bearer=made.secret)
        await until_identified(there, credential)
        listed = await other.admin.ListTenants(pb.ListTenantsRequest())
        assert {each.tenant_id: each.concurrent_requests for each in listed.tenants} == {"acme": 1, "default": 0}
        await until_owner_of(there, PARTITIONS // 2)
        owner, stream = (one, here) if partition_of("acme") in await owned_by(here) else (other, there)
        stranger = other if owner is one else one
        await stream.reserve(credential=credential)
        use = await tenant_use(stranger, "acme")  # its owner has written it
        assert (use.concurrent_requests, use.reserved_tokens) == (1, 30)
        assert use == await tenant_use(owner, "acme")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stranger.admin.DeleteTenant(pb.DeleteTenantRequest(tenant_id="acme"))
        assert error_from_rpc(raised.value).reason == "NOT_OWNER"
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await owner.admin.DeleteTenant(pb.DeleteTenantRequest(tenant_id="acme"))
        assert error_from_rpc(raised.value).reason == "TENANT_BUSY"
        await other.admin.RevokeKey(pb.RevokeKeyRequest(key_id=made.key.key_id))
        await until_rejected(here, credential, "KEY_REVOKED")
        await until_rejected(there, credential, "KEY_REVOKED")


async def test_limits_of_keys_prices_and_budgets_hold_at_all_replicas_and_over_a_takeover(database):
    """A reservation costs 50 nanos: 10 tokens of input at 1 and 20 of output at 2."""
    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(auth_process(database)) for _ in range(2)]
        founds = [await stack.enter_async_context(connected(each)) for each in processes]
        streams = [await stack.enter_async_context(edge(each, beats=True)) for each in founds]
        for each in streams:
            await until_owner_of(each, PARTITIONS // 2)
        owner = 0 if partition_of("acme") in await owned_by(streams[0]) else 1
        stranger = founds[1 - owner].admin
        price = pb.Price(model="m", input_nanos=1_000_000, output_nanos=2_000_000)
        await stranger.PutPrice(pb.PutPriceRequest(price=price))
        budget = pb.Budget(period=pb.BUDGET_PERIOD_MONTH, money_nanos=120)
        await stranger.PutTenant(pb.PutTenantRequest(tenant=pb.Tenant(tenant_id="acme", budgets=[budget])))
        own = pb.KeyLimits(limits=pb.Limits(requests_per_minute=2))
        made = await stranger.CreateKey(pb.CreateKeyRequest(tenant_id="acme", limits=own))
        credential = Credential(bearer=made.secret)
        await until_identified(streams[owner], credential)  # the catalog has arrived, with the price and the limits
        first = await streams[owner].reserve("request-1", credential=credential)
        assert first.rate_limits.limit_requests == 2
        await streams[owner].reserve("request-2", credential=credential)
        refused = rejection_of(await streams[owner].reserve("request-3", credential=credential))
        assert sorted(each.subject for each in refused.quota_violations) == [f"key:{made.key.key_id}", "tenant:acme"]
        uses = [await tenant_use(each, "acme") for each in founds]
        assert [(each.spent, each.reserved) for each in uses[owner].budgets] == [(0, 100)]
        assert [(each.spent, each.reserved) for each in uses[1 - owner].budgets] == [(100, 0)]
        await streams[owner].settle(first.reservation_id, prompt=10, output=0, tenant_id="acme")
        processes[owner].kill()
        later = streams[1 - owner]
        again = await later.reserve_at_owner(request_id="request-2", credential=credential)
        assert isinstance(again, Admitted)
        refused = rejection_of(await later.reserve("request-3", prompt=30, output=20, credential=credential))
        assert refused.reason == "BUDGET_EXCEEDED"
        use = await tenant_use(founds[1 - owner], "acme")
        assert [(each.spent, each.reserved) for each in use.budgets] == [(10, 50)]


async def test_edges_of_each_replica_receive_a_route_that_one_replica_has_stored(database):
    async with replica(database) as (one, here), replica(database) as (other, there):
        await owned_by(here)
        await owned_by(there)
        for model, admin in (("a", one.admin), ("b", other.admin)):
            definition = RouteDefinition(targets=[RouteTarget(model=model, weight=1)])
            await admin.PutRoute(pb.PutRouteRequest(route=Route(name="gpt-4o", definition=definition)))
            for stream in (here, there):
                await until_routed(stream, model)
        [route] = (await one.admin.ListRoutes(pb.ListRoutesRequest())).routes
        assert (route.revision, [each.model for each in route.former.targets]) == (2, ["a"])


async def until_routed(stream, model):
    """Wait until an edge has received the route to a model as the latest one."""
    async with asyncio.timeout(20):
        while [each.model for route in stream.routes[-1].routes for each in route.definition.targets] != [model]:
            await stream.identify(Credential())
            await asyncio.sleep(0.05)


@asynccontextmanager
async def replica(store):
    """Yield a process and a stream of an edge to it."""
    async with auth_process(store) as process, connected(process) as found, edge(found, beats=True) as stream:
        yield found, stream


@asynccontextmanager
async def replicas(store, count):
    """Yield a stream of one edge to each of some replicas, once each owns its share."""
    async with AsyncExitStack() as stack:
        streams = [(await stack.enter_async_context(replica(store)))[1] for _ in range(count)]
        async with asyncio.timeout(20):
            while sum([len(await owned_by(each)) for each in streams]) < PARTITIONS:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.05)
        for each in streams:
            await until_owner_of(each, PARTITIONS // count)
        yield streams


async def owned_by(stream):
    """Return the partitions of a replica, as it has told until it answers."""
    await stream.identify(Credential())
    return stream.owned_partitions.partitions


async def until_owner_of(stream, partitions):
    """Ask until the replica owns this number of partitions, or one more."""
    async with asyncio.timeout(20):
        while len(await owned_by(stream)) not in (partitions, partitions + 1):  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.01)


async def until_identified(stream, credential):
    async with asyncio.timeout(20):
        while not isinstance(await stream.identify(credential), Identified):  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.05)


async def until_rejected(stream, credential, reason):
    async with asyncio.timeout(20):
        while not isinstance(answer := await stream.identify(credential), Rejected):  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.05)
    assert rejection_of(answer).reason == reason


@pytest.fixture
def with_password(postgres, database):
    """The URL without a password for a role that owns nothing and needs a password."""
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    hba = postgres.home / "data" / "pg_hba.conf"
    before = hba.read_text()
    hba.write_text(f"local all penstock scram-sha-256\n{before}")
    administer(
        database,
        "SELECT pg_reload_conf()",
        f"CREATE ROLE penstock LOGIN PASSWORD '{PASSWORD}'",
        "CREATE SCHEMA mesh AUTHORIZATION penstock",
        "ALTER ROLE penstock SET search_path = mesh",
    )
    yield f"postgresql://penstock@/{name}?host={postgres.home}"
    hba.write_text(before)
    administer(database, "DROP OWNED BY penstock", "DROP ROLE penstock", "SELECT pg_reload_conf()")


async def test_a_role_needs_a_schema_to_create_in_and_a_password_may_be_in_the_environment_or_a_file(
    with_password, monkeypatch, tmp_path
):
    with pytest.raises(StoreUnusable, match="check host, port, database, role and password"):
        await stored_state(with_password)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGPASSWORD", PASSWORD)
        state = await stored_state(with_password)
    file = tmp_path / "pgpass"
    file.write_text(f"*:*:*:penstock:{PASSWORD}\n")
    file.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    assert (await stored_state(with_password)).secrets == state.secrets
    monkeypatch.delenv("PGPASSFILE")
    in_url = with_password.replace("penstock@", f"penstock:{PASSWORD}@")
    assert (await stored_state(in_url)).secrets == state.secrets


async def test_a_role_without_a_schema_to_create_in_is_an_error_that_says_what_it_needs(database):
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    administer(database, f"CREATE ROLE weak_{name} LOGIN")
    with pytest.raises(StoreUnusable, match="USAGE and CREATE on a schema"):
        await stored_state(database.replace("postgres@", f"weak_{name}@"))
    administer(database, f"DROP ROLE weak_{name}")


@pytest.mark.parametrize(
    "place", ["127.0.0.1:1/usage", "127.0.0.1:1/usage?connect_timeout=1&password=" + PASSWORD, "[broken/usage"]
)
async def test_no_log_line_or_error_has_the_password(place):
    url = f"postgresql://auth:{PASSWORD}@{place}"
    async with auth_process(url) as process:
        _, log = await process.communicate()
    assert process.returncode != 0
    assert b"PENSTOCK_AUTH_STORE" in log
    assert PASSWORD.encode() not in log


async def test_an_outage_and_the_lost_partitions_are_logged_without_the_password(postgres, with_password, database):
    url = with_password.replace("penstock@", f"penstock:{PASSWORD}@")
    async with auth_process(url, LOG_LEVEL="debug") as process:
        lines = [await wait_for_event(process, "listening")]
        administer(database, "ALTER ROLE penstock NOLOGIN")
        administer(database, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'penstock'")
        lines.append(await wait_for_event(process, "store_unavailable"))
        administer(database, "ALTER ROLE penstock LOGIN")
        lines.append(await wait_for_event(process, "store_available"))
        administer(database, "UPDATE mesh.partitions SET epoch = epoch + 1")
        lines.append(await wait_for_event(process, "partitions_lost"))
        process.send_signal(signal.SIGTERM)
        _, rest = await process.communicate()
    assert process.returncode == 0
    assert PASSWORD not in json.dumps(lines) + rest.decode()


async def test_any_replica_serves_the_responses_of_any_tenant(database):
    """A replica is killed with a response that it has stored; the other one gives it to another edge."""
    async with (
        auth_process(database, before=PATIENT_ON_POSTGRES) as first,
        responses_of(first) as one,
        responses_in(database) as other,
    ):
        for number in range(20):
            await one(create(f"r{number}", tenant_id=f"tenant-{number}", background=True, lease_s=0.2))
        claims = [asyncio.create_task(stream(claim(limit=20))) for stream in (one, other)]
        await other(create("ended", tenant_id="tenant-1"))
        await one(finish("ended", tenant_id="tenant-1", tokens=part(0, 3)))
        claimed = [each for found in await asyncio.gather(*claims) for each in found]
        first.kill()
        (found,) = await other(read("ended", tenant_id="tenant-1"))
        assert found.token_count == 3
        async with asyncio.timeout(20):
            while len(claimed) < 20:
                claimed += await other(claim(limit=20))
        assert len({each.key.response_id for each in claimed}) == 20
        for each in claimed:
            await other(finish(each.key.response_id, each.epoch, tenant_id=each.key.tenant_id))


@asynccontextmanager
async def responses_in(database):
    async with auth_process(database, before=PATIENT_ON_POSTGRES) as process, responses_of(process) as found:
        yield found


@asynccontextmanager
async def responses_of(process):
    address = await address_of(process)
    async with channel(address) as to_auth, response_stream(ResponseStoreServiceStub(to_auth)) as found:
        yield found
