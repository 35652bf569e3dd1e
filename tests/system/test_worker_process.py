"""A worker as its own processes, with real signals: no engine outlives its worker."""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager

import psutil
import pytest

from tier_process import tier_process, wait_for_event
from tiny_model import write_tiny_model

TIMEOUT_S = 60.0


@asynccontextmanager
async def worker_process(model, **settings):
    """A worker that is ready, and the process of its engine."""
    async with tier_process("worker", **{"ENGINE": "sim", "MODEL": str(model), **settings}) as front:
        yield front, psutil.Process((await wait_for_event(front, "engine_ready"))["pid"])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stopped_worker_drains_and_leaves_no_engine(model, number):
    async with worker_process(model) as (front, engine):
        front.send_signal(number)
        assert await wait_for_event(front, "drained")
        assert await front.wait() == 0
        assert not engine.is_running()


async def test_an_engine_ends_when_its_worker_is_killed(model):
    async with worker_process(model) as (front, engine):
        front.kill()
        await front.wait()
        await asyncio.to_thread(engine.wait, TIMEOUT_S)


async def test_a_killed_engine_is_restarted(model):
    async with worker_process(model) as (front, engine):
        engine.kill()
        again = await wait_for_event(front, "engine_ready")
        assert again["pid"] != engine.pid
        assert front.returncode is None


async def test_a_worker_whose_model_cannot_be_loaded_reports_it_and_ends(tmp_path):
    front = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "penstock.worker"),
        env=os.environ | {"PENSTOCK_WORKER_LISTEN": "127.0.0.1:0", "PENSTOCK_WORKER_MODEL": str(tmp_path / "absent")},
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(TIMEOUT_S):
        _, log = await front.communicate()
    assert front.returncode == 1
    assert b"is no folder, .gguf or .bin file" in log
