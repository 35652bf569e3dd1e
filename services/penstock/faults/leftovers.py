"""Objects that a world leaves behind: coroutines of killed processes, which only a collection frees."""

import atexit
import gc
import itertools
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.faults.world.environment import logs_silenced

WORLDS_PER_COLLECTION = 8  # worlds between two runs of the garbage collector


@contextmanager
def discarding_leftovers() -> Iterator[None]:
    """Discard the coroutines that a world leaves behind, without warnings; run the garbage collector now and then."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with logs_silenced(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that were never awaited
            yield
            if next(_world_numbers) % WORLDS_PER_COLLECTION == 0:
                gc.collect()
    finally:
        sys.unraisablehook = hook


def collect_finished_worlds() -> None:
    """Free the objects of finished worlds; the coroutines of killed processes are only freed by a collection."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with logs_silenced(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            gc.collect()
    finally:
        sys.unraisablehook = hook


@atexit.register
def _collect_at_exit() -> None:
    collect_finished_worlds()
    sys.unraisablehook = lambda _: None


_world_numbers = itertools.count(1)
