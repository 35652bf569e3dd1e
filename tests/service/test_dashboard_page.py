"""The page of `penstock dashboard` in a headless Chromium, on a screen and on a phone."""

import json
from contextlib import asynccontextmanager

import orjson
import pytest
import pytest_asyncio

from busy_mesh import busy_mesh
from chromium import CHROMIUM, chromium
from penstock.chassis.operators.access import OperatorAccess
from penstock.cli.dashboard.access import PageAccess
from penstock.cli.dashboard.app import DashboardApp
from penstock.cli.dashboard.document import load_document
from penstock.cli.dashboard.frames import FrameSource
from penstock.cli.dashboard.server import serving_page
from penstock.cli.top.frame import frame_of
from penstock.cli.top.poll import open_poller
from snapshots import process_snapshot, scheduler, shard, worker

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: apt-get install chromium"),
    pytest.mark.asyncio(loop_scope="module"),
]

TOKEN = "secret"
SCREEN, PHONE = (1280, 900), (390, 844)
INTERVAL_S = 0.1
IS_SHOWN = "!document.querySelector('main').hidden"
STAGES = [("edge", "tokenize", 0.05), ("queue", "wait", 0.6), ("worker", "prefill", 0.1), ("worker", "decode", 0.25)]
HOSTILE = "<img src=x onerror=document.title=1>"


class FixedFrames:
    """A source of frames that the test sets."""

    def __init__(self, samples):
        self.samples = samples

    async def latest(self):
        return orjson.dumps({"time": 1.0, "interval_s": INTERVAL_S, **frame_of(self.samples)})


def mesh_of(workers, *, requests=(), tenant="acme"):
    edge = process_snapshot("edge-1", "edge", requests=list(requests))
    edge.snapshot.figures.update(active_requests=9, requests_queued=7, requests_reserving=2)
    queue = shard("queue-1", waiting=7, shed=3)
    queue.snapshot.figures.update(waiting=7)
    queue.snapshot.tables["depth"][0]["tenant_id"] = tenant
    rows = [
        worker(f"w{number:03}", running=number % 5, slots=4, promised_blocks=number % 101, card_digest="d1")
        for number in range(1, workers + 1)
    ]
    placing = scheduler(*rows)
    placing.snapshot.figures.update(leases=3)
    return [edge, process_snapshot("auth", "auth"), queue, placing]


def request_row(number):
    end, stages = 0.0, []
    for tier, name, length in STAGES:
        stages.append({"tier": tier, "name": name, "start_s": end, "length_s": length})
        end += length
    row = {"request_id": f"r{number}", "tenant_id": "acme", "outcome": "stop", "end_time": float(number)}
    return row | {"total_s": end, "stages": stages}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    async with chromium() as started:
        yield started


@asynccontextmanager
async def page_of(browser, source, size=SCREEN, token=TOKEN):
    """Yield an open page on the frames of `source`; it must not have had a problem or asked another server."""
    access = PageAccess(OperatorAccess(is_unix=False, token=TOKEN))
    async with serving_page("127.0.0.1:0", DashboardApp(load_document(), source, access, lambda *_: None)) as address:
        page = await browser.new_page()
        await page.resize(*size, is_phone=size == PHONE)
        await page.open(f"http://{address}/#token={token}")
        if token == TOKEN:
            await page.until(IS_SHOWN)
        yield page
        await page.close()
        assert page.problems == []
        assert {each.partition("#")[0] for each in page.requests} == {f"http://{address}/", f"http://{address}/frame"}


@pytest.mark.parametrize("size", [SCREEN, PHONE], ids=["screen", "phone"])
@pytest.mark.parametrize("workers", [0, 1, 12, 13, 200])
async def test_each_worker_is_a_tile_with_its_batch_and_its_kv(browser, workers, size):
    async with page_of(browser, FixedFrames(mesh_of(workers)), size) as page:
        assert await page.count(".tile") == workers
        assert await page.count(".tiles.large .tile") == (workers if workers <= 12 else 0)
        assert await page.value("document.documentElement.scrollWidth") <= size[0]
        outside = "[...document.querySelectorAll('.tile')].filter((tile) => tile.scrollWidth > tile.clientWidth + 1)"
        assert await page.value(f"{outside}.length") == 0
        if not workers:
            assert "No worker is attached" in await page.text("#workers")
        elif workers <= 12:
            cells = "[...document.querySelectorAll('.tile')].map((tile) => tile.querySelectorAll('rect.batch').length"
            kv_bars = "[...document.querySelectorAll('.tile')].map((tile) => Number(tile.querySelector('.kv')"
            filled = await page.value(f"{cells} - 0)")
            assert filled == [number % 5 for number in range(1, workers + 1)]
            widths = await page.value(f"{kv_bars}.getAttribute('width')))")
            assert widths == pytest.approx([2.0 * (number % 101) for number in range(1, workers + 1)], abs=0.1)
        else:
            bars = "[...document.querySelectorAll('.tile rect.batch')].map((bar) => Number(bar.getAttribute('height')))"
            heights = await page.value(bars)
            assert heights == pytest.approx([36 * (number % 5) / 4 for number in range(1, workers + 1)])


