"""The process of auth: invalid settings, and the state that survives a kill."""

import asyncio
import signal

import grpc
import psutil
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from auth_process import auth_process
from auth_server import (
    DEV_KEY,
    SECRETS,
    edge,
    tenant_use,
)
from penstock.auth.config import AuthConfig
from penstock.chassis.channels import channel
from penstock.chassis.config import ConfigError, load
from penstock.chassis.errors import Unavailable
from penstock.mesh.v1.admission_pb2 import Credential, Settle
from penstock.v1 import admin_pb2 as pb
from response_calls import PATIENT, create, extend, finish, part, progress, read, response_stream
from tier_process import wait_for_event


@pytest.mark.parametrize("key", ["dev", "pk_dev_short", "sk-1234567890123456789012345678"])
def test_a_malformed_dev_key_prevents_the_start(key):
    with pytest.raises(ConfigError, match="pk_ID_SECRET"):
        load(AuthConfig, "auth", {"PENSTOCK_AUTH_DEV_KEY": key})


def test_secrets_are_not_shown_with_the_settings():
    config = AuthConfig(dev_key=DEV_KEY, **SECRETS)
    assert not any(secret in repr(config) for secret in (DEV_KEY, *SECRETS.values()))


async def test_the_state_survives_a_kill_and_a_drain_exits_with_status_0(tmp_path):
    """Reservations and secrets survive SIGKILL; SIGTERM drains the process."""
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
        assert (await stream.receive()).reason == "draining"
        stream.call.cancel()
        assert await asyncio.wait_for(process.wait(), 20) == 0


OVERFLOW_ON_A_TENANT = """
from penstock.auth.store.sqlite import sql
from penstock.auth.store.store import PutTenant
def apply(connection, change, original=sql.apply, **options):
    if isinstance(change, PutTenant):
        connection.execute("SELECT ?", (2**63,))  # raises OverflowError, which is not an error of SQLite
    original(connection, change, **options)
sql.apply = apply
"""


async def test_a_failed_store_thread_ends_the_process_after_health_and_edges_were_told(tmp_path):
    async with auth_process(tmp_path, before=OVERFLOW_ON_A_TENANT) as (process, found), edge(found) as stream:
        admitted = await stream.reserve()
        async with channel(found.address) as to_auth:
            health = HealthStub(to_auth).Watch(HealthCheckRequest())
            assert (await health.read()).status == HealthCheckResponse.SERVING
            with pytest.raises(grpc.aio.AioRpcError):
                await found.admin.PutTenant(pb.PutTenantRequest(tenant=pb.Tenant(tenant_id="acme")))
            assert (await health.read()).status == HealthCheckResponse.NOT_SERVING
        assert (await stream.receive()).is_unavailable
        assert (await stream.receive()).reason == "draining"
        stream.call.cancel()
        assert "OverflowError" in (await wait_for_event(process, "store_thread_failed"))["error"]
        assert await asyncio.wait_for(process.wait(), 20) == 1
    async with auth_process(tmp_path) as (_, found), edge(found) as stream:
        assert (await stream.settle(admitted.reservation_id)).reservation_id == admitted.reservation_id
        assert (await tenant_use(found)).requests == 1


async def test_a_stop_while_the_disk_is_full_fails_and_edges_repeat_the_charges(tmp_path):
    async with auth_process(tmp_path) as (process, found), edge(found) as stream:
        admitted = [await stream.reserve(f"request-{number}") for number in range(3)]
        limit_file_size(process, 0)
        for each in admitted:
            await stream.send(settle=Settle(reservation_id=each.reservation_id, prompt_tokens=10, output_tokens=7))
        assert (await stream.receive()).is_unavailable
        process.send_signal(signal.SIGTERM)
        assert (await stream.receive()).reason == "draining"
        stream.call.cancel()
        assert (await wait_for_event(process, "charges_not_persisted"))["count"] == 3
        assert await asyncio.wait_for(process.wait(), 20) == 1
    async with auth_process(tmp_path) as (_, found), edge(found) as stream:
        assert (await tenant_use(found)).concurrent_requests == 3
        for each in [*admitted, *admitted]:
            assert (await stream.settle(each.reservation_id)).reservation_id == each.reservation_id
        use = await tenant_use(found)
        assert (use.requests, use.prompt_tokens, use.output_tokens) == (3, 30, 21)


def limit_file_size(process, size):
    """Let every write beyond `size` bytes of a file fail, as on a full disk."""
    child = psutil.Process(process.pid)
    _, hard = child.rlimit(psutil.RLIMIT_FSIZE)
    child.rlimit(psutil.RLIMIT_FSIZE, (size, hard))


async def test_no_stored_response_that_was_acknowledged_is_lost_by_a_kill(tmp_path):
    """The process is killed while calls are open. What is in doubt may be repeated."""
    async with auth_process(tmp_path, before=PATIENT) as (process, found), response_stream(found.responses) as stream:
        created = [await stream.send(create(f"r{number}", request=b"%d" % number)) for number in range(40)]
        for number, each in enumerate(created):
            await stream.receive(each)
            if number % 2:
                await stream(extend(progress(f"r{number}", tokens=part(0, 3))))
        await stream(finish("r1", tokens=part(3, 2), output=b"answer"))
        for number in range(40, 60):
            await stream.send(create(f"r{number}", request=b"%d" % number))
        process.kill()
        await process.wait()
    async with auth_process(tmp_path, before=PATIENT) as (process, found), response_stream(found.responses) as stream:
        for number in range(40):
            (stored,) = await stream(read(f"r{number}"))
            assert (stored.request, stored.token_count) == (b"%d" % number, 5 if number == 1 else 3 * (number % 2))
        await stream(finish("r1", tokens=part(3, 2), output=b"answer"))
        for number in range(40, 60):
            assert await stream(create(f"r{number}", request=b"%d" % number)) == 1
        process.send_signal(signal.SIGTERM)
        assert await stream.receive_end() == "draining"
        stream.call.cancel()
        assert await asyncio.wait_for(process.wait(), 20) == 0


async def test_a_full_disk_makes_the_store_of_responses_unavailable_until_it_has_space(tmp_path):
    async with auth_process(tmp_path, before=PATIENT) as (process, found), response_stream(found.responses) as stream:
        await stream(create())
        limit_file_size(process, 0)
        with pytest.raises(Unavailable) as error:
            await stream(create("r2"))
        assert error.value.reason == "STORE_UNAVAILABLE"
        await stream(read())
        limit_file_size(process, psutil.RLIM_INFINITY)
        assert await stream(create("r2")) == 1
