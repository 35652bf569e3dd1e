"""Many seeds on all cores, and what came of them together."""

import gc
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from penstock.faults.failpoints import POINTS
from penstock.faults.grpc.network import Point
from penstock.faults.plan import NONE, Twist
from penstock.faults.run import Outcome, run_seed

CHUNK = 4  # seeds that a process takes at a time
HASH_SEED = "0"  # of every process that runs worlds: the order in a set of strings belongs to what a seed decides


@dataclass(slots=True)
class Tally:
    """Sums over worlds. `failing` has those whose promises were broken."""

    worlds: int = 0
    broken: int = 0  # worlds in which something went wrong, as planned
    requests: int = 0
    turns: int = 0
    seconds: float = 0.0  # of virtual time
    points: Counter[Point] = field(default_factory=Counter)  # frames that left
    acts: Counter[str] = field(default_factory=Counter)  # faults that happened
    failing: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.worlds += 1
        self.broken += bool(outcome.happened)
        self.requests += outcome.requests
        self.turns += outcome.turns
        self.seconds += outcome.seconds
        self.points.update(outcome.points)
        self.acts.update(each.split()[1] for each in outcome.happened)
        if outcome.violations:
            self.failing.append(outcome)

    @property
    def points_hit(self) -> int:
        return sum(point in self.points for point in POINTS)

    @property
    def points_missed(self) -> list[Point]:
        return [point for point in POINTS if point not in self.points]


def sweep(seeds: range, twist: Twist = NONE, *, processes: int = 0) -> Iterator[Outcome]:
    """Run every seed, in no order; `processes`: 0 for one per core."""
    spawning = multiprocessing.get_context("spawn")
    count = min(processes or os.cpu_count() or 1, len(seeds))
    with _hash_seed(), spawning.Pool(count, initializer=gc.freeze) as pool:  # no collection walks what was imported
        yield from pool.imap_unordered(partial(run_seed, twist=twist), seeds, CHUNK)


@contextmanager
def _hash_seed() -> Iterator[None]:
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


def replay(seed: int, twist: Twist = NONE) -> tuple[Outcome, list[str]]:
    """Run one seed as `sweep` does; returns its story as well."""
    spawning = multiprocessing.get_context("spawn")
    with _hash_seed(), spawning.Pool(1) as pool:
        return pool.apply(_told, (seed, twist))


def _told(seed: int, twist: Twist) -> tuple[Outcome, list[str]]:
    story: list[str] = []
    return run_seed(seed, twist, story=story), story
