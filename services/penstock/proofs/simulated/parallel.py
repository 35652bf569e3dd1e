"""Worlds of a proof, on all cores."""

import gc
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.pool import Pool
from typing import TypeVar

from penstock.bench.progress import Say

Asked = TypeVar("Asked")
Found = TypeVar("Found")


class Cores:
    """A process for each core. What goes there and back has to be picklable."""

    def __init__(self, pool: Pool, say: Say) -> None:
        self._pool = pool
        self._say = say

    def each_of(self, work: Callable[[Asked], Found], asked: Sequence[Asked], what: str) -> list[Found]:
        """Return what `work` makes of each, in order."""
        found = []
        for each in self._pool.imap(work, asked):
            found.append(each)
            self._say(f"{len(found)} of {len(asked)} {what}")
        return found


@contextmanager
def all_cores(say: Say) -> Iterator[Cores]:
    spawning = multiprocessing.get_context("spawn")
    with spawning.Pool(os.cpu_count() or 1, initializer=gc.freeze) as pool:  # no collection walks what was imported
        yield Cores(pool, say)
