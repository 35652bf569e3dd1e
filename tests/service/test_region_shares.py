"""Limits of a tenant that is used from two regions, at real auths: the sum, moves of shares, a cut link, restarts."""

from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count

import pytest

from auth_server import FakeClock, edge
from penstock.auth.regions.share import FLOOR, FULL
from penstock.local_mesh.tcp_relay import CutDirection
from penstock.mesh.v1.admission_pb2 import Admitted, Credential
from penstock.v1 import admin_pb2 as pb
from region_auths import create_key, fast, follows, home_region, spending_region, wait_until
from stores import new_database

pytestmark = pytest.mark.usefixtures("fast")
__all__ = ["fast"]
LIMIT = 60  # requests per minute
STEP_S = 0.2
TENANT_SCOPE = ""


@pytest.fixture(params=["sqlite", "postgres"])
def stores(request, tmp_path):
    """A store of each region."""
    if request.param == "sqlite":
        yield tmp_path / "eu.sqlite", tmp_path / "us.sqlite"
        return
    server = request.getfixturevalue("postgres")
    with new_database(server) as home, new_database(server) as region:
        yield home, region


class Callers:
    """Callers of one tenant in two regions. The clock of both runs as fast as the test."""

    def __init__(self, clock, secret, **streams):
        self.clock = clock
        self.streams = streams
        self.admitted = dict.fromkeys(streams, 0)
        self._credential = Credential(bearer=secret)
        self._numbers = count()

    async def call(self, region):
        """Make a request in a region. Return whether it was admitted."""
        answer = await self.streams[region].reserve(f"r{next(self._numbers)}", credential=self._credential)
        if isinstance(answer, Admitted):
            self.admitted[region] += 1
            await self.streams[region].settle(answer.reservation_id, tenant_id="acme")
        return isinstance(answer, Admitted)

    async def run(self, seconds, *regions):
        """Call in these regions for a time of the clock."""
        for _ in range(round(seconds / STEP_S)):
            for region in regions:
                await self.call(region)
            self.clock.now += STEP_S


@asynccontextmanager
async def shared_tenant(stores):
    clock = FakeClock()
    async with AsyncExitStack() as stack:
        [eu], link = await stack.enter_async_context(home_region(stores[0], clock=clock))
        secret = await create_key(eu, requests_per_minute=LIMIT)
        [us] = await stack.enter_async_context(spending_region(link, stores[1], clock=clock))
        await follows(us)
        await wait_until(lambda: us.authorizer.reservations.quota("acme"))
        streams = {
            name: await stack.enter_async_context(edge(each, beats=True))
            for name, each in zip(("eu", "us"), (eu, us), strict=True)
        }
        yield eu, us, link, Callers(clock, secret, **streams)


def held(us):
    return us.authorizer.shares.of("acme", TENANT_SCOPE).rates


def own(eu):
    return eu.authorizer.shares.own("acme", TENANT_SCOPE).rates


async def test_the_region_that_is_used_gets_the_limit_and_both_together_never_exceed_it(stores):
    async with shared_tenant(stores) as (eu, us, _, callers):
        assert (own(eu), held(us)) == (FULL - FLOOR.rates, FLOOR.rates)
        began = callers.clock.now
        await callers.run(20, "us")
        await wait_until(lambda: held(us) >= 900)
        assert own(eu) + held(us) <= FULL
        await callers.run(20, "us", "eu")
        await callers.run(20, "eu")
        passed = callers.clock.now - began
        total = sum(callers.admitted.values())
        assert total <= LIMIT + passed * LIMIT / 60 + 2
        assert total >= 0.5 * passed * LIMIT / 60, "the limit is used, not only kept"


async def test_regions_that_are_cut_off_go_on_within_their_shares(stores):
    async with shared_tenant(stores) as (eu, us, link, callers):
        await callers.run(15, "us", "eu")
        link.cut(CutDirection.BOTH)
        await wait_until(lambda: not us.role.follower.is_following)
        shares = own(eu), held(us)
        assert sum(shares) <= FULL
        before, began = dict(callers.admitted), callers.clock.now
        await callers.run(60, "us", "eu")
        assert (own(eu), held(us)) == shares
        passed = callers.clock.now - began
        for region, share in zip(("eu", "us"), shares, strict=True):
            part = LIMIT * share / FULL
            assert 0 < callers.admitted[region] - before[region] <= part + passed * part / 60 + 2
        link.restore()
        await follows(us)


async def test_shares_survive_restarts_of_both_sides(stores):
    async with shared_tenant(stores) as (eu, us, _, callers):
        await callers.run(20, "us")
        await wait_until(lambda: held(us) >= 900)
        shares = own(eu), held(us)
    clock = callers.clock
    async with (
        home_region(stores[0], clock=clock) as ([eu], link),
        spending_region(link, stores[1], clock=clock) as [us],
    ):
        assert held(us) == shares[1]
        assert own(eu) <= shares[0]
        await follows(us)
        await wait_until(lambda: own(eu) == shares[0])


async def test_a_limit_that_changes_holds_in_both_regions(stores):
    async with shared_tenant(stores) as (eu, us, _, callers):
        await callers.run(10, "us", "eu")
        tenant = pb.Tenant(tenant_id="acme", requests_per_minute=10)
        await eu.admin.PutTenant(pb.PutTenantRequest(tenant=tenant))
        await wait_until(lambda: us.authorizer.reservations.quota("acme").tenant.requests_per_minute == 10)
        before, began = sum(callers.admitted.values()), callers.clock.now
        await callers.run(30, "us", "eu")
        passed = callers.clock.now - began
        assert sum(callers.admitted.values()) - before <= 10 + passed * 10 / 60 + 2


async def test_a_region_learns_from_its_home_what_one_region_can_have_at_most():
    clock = FakeClock()
    async with home_region(clock=clock, spending_regions=("us", "ap", "sa")) as ([eu], link):
        secret = await create_key(eu, tokens_per_minute=1_000)
        async with spending_region(link, clock=clock) as [us]:
            await follows(us)
            await wait_until(lambda: us.authorizer.reservations.quota("acme"))
            for region in (eu, us):
                async with edge(region) as stream:
                    call = {"credential": Credential(bearer=secret), "output": 0}
                    answer = await stream.reserve("r-large", prompt=851, **call)
                    assert "which can have 850 at most" in answer.failure.message
                    assert not answer.failure.HasField("retry_after")


async def test_a_region_may_change_to_a_store_whose_epochs_are_lower(postgres, tmp_path):
    """Its exchange of shares begins as soon as no stream of the former store is left, without a restart at home."""
    clock = FakeClock()
    with new_database(postgres) as database:
        async with home_region(tmp_path / "eu.sqlite", clock=clock) as ([eu], link):
            secret = await create_key(eu, requests_per_minute=LIMIT)
            async with spending_region(link, database, clock=clock) as [former]:
                await follows(former)
                assert min(former.authorizer.served.epochs.values()) > 0
                async with spending_region(link, tmp_path / "us.sqlite", clock=clock, name="us-new") as [us]:
                    await wait_until(lambda: "was begun with epoch" in us.role.follower._problem)
                    assert former.role.follower.is_following
            async with spending_region(link, tmp_path / "us.sqlite", clock=clock, name="us-new") as [us]:
                await follows(us)
                await wait_until(lambda: us.authorizer.reservations.quota("acme"))
                async with edge(us, beats=True) as stream:
                    callers = Callers(clock, secret, us=stream)
                    await callers.run(20, "us")
                await wait_until(lambda: held(us) >= 900)
                assert own(eu) + held(us) <= FULL
