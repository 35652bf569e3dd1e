"""Many seeds on all cores, and what came of them together."""

import gc
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from penstock.faults.failpoints import FAILPOINTS
from penstock.faults.grpc.network import Failpoint
from penstock.faults.plan import NO_OVERRIDES, PlanOverrides
from penstock.faults.run import WorldResult, run_seed

SEEDS_PER_CHUNK = 4  # seeds that a process takes at a time
HASH_SEED = "0"  # of every process that runs worlds: the order in a set of strings belongs to what a seed decides


@dataclass(slots=True)
class SweepSummary:
    """Sums over worlds. `failing` has those whose promises were broken."""

    worlds: int = 0
    worlds_with_faults: int = 0  # worlds in which something went wrong, as planned
    requests: int = 0
    callbacks: int = 0
    virtual_s: float = 0.0  # of virtual time
    frames_by_failpoint: Counter[Failpoint] = field(default_factory=Counter)  # frames that left
    faults_by_kind: Counter[str] = field(default_factory=Counter)  # faults that happened
    failed_worlds: list[WorldResult] = field(default_factory=list)

    def add(self, outcome: WorldResult) -> None:
        self.worlds += 1
        self.worlds_with_faults += bool(outcome.injected)
        self.requests += outcome.requests
        self.callbacks += outcome.callbacks
        self.virtual_s += outcome.virtual_s
        self.frames_by_failpoint.update(outcome.frames_by_failpoint)
        self.faults_by_kind.update(each.split()[1] for each in outcome.injected)
        if outcome.violations:
            self.failed_worlds.append(outcome)

    @property
    def failpoints_hit(self) -> int:
        return sum(point in self.frames_by_failpoint for point in FAILPOINTS)

    @property
    def failpoints_missed(self) -> list[Failpoint]:
        return [point for point in FAILPOINTS if point not in self.frames_by_failpoint]


def run_seeds(seeds: range, overrides: PlanOverrides = NO_OVERRIDES, *, processes: int = 0) -> Iterator[WorldResult]:
    """Run every seed, in no order; `processes`: 0 for one per core."""
    spawning = multiprocessing.get_context("spawn")
    count = min(processes or os.cpu_count() or 1, len(seeds))
    with (
        _fixed_hash_seed(),
        spawning.Pool(count, initializer=gc.freeze) as pool,
    ):  # no collection walks what was imported
        yield from pool.imap_unordered(partial(run_seed, overrides=overrides), seeds, SEEDS_PER_CHUNK)


@contextmanager
def _fixed_hash_seed() -> Iterator[None]:
    """What is started in the block hashes strings alike."""
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = HASH_SEED
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = before


def replay(seed: int, overrides: PlanOverrides = NO_OVERRIDES) -> tuple[WorldResult, list[str]]:
    """Run one seed as `sweep` does; returns its story as well."""
    spawning = multiprocessing.get_context("spawn")
    with _fixed_hash_seed(), spawning.Pool(1) as pool:
        return pool.apply(_run_logged, (seed, overrides))


def _run_logged(seed: int, overrides: PlanOverrides) -> tuple[WorldResult, list[str]]:
    story: list[str] = []
    return run_seed(seed, overrides, frame_log=story), story
