"""The supervisor of engines that start processes of their own."""

import asyncio
import contextlib

import psutil
import pytest

from paths import REPO
from penstock.worker.engine_host.supervisor import EngineSupervisor

TIMEOUT_S = 30.0


@pytest.fixture
def _forking_engine(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPO / "tests" / "harness"))
    monkeypatch.setattr("penstock.worker.engine_host.process.CHILD_MODULE", "forking_engine")


@pytest.fixture
def _hung_engine(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPO / "tests" / "harness"))
    monkeypatch.setattr("penstock.worker.engine_host.process.CHILD_MODULE", "hung_engine")


@contextlib.asynccontextmanager
async def running_link():
    """A supervisor, the messages of its engines, and a queue with True for each crash and False for other deaths."""
    messages, down = asyncio.Queue(), asyncio.Queue()
    link = EngineSupervisor("options", on_message=messages.put_nowait, on_down=down.put_nowait)
    running = asyncio.create_task(link.run())
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield link, messages, down
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.usefixtures("_forking_engine")
async def test_a_dead_engine_is_noticed_and_replaced_though_its_offspring_holds_the_pipe_open():
    async with running_link() as (link, messages, down):
        offspring = psutil.Process(await messages.get())
        link.on_ready()
        psutil.Process(link.pid).kill()
        assert await down.get() is False, "it was killed from outside"
        assert offspring.pid != await messages.get()  # from the next engine
        assert link.restarts == 1
        await asyncio.to_thread(offspring.wait, TIMEOUT_S)  # ends with its engine


@pytest.mark.usefixtures("_forking_engine")
async def test_stopping_the_supervisor_leaves_no_process_of_the_engine():
    async with running_link() as (link, messages, _):
        offspring, engine = psutil.Process(await messages.get()), psutil.Process(link.pid)
    await asyncio.to_thread(offspring.wait, TIMEOUT_S)
    assert not engine.is_running()
    assert link.pid is None


@pytest.mark.usefixtures("_hung_engine")
async def test_an_engine_that_only_hangs_up_is_killed_and_replaced(monkeypatch):
    monkeypatch.setattr("penstock.worker.engine_host.supervisor.EXIT_TIMEOUT_S", 0.1)
    async with running_link() as (link, messages, down):
        first = await messages.get()
        link.on_ready()
        await down.get()
        assert await messages.get() != first
        assert link.restarts == 1
        assert not psutil.pid_exists(first)


@pytest.mark.usefixtures("_hung_engine")
async def test_stopping_the_supervisor_does_not_wait_for_an_engine_that_hangs(monkeypatch):
    monkeypatch.setattr("penstock.worker.engine_host.supervisor.EXIT_TIMEOUT_S", 10 * TIMEOUT_S)
    async with running_link() as (_, messages, down):
        engine = await messages.get()
        await down.get()  # from now on the exit timeout runs
    assert not psutil.pid_exists(engine)
