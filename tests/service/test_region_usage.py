"""Usage of a region that follows a home: the home has its totals, also after a cut and after restarts."""

import asyncio

import pytest

from auth_server import FakeClock, edge
from penstock.chassis.observability.metrics import REGISTRY
from penstock.local_mesh.tcp_relay import CutDirection
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1 import admin_pb2 as pb
from region_auths import TIMEOUT_S, create_key, fast, follows, home_region, spending_region, wait_until

pytestmark = pytest.mark.usefixtures("fast")
__all__ = ["fast"]
REFUSED = "penstock_auth_refused_usage_total"


async def wait_for_usage(found, expected):
    """Wait until an operator of the process sees these requests of the tenant by region."""
    chosen = pb.UsageFilter(tenant_id="acme")
    chosen.start_time.FromSeconds(int(found.clock.now) - 3_600)
    chosen.end_time.FromSeconds(int(found.clock.now) + 3_600)
    request, seen = pb.QueryUsageRequest(filter=chosen, groups=[pb.USAGE_GROUP_REGION]), {}
    async with asyncio.timeout(TIMEOUT_S):
        while seen != expected:
            rows = [row async for answer in found.admin.QueryUsage(request) for row in answer.rows]
            seen = {row.region: row.requests for row in rows}


async def spend(found, secret, count):
    async with edge(found) as stream:
        for number in range(count):
            request_id = f"{found.clock.now}-{number}"
            admitted = await stream.reserve(request_id, credential=Credential(bearer=secret))
            await stream.settle(admitted.reservation_id, tenant_id="acme")


async def test_a_region_whose_clock_is_far_ahead_is_refused_its_reports_alone(tmp_path):
    """Its stream, and its shares, go on. Once its home's clock is near, the usage arrives."""
    clock, ahead = FakeClock(), FakeClock()
    ahead.now += 5 * 3_600
    async with home_region(tmp_path / "eu.sqlite", clock=clock) as ([eu], link):
        secret = await create_key(eu, requests_per_minute=100)
        async with spending_region(link, tmp_path / "us.sqlite", clock=ahead) as [us]:
            await follows(us)
            await wait_until(lambda: us.authorizer.reservations.quota("acme"))
            [stream] = us.role.follower._streams
            refused = REGISTRY.get_sample_value(REFUSED, {"field": "hour"}) or 0
            await spend(us, secret, 2)
            await wait_until(lambda: (REGISTRY.get_sample_value(REFUSED, {"field": "hour"}) or 0) > refused)
            ahead.now += 90
            assert us.figures["usage_lag"] >= 90
            async with edge(us) as caller:
                while not us.figures["share_changes"]:
                    await caller.reserve(f"r-{ahead.now}", credential=Credential(bearer=secret))
                    ahead.now += 0.01
            assert list(us.role.follower._streams) == [stream]
            assert us.role.follower.is_following
            clock.now = ahead.now
            await wait_for_usage(eu, {"us": 2})
            await wait_until(lambda: us.figures["usage_lag"] == 0)


async def test_the_home_has_the_usage_of_all_regions_after_a_cut_and_a_restart(tmp_path):
    clock, path = FakeClock(), tmp_path / "us.sqlite"
    async with home_region(tmp_path / "eu.sqlite", clock=clock) as ([eu], link):
        secret = await create_key(eu)
        async with spending_region(link, path, clock=clock) as [us]:
            await follows(us)
            await wait_until(lambda: us.authorizer.reservations.quota("acme"))
            await spend(eu, secret, 1)
            await spend(us, secret, 2)
            await wait_for_usage(eu, {"eu": 1, "us": 2})
            link.cut(CutDirection.BOTH)
            await wait_until(lambda: not us.role.follower.is_following)
            clock.now += 1
            await spend(us, secret, 3)
        link.restore()
        async with spending_region(link, path, clock=clock):
            await wait_for_usage(eu, {"eu": 1, "us": 5})
