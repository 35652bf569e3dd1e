"""The process of auth: invalid settings, and the state that survives a kill."""

import asyncio
import signal
from contextlib import asynccontextmanager

import pytest

from auth_server import (
    DEV_KEY,
    SECRETS,
    AuthProcess,
    FakeClock,
    edge,
)
from penstock.auth.config import AuthConfig
from penstock.chassis.channels import channel
from penstock.chassis.config import ConfigError, load
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.mesh.v1.admission_pb2_grpc import AdmissionServiceStub
from penstock.v1 import admin_pb2 as pb
from penstock.v1.admin_pb2_grpc import AdminStub
from tier_process import address_of, tier_process


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


@asynccontextmanager
async def auth_process(folder):
    async with tier_process("auth", STORE=str(folder / "auth.sqlite"), DEV_KEY=DEV_KEY) as process:
        address = await address_of(process)
        async with channel(address) as to_auth:
            yield process, AuthProcess(None, address, FakeClock(), AdminStub(to_auth), AdmissionServiceStub(to_auth))
