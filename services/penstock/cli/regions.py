"""`penstock regions`: calls of routing's Admin service, and their texts."""

import asyncio

from google.protobuf.json_format import MessageToDict

from penstock.bench.tables import new_table
from penstock.chassis.errors import DeadlineExceeded
from penstock.cli.admin import AdminTarget
from penstock.cli.options import find_tier
from penstock.cli.tables import stdout_console
from penstock.v1 import admin_pb2 as pb
from penstock.v1.region_pb2 import Region

PROGRESS_INTERVAL_S = 1.0


def routing_target(target: str, *, as_json: bool) -> AdminTarget:
    """Return the Admin service of routing; of the local mesh if `target` is empty."""
    return AdminTarget(target=find_tier("routing", target), as_json=as_json)


async def list_regions(target: AdminTarget) -> None:
    _show(target, await _listed(target))


async def drain_region(target: AdminTarget, name: str, *, wait: bool, timeout_s: float | None) -> None:
    """Drain a region. If `wait`, show how many calls are open until there are none.

    Raises DeadlineExceeded if calls are open after `timeout_s`; the region stays drained.
    """
    async with target.stub() as admin:
        region = (await admin.DrainRegion(pb.DrainRegionRequest(name=name), metadata=target.metadata)).region
    if wait and region.proxies:
        try:
            async with asyncio.timeout(timeout_s):
                region = await _drained(target, region)
        except TimeoutError:
            text = f"{name} has open calls after {timeout_s:g} s; it stays drained, and they go on"
            raise DeadlineExceeded(text, reason="REGION_HAS_CALLS") from None
    _show(target, [region])


async def _drained(target: AdminTarget, region: Region) -> Region:
    """Return the region once no call is open there."""
    shown = -1
    while region.open_calls or not region.proxies:
        if region.open_calls != shown and not target.as_json:
            stdout_console.print(f"{region.name} is drained; open calls: {region.open_calls}", markup=False)
        shown = region.open_calls
        await asyncio.sleep(PROGRESS_INTERVAL_S)
        region = next(each for each in await _listed(target) if each.name == region.name)
    return region


async def restore_region(target: AdminTarget, name: str) -> None:
    async with target.stub() as admin:
        response = await admin.RestoreRegion(pb.RestoreRegionRequest(name=name), metadata=target.metadata)
    _show(target, [response.region])


async def weight_region(target: AdminTarget, name: str, percent: int) -> None:
    async with target.stub() as admin:
        request = pb.PutRegionWeightRequest(name=name, percent=percent)
        response = await admin.PutRegionWeight(request, metadata=target.metadata)
    _show(target, [response.region])


async def _listed(target: AdminTarget) -> list[Region]:
    async with target.stub() as admin:
        response = await admin.ListRegions(pb.ListRegionsRequest(), metadata=target.metadata)
    return list(response.regions)


def _show(target: AdminTarget, regions: list[Region]) -> None:
    if target.as_json:
        stdout_console.print_json(data=[MessageToDict(each) for each in regions])
        return
    table = new_table("region", "state", "healthy", "door", numbers=("weight", "new calls", "open calls"))
    for each in regions:
        healthy = f"{each.healthy_proxies} of {each.proxies} proxies" if each.proxies else "unknown"
        weight = "-" if each.own else f"{each.weight_percent}%"
        open_calls = str(each.open_calls) if each.proxies else "unknown"
        door = "own" if each.own else each.door
        table.add_row(each.name, state_text(each), healthy, door, weight, f"{each.first_percent:g}%", open_calls)
    stdout_console.print(table)


def state_text(region: Region) -> str:
    """Return whether a region is drained, returns, or serves."""
    if region.drained:
        return "drained"
    return "serves" if region.share_percent == 100 else f"returns, {region.share_percent}%"
