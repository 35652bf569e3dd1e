"""What holds for every test."""

import os

import pytest

from penstock.faults.run import collect_finished_worlds

# Models here are tiny: torch's threads would only wait for one another. Read at its import, in child processes too.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def _collect_finished_worlds():
    """What is left of them would be told of as an error of some later test."""
    yield
    collect_finished_worlds()
