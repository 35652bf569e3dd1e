"""Configuration of every test."""

import gc
import os

import pytest
from hypothesis import settings
from structlog.contextvars import clear_contextvars

from penstock.faults.leftovers import collect_finished_worlds

# The models of tests are tiny, so more threads of torch only wait for each other. Child processes read this, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A deadline per example measures the machine, not the code. Bounded numbers of examples bound the time instead.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")


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
