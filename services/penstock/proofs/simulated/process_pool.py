"""Runs the simulations of a proof on all cores."""

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
    """One process per core. Items and results must be picklable."""

    def __init__(self, pool: Pool, report_progress: ProgressFn) -> None:
        self._pool = pool
        self._report_progress = report_progress

    def map(self, work: Callable[[Item], Result], items: Sequence[Item], label: str) -> list[Result]:
        """Return the results of `work` in the order of `items`."""
        results = []
        for result in self._pool.imap(work, items):
            results.append(result)
            self._report_progress(f"{len(results)} of {len(items)} {label}")
        return results


@contextmanager
def process_pool(report_progress: ProgressFn) -> Iterator[ProcessPool]:
    context = multiprocessing.get_context("spawn")
    with context.Pool(os.cpu_count() or 1, initializer=gc.freeze) as pool:  # the collector skips imported modules
        yield ProcessPool(pool, report_progress)
