"""The supervisor of engines that start processes of their own."""

import asyncio
import contextlib

import psutil
import pytest

from paths import REPO
from penstock.worker.engine_host.supervisor import EngineSupervisor

PATIENCE = 30.0  # s


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
    heard, down = asyncio.Queue(), asyncio.Queue()
    link = EngineSupervisor("options", on_message=heard.put_nowait, on_down=down.put_nowait)
    running = asyncio.create_task(link.run())
    try:
        async with asyncio.timeout(PATIENCE):
            yield link, heard, down
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.usefixtures("_forking_engine")
async def test_a_dead_engine_is_noticed_and_replaced_though_its_offspring_holds_the_pipe_open():
    async with running_link() as (link, heard, down):
        offspring = psutil.Process(await heard.get())
        link.on_ready()
        psutil.Process(link.pid).kill()
        assert await down.get() is False, "it was killed from outside"
        assert offspring.pid != await heard.get()  # from the next engine
        assert link.restarts == 1
        await asyncio.to_thread(offspring.wait, PATIENCE)  # went with the engine that it belonged to


@pytest.mark.usefixtures("_forking_engine")
async def test_stopping_the_supervisor_leaves_no_process_of_the_engine():
    async with running_link() as (link, heard, _):
        offspring, engine = psutil.Process(await heard.get()), psutil.Process(link.pid)
    await asyncio.to_thread(offspring.wait, PATIENCE)
    assert not engine.is_running()
    assert link.pid is None


@pytest.mark.usefixtures("_hung_engine")
async def test_an_engine_that_only_hangs_up_is_killed_and_replaced(monkeypatch):
    monkeypatch.setattr("penstock.worker.engine_host.supervisor.EXIT_TIMEOUT_S", 0.1)
    async with running_link() as (link, heard, down):
        first = await heard.get()
        link.on_ready()
        await down.get()
        assert await heard.get() != first
        assert link.restarts == 1
        assert not psutil.pid_exists(first)


@pytest.mark.usefixtures("_hung_engine")
async def test_stopping_the_supervisor_does_not_wait_for_an_engine_that_hangs(monkeypatch):
    monkeypatch.setattr("penstock.worker.engine_host.supervisor.EXIT_TIMEOUT_S", 10 * PATIENCE)
    async with running_link() as (_, heard, down):
        engine = await heard.get()
        await down.get()  # from now on it is given time to end
    assert not psutil.pid_exists(engine)
