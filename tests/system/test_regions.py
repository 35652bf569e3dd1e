"""Two whole meshes as regions on loopback: one key for both, requests that spill, and the loss of a whole region."""

import asyncio
import json
import subprocess
import sys
from contextlib import AsyncExitStack

from mesh import TIMEOUT_S, sum_figure
from penstock.chassis.errors import PenstockError
from penstock.client import Client
from penstock.client.retries import RetryPolicy
from penstock.local_mesh.plan import REGION_DOOR_PORT, MeshOptions, local_address
from penstock.local_mesh.regions import local_regions

STREAM_COUNT = 16
OUTPUT_TOKENS = 100
TOKENS_BEFORE_KILL = 5
SPILLED_COUNT, SPILLED_TOKENS = 8, 20  # requests at once, of which two run and one waits in their region
SETTINGS = (
    "PENSTOCK_WORKER_SIM_BASE_S=0.03",  # s of a step, so that answers last longer than the kill
    "PENSTOCK_QUEUE_TTFT_INTERACTIVE=0",  # no request is rejected for load
    "PENSTOCK_QUEUE_TTFT_STANDARD=0",
)
ONCE = RetryPolicy(max_attempts=1)
OPTIONS = {"max_output_tokens": OUTPUT_TOKENS, "seed": 7, "ignore_eos": True}


async def count_tokens_until(stop, client):
    """Make one unary call after another; return the number of answers and the errors."""
    answers, errors = 0, []
    while not stop.is_set():
        try:
            await client.count_tokens("How many tokens?")
        except PenstockError as error:
            errors.append(error)
        else:
            answers += 1
        await asyncio.sleep(0.02)
    return answers, errors


async def wait_for_tokens(generations, count):
    async with asyncio.timeout(TIMEOUT_S):
        while any(len(each.token_ids) < count for each in generations):  # noqa: ASYNC110  # no event for this
            await asyncio.sleep(0.01)