async def test_a_tapped_worker_shows_its_figures(browser):
    async with page_of(browser, FixedFrames(mesh_of(200)), PHONE) as page:
        await page.click(".tile:nth-child(103)")
        shown = await page.text("#workers .detail")
        assert "w103-id: 3 of 4 slots, 2 % of 100 KV blocks" in shown
        await page.click(".tile:nth-child(103)")
        assert await page.text("#workers .detail") == ""


async def test_the_flow_has_the_requests_of_each_tier_and_names_those_that_are_not_polled(browser):
    source = FixedFrames(mesh_of(2))
    async with page_of(browser, source) as page:

        async def count_of(tier):
            return await page.value(f"document.querySelector('[data-tier={tier}] .count').textContent")

        tiers = ("edge", "auth", "queue", "scheduler", "worker")
        assert [await count_of(tier) for tier in tiers] == ["9", "2", "7", "0", "3"]
        assert "0.3 rejected/s" in await page.value("document.querySelector('[data-tier=queue]').textContent")
        source.samples = source.samples[2:]
        await page.until("document.querySelector('[data-tier=edge]').classList.contains('absent')")
        assert [await count_of(tier) for tier in tiers] == ["–", "–", "7", "3", "3"]
        assert await page.text("#flow .chart .value") == "–"


async def test_a_change_of_the_window_turns_the_flow(browser):
    async with page_of(browser, FixedFrames(mesh_of(1))) as page:
        box = "document.querySelector('#flow svg').viewBox.baseVal"
        assert await page.value(f"{box}.width > {box}.height")
        await page.resize(*PHONE, is_phone=True)
        await page.until(f"{box}.width < {box}.height")


async def test_classes_and_tenants_of_the_queue_are_bars_in_proportion(browser):
    source = FixedFrames(mesh_of(1))
    depth = [
        {
            "model": "m",
            "class": "batch",
            "tenant_id": f"t{number}",
            "waiting": number,
            "waiting_tokens": 1,
            "running": 1,
        }
        for number in range(1, 31)
    ]
    source.samples.append(process_snapshot("queue-2", "queue", depth=depth))
    async with page_of(browser, source) as page:
        bars = "[...document.querySelectorAll('#queue rect.waiting.batch')].map((bar) => bar.width.baseVal.value)"
        widths = await page.value(bars)
        assert len(widths) == 31
        assert widths[0] / widths[-1] == pytest.approx(30)
        track = await page.value("document.querySelector('#queue rect.track').width.baseVal.value")
        assert sum(widths) == pytest.approx(track)
        assert await page.count("#queue .tenants tbody tr") == 12
        assert "and 19 more with 178 waiting" in await page.text("#queue .tenants")


@pytest.mark.parametrize("size", [SCREEN, PHONE], ids=["screen", "phone"])
async def test_a_recent_request_is_shown_as_a_waterfall(browser, size):
    source = FixedFrames(mesh_of(1, requests=[request_row(number) for number in range(1, 31)]))
    async with page_of(browser, source, size) as page:
        assert await page.count("#requests .request") == 20
        await page.click("#requests .request:nth-child(2)")
        assert "r29: 1,000 ms" in await page.text(".waterfall")
        begins, lengths = zip(*await drawn_stages(page), strict=True)
        assert begins == pytest.approx((0, 0.05, 0.65, 0.75), abs=0.01)
        assert lengths == pytest.approx((0.05, 0.6, 0.1, 0.25), abs=0.01)


