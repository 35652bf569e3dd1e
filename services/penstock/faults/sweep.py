"""Sweep: runs many seeds on all cores and sums their results."""

import gc
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from penstock.faults.failpoints import FAILPOINTS
from penstock.faults.grpc.network import Failpoint
from penstock.faults.plan import NO_OVERRIDES, PlanOverrides
from penstock.faults.result import WorldResult
from penstock.faults.run import run_seed

SEEDS_PER_CHUNK = 4  # seeds that a process takes at a time
HASH_SEED = "0"  # of every process that runs worlds, because the order of a set of strings depends on it


@dataclass(slots=True)
class SweepSummary:
    """Sums over worlds."""

    worlds: int = 0
    worlds_with_faults: int = 0  # worlds in which at least one fault was injected
    requests: int = 0
    callbacks: int = 0
    virtual_s: float = 0.0  # virtual time in s
    frames_by_failpoint: Counter[Failpoint] = field(default_factory=Counter)  # frames sent
    faults_by_kind: Counter[str] = field(default_factory=Counter)  # faults injected
    failed_worlds: list[WorldResult] = field(default_factory=list)  # worlds with a violation

    def add(self, result: WorldResult) -> None:
        self.worlds += 1
        self.worlds_with_faults += bool(result.injected)
        self.requests += result.requests
        self.callbacks += result.callbacks
        self.virtual_s += result.virtual_s
        self.frames_by_failpoint.update(result.frames_by_failpoint)
        self.faults_by_kind.update(each.split()[1] for each in result.injected)
        if result.violations:
            self.failed_worlds.append(result)

    @property
    def failpoints_hit(self) -> int:
        return sum(failpoint in self.frames_by_failpoint for failpoint in FAILPOINTS)

    @property
    def failpoints_missed(self) -> list[Failpoint]:
        return [failpoint for failpoint in FAILPOINTS if failpoint not in self.frames_by_failpoint]


def run_seeds(
    seeds: Sequence[int], overrides: PlanOverrides = NO_OVERRIDES, *, processes: int = 0
) -> Iterator[WorldResult]:
    """Run all seeds and yield the results in any order; 0 `processes` stand for one per core."""
    spawning = multiprocessing.get_context("spawn")
    count = min(processes or os.cpu_count() or 1, len(seeds))
    # After gc.freeze, no collection visits the imported modules.
    with _fixed_hash_seed(), spawning.Pool(count, initializer=gc.freeze) as pool:
        yield from pool.imap_unordered(partial(run_seed, overrides=overrides), seeds, SEEDS_PER_CHUNK)


@contextmanager
def _fixed_hash_seed() -> Iterator[None]:
    """Set the same string hash seed in all processes that are started in the block."""
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
    """Run one seed as `run_seeds` does; return its frame log as well."""
    spawning = multiprocessing.get_context("spawn")
    with _fixed_hash_seed(), spawning.Pool(1) as pool:
        return pool.apply(_run_logged, (seed, overrides))


def _run_logged(seed: int, overrides: PlanOverrides) -> tuple[WorldResult, list[str]]:
    frame_log: list[str] = []
    return run_seed(seed, overrides, frame_log=frame_log), frame_log