async def test_a_region_is_killed_whole_under_load_and_returns(tiny_model):
    options = MeshOptions(base_port=0, engine="sim", model=tiny_model, settings=SETTINGS)
    prompts = [f"stream number {number} says" for number in range(STREAM_COUNT)]
    async with local_regions(options, ("eu", "us")) as regions:
        eu, us = regions.meshes["eu"], regions.meshes["us"]
        assert_linked(regions)
        near, far = (mesh.plan.proxy or mesh.plan.grpc for mesh in (eu, us))
        async with Client(far, api_key=us.api_key) as elsewhere:
            expected = await asyncio.gather(*(elsewhere.complete(prompt, **OPTIONS) for prompt in prompts))
        async with Client(near, failover=(far,), api_key=eu.api_key) as client, client.session() as session:
            assert await client.complete(prompts[0], **OPTIONS) == expected[0], "the same text in each region"
            senders = [client, session] * (STREAM_COUNT // 2)
            streams = [sender.generate(text, **OPTIONS) for sender, text in zip(senders, prompts, strict=True)]
            reading = asyncio.gather(*(each.read() for each in streams))
            stop = asyncio.Event()
            calls = asyncio.create_task(count_tokens_until(stop, client))
            await wait_for_tokens(streams, TOKENS_BEFORE_KILL)
            started = await sum_figure(us, "edge", "requests_started")
            await regions.kill("eu")
            assert await reading == expected
            stop.set()
            answers, errors = await calls
            assert errors == []
            assert answers > 0
            assert {each.attempts for each in streams} <= {2, 3}, "the first or the second retry answers elsewhere"
            assert await sum_figure(us, "edge", "requests_started") - started >= STREAM_COUNT
            await regions.restart("eu")
            await wait_served_by(eu, client)


async def test_what_the_queue_of_a_region_rejects_is_answered_by_another_one(tiny_model):
    settings = (*SETTINGS, "PENSTOCK_WORKER_SLOTS=2", "PENSTOCK_QUEUE_MAX_DEPTH=1")
    options = MeshOptions(base_port=0, engine="sim", model=tiny_model, settings=settings)
    wanted = {**OPTIONS, "max_output_tokens": SPILLED_TOKENS}
    async with local_regions(options, ("eu", "us")) as regions:
        eu, us = regions.meshes["eu"], regions.meshes["us"]
        await wait_figure(eu, "region_links_up", 1)
        async with Client(eu.plan.proxy, api_key=eu.api_key) as client, client.session() as session:
            expected = await client.complete("Where?", **wanted)
            senders = [client, session] * (SPILLED_COUNT // 2)
            answers = await asyncio.gather(*(each.complete("Where?", **wanted) for each in senders))
        assert answers == [expected] * SPILLED_COUNT
        assert await sum_figure(us, "edge", "requests_started") > 0
        await drain_by_command(eu)
        started = await sum_figure(eu, "edge", "requests_started")
        async with Client(eu.plan.proxy, api_key=eu.api_key) as client:
            assert await client.complete("Where?", **wanted) == expected
        assert await sum_figure(eu, "edge", "requests_started") == started, "a drained region starts no request"
        await wait_figure(us, "guests", 0)
        await wait_figure(eu, "reservations_open", 0)
        assert await sum_figure(us, "auth", "reservations") == 0, "guests are charged at home"


async def test_a_drained_region_takes_no_guests_and_its_sessions_move_without_a_cut(tiny_model):
    settings = (*SETTINGS, "PENSTOCK_WORKER_SLOTS=2", "PENSTOCK_QUEUE_MAX_DEPTH=1")
    options = MeshOptions(base_port=0, engine="sim", model=tiny_model, settings=settings)
    async with local_regions(options, ("eu", "us")) as regions, AsyncExitStack() as stack:
        eu, us = regions.meshes["eu"], regions.meshes["us"]
        await wait_figure(us, "region_links_up", 1)
        await wait_figure(eu, "routing_links_up", 1)
        near, far = [
            await stack.enter_async_context(Client(each.plan.proxy, api_key=each.api_key, retries=ONCE))
            for each in (eu, us)
        ]
        session = await stack.enter_async_context(near.session())
        wanted = {**OPTIONS, "max_output_tokens": SPILLED_TOKENS}
        spilling = {**OPTIONS, "max_output_tokens": SPILLED_TOKENS, "seed": 8}
        expected, alone = await session.complete("Where?", **OPTIONS), await far.complete("Where?", **spilling)
        before = await sum_figure(eu, "edge", "requests_started")
        assert alone in await overload(far, spilling)
        assert await sum_figure(eu, "edge", "requests_started") > before, "guests run in the region"
        running = session.generate("Where?", **OPTIONS)
        reading = asyncio.create_task(running.read())
        await wait_for_tokens([running], TOKENS_BEFORE_KILL)
        draining = asyncio.create_task(drain_by_command(eu))
        await wait_figure(eu, "region_drained", 1)
        started = await sum_figure(eu, "edge", "requests_started")
        moved = await sum_figure(us, "edge", "requests_started")
        assert (await overload(far, spilling)).count(alone) < SPILLED_COUNT, "no guest runs in the region"
        assert await sum_figure(eu, "edge", "requests_started") == started
        while not draining.done():  # the session is open until it has moved
            await session.complete("Where?", **{**wanted, "max_output_tokens": 1})
        await draining
        assert (await reading, running.attempts) == (expected, 1)
        assert (await eu_edges_open(eu), await sum_figure(us, "edge", "requests_started") > moved) == (0, True)
        started = await sum_figure(eu, "edge", "requests_started")
        assert await session.complete("Where?", **OPTIONS) == expected
        assert await sum_figure(eu, "edge", "requests_started") == started


async def overload(client, options):
    """Send more requests at once than the region of a client serves. Return the answers, and "" for each rejection."""
    answers = await asyncio.gather(
        *(client.complete("Where?", **options) for _ in range(SPILLED_COUNT)), return_exceptions=True
    )
    assert all(isinstance(each, str) or each.reason == "QUEUE_FULL" for each in answers), answers
    return [each if isinstance(each, str) else "" for each in answers]


async def eu_edges_open(mesh):
    """Return the open calls of the region that its proxies report."""
    [routing] = mesh.plan.processes_of("routing")
    listed = await asyncio.to_thread(run_command, "regions", "list", "--target", routing.admin_address, "--json")
    return int(listed[0].get("openCalls", 0))


async def drain_by_command(mesh):
    """Drain the region `eu`, and wait until it has no open call."""
    [routing] = mesh.plan.processes_of("routing")
    target = ("--target", routing.admin_address, "--json")
    await asyncio.to_thread(run_command, "regions", "drain", "eu", "--timeout", "30", *target)
    listed = await asyncio.to_thread(run_command, "regions", "list", *target)
    assert {each["name"]: each.get("drained", False) for each in listed} == {"eu": True, "us": False}


def run_command(*words):
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", *words], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    return json.loads(done.stdout)


async def wait_figure(mesh, name, value):
    async with asyncio.timeout(TIMEOUT_S):
        while await sum_figure(mesh, "edge", name) != value:  # noqa: ASYNC110  # the event happens in another process
            await asyncio.sleep(0.02)


async def wait_served_by(mesh, client):
    """Send requests, none of which fails, until an edge of `mesh` has started one."""
    async with asyncio.timeout(TIMEOUT_S):
        while not await sum_figure(mesh, "edge", "requests_started"):
            await client.complete("Where?", max_output_tokens=1)


def assert_linked(regions):
    """Each region knows the other one by the address of the relay before its door."""
    for (start, to), relay in regions.links.items():
        assert regions.meshes[start].options.other_regions == (f"{to}={relay.address}",)
        door = local_address(regions.meshes[to].options.base_port, REGION_DOOR_PORT)
        assert relay._target == door
