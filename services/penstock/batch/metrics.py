"""Metrics of a process of the batch tier: commits, and values that are read at each collection."""

from collections.abc import Iterator, Mapping

from penstock.batch import series
from penstock.chassis.observability.metrics import Observation, histogram
from penstock.chassis.observability.series import Series

STATE_FIGURE = "batches_"  # begin of the names of the figures of batches by state

# Series of values that the figures of the admin snapshot have.
OBSERVED_FIGURES: Mapping[str, tuple[Series, tuple[str, ...]]] = {
    "lines_waiting": (series.LINES, ("waiting",)),
    "lines_queued": (series.LINES, ("queued",)),
    "lines_running": (series.LINES, ("running",)),
    "lines_answered": (series.LINES_ENDED, ("answered",)),
    "lines_failed": (series.LINES_ENDED, ("failed",)),
    "results_refused": (series.LINES_ENDED, ("refused",)),
    "lines_deferred": (series.LINES_RETURNED, ("deferred",)),
    "lines_lost": (series.LINES_RETURNED, ("lost",)),
    "lines_of_lost_edges": (series.LINES_RETURNED, ("edge_lost",)),
    "chunks_held": (series.CHUNKS, ()),
    "edges": (series.EDGES, ()),
    "store_available": (series.STORE_AVAILABLE, ()),
    "lines_left": (series.LINES_LEFT, ()),
    "time_left_s": (series.TIME_LEFT, ()),
    "file_bytes": (series.FILES, ()),
    "disk_used": (series.DISK_USED, ()),
}

_commit_duration = histogram(series.COMMIT_DURATION)


def record_commit(seconds: float) -> None:
    """Record a group of results that is in the store after `seconds`."""
    _commit_duration.observe(seconds)


def observations(figures: Mapping[str, float]) -> Iterator[Observation]:
    """Yield the values of a process with these `figures`."""
    for name, (each, labels) in OBSERVED_FIGURES.items():
        yield Observation(each, figures[name], labels)
    for name, count in figures.items():
        if name.startswith(STATE_FIGURE):
            yield Observation(series.BATCHES, count, (name.removeprefix(STATE_FIGURE),))
