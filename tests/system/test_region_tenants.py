"""Two whole meshes with one home of tenants: keys and limits of both, a cut link, and the loss of the home."""

import asyncio
import json
import subprocess
import sys
import time

import grpc

from mesh import TIMEOUT_S, greedy, sum_figure
from penstock.chassis.errors import error_from_rpc
from penstock.client import Client
from penstock.local_mesh.plan import MeshOptions
from penstock.local_mesh.regions import local_regions
from penstock.v1.inference_pb2 import GenerateRequest
from penstock.v1.inference_pb2_grpc import InferenceStub

LIMIT = 60  # requests per minute
LOAD_S = 8.0


def command(*words):
    """Run a command that finds the first region by itself. Return its result, parsed."""
    argv = [sys.executable, "-m", "penstock.cli", *words, "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def admits(mesh, key):
    """Return whether a request is admitted; without a retry."""
    async with grpc.aio.insecure_channel(mesh.plan.proxy) as channel:
        call = InferenceStub(channel).Generate(
            GenerateRequest(**greedy("hi", 1)), metadata=(("authorization", f"Bearer {key}"),)
        )
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as rpc:
            error = error_from_rpc(rpc)
            assert error.reason in {"QUOTA_EXCEEDED", "KEY_UNKNOWN"}, error
            return False
        return True


async def load(mesh, key, seconds):
    """Make one request after another. Return the number of those that were admitted."""
    until, admitted = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        admitted += await admits(mesh, key)
        await asyncio.sleep(0.02)
    return admitted


async def wait_for_key(mesh, key, seconds):
    async with asyncio.timeout(seconds):
        while not await admits(mesh, key):  # noqa: ASYNC110  # the event happens in another process
            await asyncio.sleep(0.01)


async def check_refused(mesh):
    """An operator of the other region is told where tenants are kept."""
    [auth] = mesh.plan.processes_of("auth")
    argv = [sys.executable, "-m", "penstock.cli", "tenants", "put", "other", "--target", auth.admin_address]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode != 0
    assert "tenants of region us are kept by region eu" in done.stderr


async def test_tenants_of_the_home_region_hold_in_the_other_one(tiny_model):
    options = MeshOptions(base_port=0, engine="sim", model=tiny_model)
    async with local_regions(options, ("eu", "us")) as regions:
        eu, us = regions.meshes["eu"], regions.meshes["us"]
        async with asyncio.timeout(TIMEOUT_S):
            while not await sum_figure(us, "auth", "home_streams"):  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.05)
        target = ("--target", "eu")
        await asyncio.to_thread(command, "tenants", "put", "acme", "--requests-per-minute", str(LIMIT), *target)
        key = (await asyncio.to_thread(command, "keys", "create", "--tenant", "acme", *target))["secret"]
        await wait_for_key(us, key, 1.0 + 1.0)  # s; a call takes a part of it
        await check_refused(us)
        began = time.monotonic()
        admitted = await asyncio.gather(load(eu, key, LOAD_S), load(us, key, LOAD_S))
        passed = time.monotonic() - began
        assert sum(admitted) <= LIMIT + passed * LIMIT / 60 + 2, admitted
        assert min(admitted) > 0
        regions.cut("eu", "us")
        assert sum(await asyncio.gather(load(eu, key, LOAD_S), load(us, key, LOAD_S))) <= 2 * LOAD_S * LIMIT / 60 + 2
        regions.restore("eu", "us")
        await regions.kill("eu")
        async with Client(us.plan.proxy, api_key=us.api_key) as client:
            assert await client.complete("still here", max_output_tokens=3)
        await wait_for_key(us, key, 30.0)  # its share has one token each second at most
