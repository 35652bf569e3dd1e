"""Configuration of every test."""

import asyncio
import functools
import gc
import inspect
import os

import pytest
from hypothesis import settings
from structlog.contextvars import clear_contextvars
from xdist.scheduler import LoadFileScheduling

from penstock.faults.leftovers import collect_finished_worlds

# The models of tests are tiny, so more threads of torch only wait for each other. Child processes read this, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A deadline per example measures the machine, not the code. Bounded numbers of examples bound the time instead.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")


TIMEOUT_S = 270.0  # of a coroutine; less than that of pytest-timeout


def pytest_collection_modifyitems(items):
    """Let its event loop end a coroutine that hangs. A signal ends the loop anywhere, also inside gRPC: tests crash."""
    for item in items:
        if inspect.iscoroutinefunction(item.obj) and not item.get_closest_marker("timeout"):
            item.obj = _bounded(item.obj)


def _bounded(test):
    @functools.wraps(test)
    async def run(*args, **fixtures):
        async with asyncio.timeout(TIMEOUT_S):
            return await test(*args, **fixtures)

    return run


class FileScheduling(LoadFileScheduling):
    """Files of tests for processes of pytest-xdist, where a crash of a process is the failure of one test.

    pytest-xdist 3.8 runs the test again, up to four times per process, which counts as a failure each time. It also
    gives the process that takes the place of a crashed one the finished files, one at each result; as a process begins
    a test only if it knows the next one, a crash at the end of the run leaves it waiting for ever.
    """

    def remove_node(self, node):
        files = self.assigned_work.pop(node)
        unfinished = [(tests, test) for tests in files.values() for test, is_done in tests.items() if not is_done]
        if not unfinished:
            return None
        tests, crashed = unfinished[0]
        tests[crashed] = True
        self.workqueue.update({file: tests for file, tests in files.items() if not all(tests.values())})
        for each in self.nodes:
            self._reschedule(each)
        return crashed

    def schedule(self):
        super().schedule()
        for node in self.nodes:
            self._reschedule(node)  # a second file, or the end


def pytest_xdist_make_scheduler(config, log):
    return FileScheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish():
    """Exclude the objects of all test modules from garbage collections, each of which takes 0.6 s with them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _clear_log_context():
    """Start each test without fields of log lines: a coroutine that is closed as garbage may leave some here."""
    clear_contextvars()


@pytest.fixture
def _collect_finished_worlds():
    """Collect finished worlds, so that errors of their garbage are not reported in a later test."""
    yield
    collect_finished_worlds()
