"""Garbage collection without long pauses: old objects are frozen, and very many small objects are untracked."""

import ctypes
import gc
import sys
import time
from collections.abc import Callable
from typing import TypeVar

Object = TypeVar("Object")

# New objects less freed ones between two collections of the young, and collections between those of the next
# generations. A collection walks 1,000 objects in 0.3 to 0.7 ms. With 1,000 streams, each frame replaces some of 30,000
# objects: by Python's threshold of 700, all of them would be walked several times a second, to free none. As frozen
# objects count when they are freed, there may be many more young objects than the threshold says.
THRESHOLDS = (5_000, 10, 10)
OLDEST_GENERATION = 2
MAX_YOUNG = 8_192  # objects of the youngest generation that a collection walks; if there are more, they are frozen
MAX_SURVIVORS = 4_096  # objects of the older generations that stay tracked; if there are more, they are frozen
MIN_FROZEN_INTERVAL_S = 300.0  # s between collections of frozen objects if the process has grown by MAX_GROWTH
MAX_FROZEN_INTERVAL_S = 3_600.0  # s between them if it has not
MAX_GROWTH = 1.25  # of the number of blocks of memory that Python has allocated

_untrack = ctypes.pythonapi.PyObject_GC_UnTrack
_untrack.argtypes, _untrack.restype = [ctypes.py_object], None


def freeze_gc() -> None:
    """Exclude all imported objects from garbage collection, as walking them stalls the process for 40 to 110 ms."""
    gc.collect()
    gc.freeze()


def untracked(new: Object) -> Object:
    """Exclude a new object from garbage collection, and return it. Its reference count still frees it.

    A full collection walks all tracked objects at once: 100,000 tickets and their heap entries take 50 to 130 ms. The
    object must not be part of a reference cycle, which would never be freed. Costs 0.2 us.
    """
    _untrack(new)
    return new


class OldObjects:
    """Freezes objects that survive collections, so that the next ones walk only younger objects.

    A process with 1,000 streams has 100,000 old objects, and each full collection would hold its loop for 40 to 100 ms.
    If there are very many young objects, they are frozen before the collection instead of being walked.
    Frozen objects are still freed by their reference counts. Those in a reference cycle are freed by a collection of
    all objects, which takes place once an hour, or after 5 minutes if the process has grown.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._is_unfrozen = False
        self._collected_at, self._blocks_then = now(), sys.getallocatedblocks()

    def install(self) -> None:
        """Act after each full collection of this process from now on."""
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self.on_collection)

    def on_collection(self, phase: str, facts: dict[str, int]) -> None:
        """Freeze the objects that survived a collection. `gc` calls this before and after each collection."""
        if self._is_unfrozen:
            if phase == "stop" and facts["generation"] == OLDEST_GENERATION:
                self._is_unfrozen = False
                self._collected_at, self._blocks_then = self._now(), sys.getallocatedblocks()
                gc.freeze()
                gc.set_threshold(*THRESHOLDS)
        elif phase == "start":
            if _objects_in(0) > MAX_YOUNG:
                self._freeze()
        elif _objects_in(1) + _objects_in(OLDEST_GENERATION) > MAX_SURVIVORS:
            self._freeze()

    def _freeze(self) -> None:
        gc.freeze()
        if self._may_be_garbage(self._now() - self._collected_at):
            gc.unfreeze()  # the next full collection walks all objects
            gc.set_threshold(THRESHOLDS[0], 0, 0)  # and is the third from now
            self._is_unfrozen = True

    def _may_be_garbage(self, age_s: float) -> bool:
        """Return whether frozen objects are to be collected `age_s` after the last time."""
        if age_s < MIN_FROZEN_INTERVAL_S:
            return False
        return age_s >= MAX_FROZEN_INTERVAL_S or sys.getallocatedblocks() > MAX_GROWTH * self._blocks_then


def _objects_in(generation: int) -> int:
    return len(gc.get_objects(generation=generation))
