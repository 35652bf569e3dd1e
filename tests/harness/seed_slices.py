"""Slices of the seeds of fault worlds, so that one run of the tests costs a fraction of all seeds."""

import subprocess

from paths import REPO

SLICES = 4


def seeds_of_this_commit(count):
    """Return every fourth seed below `count`; four successive commits test all of them.

    The slice is a function of the number of commits, so that a commit always tests the same seeds. Without Git, and in
    a clone of the last commit alone, it is the same slice each time.
    """
    return range(_commits() % SLICES, count, SLICES)


def _commits():
    counted = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"], cwd=REPO, capture_output=True, text=True, check=False
    )
    return int(counted.stdout) if counted.returncode == 0 else 0
