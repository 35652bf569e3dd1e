"""Worlds of a proof, on all cores."""

import gc
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.pool import Pool
from typing import TypeVar

from penstock.bench.progress import ProgressFn

Item = TypeVar("Item")
Result = TypeVar("Result")


class ProcessPool:
    """A process for each core. What goes there and back has to be picklable."""

    def __init__(self, pool: Pool, report_progress: ProgressFn) -> None:
        self._pool = pool
        self._report_progress = report_progress

    def map(self, work: Callable[[Item], Result], items: Sequence[Item], label: str) -> list[Result]:
        """Return what `work` makes of each, in order."""
        found = []
        for each in self._pool.imap(work, items):
            found.append(each)
            self._report_progress(f"{len(found)} of {len(items)} {label}")
        return found


@contextmanager
def process_pool(report_progress: ProgressFn) -> Iterator[ProcessPool]:
    spawning = multiprocessing.get_context("spawn")
    with spawning.Pool(os.cpu_count() or 1, initializer=gc.freeze) as pool:  # no collection walks what was imported
        yield ProcessPool(pool, report_progress)
