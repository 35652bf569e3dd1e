"""When the leases that a model's workers hold are likely to end, as a curve of few points. Pure arithmetic."""

from collections.abc import Mapping, Sequence
from itertools import islice

from penstock.chassis.durations import seconds_of, set_seconds
from penstock.mesh.v1.queue_pb2 import Release
from penstock.scheduler.leases import LeaseEntry
from penstock.scheduler.worker import Worker

WORKERS = 8  # that are looked at; more are taken to be like them
GROWTH = 1.3  # from one point's leases to the next one's: fine where the next tickets wait, coarse beyond
UNPREDICTED = 256  # tokens of an answer of which nothing is known
OVERDUE = 0.5  # of what an answer has, when it has more than was predicted: long answers tend to go on for long


def steps_left(entry: LeaseEntry, steps: int) -> float:
    """Return the steps that a lease has to go on, where its worker has done `steps` by now."""
    expected = entry.predicted_output or UNPREDICTED
    if not entry.output_served:
        return expected + 1.0  # a step at least in which it prefills
    made = entry.output_served + max(0, steps - entry.served_at)
    return expected - made if expected > made else 1 + OVERDUE * (made - 1)


def releases_of(workers: Sequence[Worker], leases: Mapping[str, LeaseEntry], turn: int = 0) -> list[Release]:
    """Return the curve without what prefill adds; `turn` says who is looked at where there are many workers."""
    every = max(1, len(workers) // WORKERS)
    seen = list(islice(workers, turn % every, None, every))
    ends = sorted(end for worker in seen for end in _ends(worker, leases))
    scale = len(workers) / max(1, len(seen))
    found, following = [], 1.0
    for count, after in enumerate(ends, start=1):
        if count >= following or count == len(ends):
            following = max(count + 1, count * GROWTH)
            release = Release(leases=round(count * scale))
            set_seconds(release.after, after)
            found.append(release)
    return found


def _ends(worker: Worker, leases: Mapping[str, LeaseEntry]) -> list[float]:
    """Return s for each lease; one that came along with the worker may be known by its id alone."""
    step, steps = seconds_of(worker.report.decode_step_time), worker.report.steps
    if not step:
        return []
    nothing = LeaseEntry("", "", 0, "", worker.key, worker.worker_id, 0)
    return [step * steps_left(leases.get(lease_id, nothing), steps) for lease_id in worker.promised]
