"""The drain of a region by an operator's command, with real Envoys: new calls leave, open ones are not cut."""

import asyncio
import json

import grpc

from command import run_penstock
from envoy_regions import running_regions, sees_healthy


async def regions(region, *arguments):
    """Run `penstock regions` against the routing of a region; return what it printed as JSON."""
    code, out, err = await run_penstock("regions", *arguments, "--target", region.admin, "--json")
    assert code == 0, err
    return json.loads(out)


async def routes_have_changed(region, share=""):
    """Wait until the proxy has new shares, with `share` among them. Shares between them may have had no time."""
    await region.front.plane.wait_for_line('"region_shares_changed"', share)
    await region.front.plane.wait_for_line('"xds_ack"', "ROUTE")


async def test_a_drained_region_gets_no_new_call_cuts_none_and_returns_in_steps(tmp_path):
    async with running_regions(tmp_path, "eu", "us") as (eu, us):
        running = eu.stream()
        assert await running.read() == b"eu0 first"
        drain = asyncio.create_task(run_penstock("regions", "drain", "eu", "--target", eu.admin))
        await routes_have_changed(eu)
        assert {await eu.unary() for _ in range(20)} == {b"us0"}
        await sees_healthy(us.front, "region_eu", 0)  # no other region sends calls to one that is drained
        own, other = await regions(eu, "list")
        assert (own["name"], own["drained"], own["openCalls"], own["healthyProxies"]) == ("eu", True, "1", 1)
        assert (other["name"], other["firstPercent"], other["healthyProxies"]) == ("us", 100.0, 1)
        eu.backends[0].may_continue.set()
        assert await running.read() == b"eu0 second"
        assert await running.code() is grpc.StatusCode.OK
        code, out, err = await drain
        assert (code, err) == (0, "")
        assert "eu is drained; open calls: 1" in out
        eu.front.plane.child.kill()
        await eu.front.plane.child.wait()
        async with eu.front.control_plane() as eu.front.plane:
            await eu.front.plane.wait_for_line('"listening"')
            assert (await regions(eu, "list"))[0]["drained"]
            await us.stop_edges()
            assert {await eu.unary() for _ in range(20)} == {b"eu0"}  # the last resort
            [restored] = await regions(eu, "restore", "eu")
            assert restored["sharePercent"] == 25
            await routes_have_changed(eu, '"eu":100.0')
            lines = [json.loads(each) for each in eu.front.plane.lines if '"region_shares_changed"' in each]
            shares = [each["percent"]["eu"] for each in lines]
            assert shares == sorted({*shares, 25.0, 100.0}), shares  # 50 and 75 between them, if the machine had time
            await sees_healthy(us.front, "region_eu", 1)
            assert {await eu.unary() for _ in range(20)} == {b"eu0"}
            audit = [line for line in eu.front.plane.lines if "regions.restore" in line]
            assert audit, eu.front.plane.lines


async def test_a_weight_sends_a_share_of_new_calls_to_another_region(tmp_path):
    async with running_regions(tmp_path, "eu", "us") as (eu, _):
        [weighted] = await regions(eu, "weight", "us", "50")
        assert (weighted["weightPercent"], weighted["firstPercent"]) == (50, 50.0)
        await routes_have_changed(eu)
        answers = [await eu.unary() for _ in range(100)]
        assert 20 < answers.count(b"us0") < 80
        code, _, err = await run_penstock("regions", "weight", "eu", "50", "--target", eu.admin)
        assert (code, "INVALID_ARGUMENT" in err) == (1, True)
        code, _, err = await run_penstock("regions", "drain", "ap", "--target", eu.admin)
        assert (code, "NOT_FOUND / REGION_UNKNOWN" in err) == (1, True)