async def drawn_stages(page):
    """Return begin and length of each bar, as shares of the whole width."""
    found = "[...document.querySelectorAll('.waterfall rect.stage')]"
    bars = await page.value(f"{found}.map((bar) => [bar.x.baseVal.value, bar.width.baseVal.value])")
    track = "document.querySelector('.waterfall rect.track')"
    begin, width = await page.value(f"[{track}.x.baseVal.value, {track}.width.baseVal.value]")
    return [((x - begin) / width, length / width) for x, length in bars]


async def test_the_timeline_of_a_pasted_answer_is_drawn(browser):
    stages = [{"tier": tier, "name": name, "seconds": length} for tier, name, length in STAGES]
    printed = {"request_id": "of-the-command", "latency_s": 1.25, "stages": stages}
    row = request_row(1)
    answer = {"id": "chatcmpl-1", "choices": [], "timeline": {"total_s": row["total_s"], "stages": row["stages"]}}
    async with page_of(browser, FixedFrames(mesh_of(1))) as page:
        await page.click("#requests summary")
        await page.fill("#answer", json.dumps(printed))
        assert "of-the-command: 1,250 ms" in await page.text(".waterfall")
        assert (await drawn_stages(page))[-1] == pytest.approx((0.8, 0.2), abs=0.01)  # outside of the edge
        await page.fill("#answer", json.dumps(answer))
        assert "chatcmpl-1: 1,000 ms" in await page.text(".waterfall")
        assert len(await drawn_stages(page)) == len(STAGES)
        for wrong in ("{", "[]", '{"id": "x"}', '{"stages": [{"tier": "edge"}]}'):
            await page.fill("#answer", wrong)
            assert "not an answer with a timeline" in await page.text("#answer-error")


async def test_names_of_the_mesh_are_text_and_not_markup(browser):
    source = FixedFrames(mesh_of(1, tenant=HOSTILE, requests=[request_row(1) | {"request_id": HOSTILE}]))
    async with page_of(browser, source) as page:
        await page.click("#requests .request")
        assert HOSTILE in await page.text("#queue .tenants")
        assert HOSTILE in await page.text(".waterfall")
        assert await page.count("img") == 0
        assert await page.value("document.title") == "Penstock"


async def test_the_token_leaves_the_address_and_another_is_asked_for(browser):
    async with page_of(browser, FixedFrames(mesh_of(1)), token="wrong") as page:
        await page.until("!document.querySelector('#login').hidden")
        assert "token" not in await page.value("location.href")
        assert "not accepted" in await page.text("#login-error")
        await page.fill("#token", TOKEN)
        await page.value("document.querySelector('#login').requestSubmit()")
        await page.until(IS_SHOWN)
        assert await page.value("document.cookie") == ""
        page.problems[:] = [each for each in page.problems if "403" not in each]  # the browser reports the refusal


async def test_the_policy_stops_other_scripts_and_other_servers(browser):
    async with page_of(browser, FixedFrames(mesh_of(1))) as page:
        script = (
            "const s = document.createElement('script'); s.textContent = 'document.title = 1'; document.body.append(s)"
        )
        await page.value(script)
        assert await page.value("document.title") == "Penstock"
        reached = "fetch('http://127.0.0.1:1/').then(() => 'reached', (error) => error.message)"
        assert await page.value(reached) == "Failed to fetch"
        assert [each for each in page.problems if "Content Security Policy" in each]
        page.problems.clear()
        page.requests[:] = [each for each in page.requests if ":1/" not in each]


async def test_a_paused_page_asks_for_no_frame_and_a_lost_server_is_shown(browser):
    source = FixedFrames(mesh_of(1))
    async with page_of(browser, source) as page:
        await page.click("#pause")
        assert "paused" in await page.text("#status")
        source.samples = mesh_of(3)
        await page.click("#pause")
        await page.until("document.querySelectorAll('.tile').length === 3")
        await page.value("window.fetch = () => Promise.reject(new Error('gone'))")
        await page.until("document.querySelector('main').classList.contains('stale')")
        assert "no frame: gone" in await page.text("#status")


async def test_a_mesh_is_shown_as_it_changes(browser):
    async with busy_mesh() as (addresses, edge, _), open_poller({}, addresses) as poller:
        source = FrameSource(poller, await poller.poll_first(), INTERVAL_S)
        async with page_of(browser, source) as page:
            waiting = "document.querySelector('[data-tier=queue] .count').textContent"
            await page.until(f"{waiting} === '1'")
            edge.withdraw("t2")
            await page.until(f"{waiting} === '0'")
            assert "2 running, 2 slots" in await page.text(".tile")
