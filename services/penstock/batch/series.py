"""Series of the batch tier, which owns batches and their lines."""

from penstock.chassis.observability.series import counter, gauge, histogram

COMMIT_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

LINES = gauge(
    "penstock.batch.lines",
    "{line}",
    "Lines of the chunks that a process holds: waiting in it, queued in the mesh, or running on a worker.",
    "state",
)
LINES_ENDED = counter(
    "penstock.batch.lines_ended",
    "{line}",
    "Lines with a result in the store: answered, or failed. refused: results of chunks that another process has.",
    "outcome",
)
LINES_RETURNED = counter(
    "penstock.batch.lines_returned",
    "{line}",
    "Lines that start again: deferred (the mesh had no room), lost (a run failed), or edge_lost (its edge is gone).",
    "cause",
)
CHUNKS = gauge("penstock.batch.chunks", "{chunk}", "Chunks that a process holds.")
EDGES = gauge("penstock.batch.edges", "{edge}", "Edges that take lines.")
COMMIT_DURATION = histogram(
    "penstock.batch.commit", "Commit of a group of results to the store.", buckets=COMMIT_BUCKETS
)
STORE_AVAILABLE = gauge(
    "penstock.batch.store_available", "{flag}", "1 while the latest look at the store and the latest commit succeeded."
)
BATCHES = gauge(
    "penstock.batch.batches",
    "{batch}",
    "Batches in the store by state. Replicas of one store export the same number, as of the next three.",
    "state",
)
LINES_LEFT = gauge("penstock.batch.lines_left", "{line}", "Lines without a result, of batches in progress.")
TIME_LEFT = gauge(
    "penstock.batch.time_left",
    "s",
    "Time until the last batch in progress ends, if each goes on at its mean speed so far; 0: not known. Of the oldest"
    " 1,000 batches.",
)
FILES = gauge("penstock.batch.files", "By", "Size of the files of all tenants, outputs included.")
DISK_USED = gauge("penstock.batch.disk_used", "1", "Used share of the volume of the files; 0 for a bucket.")

SERIES = (
    LINES,
    LINES_ENDED,
    LINES_RETURNED,
    CHUNKS,
    EDGES,
    COMMIT_DURATION,
    STORE_AVAILABLE,
    BATCHES,
    LINES_LEFT,
    TIME_LEFT,
    FILES,
    DISK_USED,
)
