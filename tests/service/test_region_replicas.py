"""Several processes of auth on PostgreSQL in each of two regions: each partition talks to its owner at home."""

from contextlib import AsyncExitStack

import pytest

from auth_server import FakeClock
from penstock.mesh.partitions import PARTITIONS
from penstock.v1 import admin_pb2 as pb
from region_auths import another_home, create_key, fast, home_region, spending_region, wait_until
from stores import new_database

pytestmark = pytest.mark.usefixtures("fast")
__all__ = ["fast"]


@pytest.fixture
def databases(postgres):
    with new_database(postgres) as home, new_database(postgres) as region:
        yield home, region


def owned(processes):
    return [len(each.authorizer.served) for each in processes]


def all_follow(processes):
    """Whether the partitions are divided, and each process has a stream to the owners of its own at home."""
    return all(owned(processes)) and sum(owned(processes)) == PARTITIONS and all(map(is_following, processes))


def is_following(process):
    return process.role.follower.is_following


async def test_processes_find_the_owners_of_their_partitions_and_follow_them(databases):
    home, region = databases
    clock = FakeClock()
    async with AsyncExitStack() as stack:
        homes, link = await stack.enter_async_context(home_region(home, home, clock=clock))
        await wait_until(lambda: all(owned(homes)) and sum(owned(homes)) == PARTITIONS)
        [us1] = await stack.enter_async_context(spending_region(link, region, clock=clock, name="us-auth-a"))
        async with spending_region(link, region, clock=clock, name="us-auth-b") as [us2]:
            both = [us1, us2]
            await wait_until(lambda: all_follow(both))
            assert [each.figures["home_streams"] for each in both] == [2, 2]
            await create_key(homes[0], "by-first")
            await create_key(homes[1], "by-second")
            await wait_until(lambda: all({"by-first", "by-second"} <= tenants(each) for each in both))
            await homes[0].admin.PutTenant(pb.PutTenantRequest(tenant=pb.Tenant(tenant_id="by-second", weight=2.0)))
            await wait_until(lambda: all(weight(each, "by-second") == 2.0 for each in both))
        await wait_until(lambda: owned([us1]) == [PARTITIONS] and is_following(us1))


async def test_partitions_that_move_at_home_are_followed(databases):
    home, region = databases
    clock, targets = FakeClock(), []
    async with (
        home_region(home, clock=clock, targets=targets) as ([eu1], link),
        spending_region(link, region, clock=clock) as [us],
    ):
        await wait_until(lambda: is_following(us))
        async with another_home(home, clock=clock) as eu2:
            targets.append(eu2.address)
            await wait_until(lambda: owned([eu1, eu2]) == [32, 32] and is_following(us))
            assert us.figures["home_streams"] == 2
            await create_key(eu2)
            await wait_until(lambda: "acme" in tenants(us))
        del targets[1:]
        await wait_until(lambda: owned([eu1]) == [PARTITIONS] and is_following(us))


def tenants(process):
    return {each.tenant.tenant_id for each in process.authorizer.reservations.quotas}


def weight(process, tenant_id):
    return process.authorizer.reservations.quota(tenant_id).tenant.weight
