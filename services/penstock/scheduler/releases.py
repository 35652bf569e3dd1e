"""When the leases that a model's workers hold are likely to end, as a curve of few points. Pure arithmetic."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import ceil

from penstock.chassis.durations import seconds_of, set_seconds
from penstock.mesh.v1.queue_pb2 import Release
from penstock.scheduler.leases import LeaseEntry
from penstock.scheduler.worker import Worker

WORKERS = 8  # that are looked at; more are taken to be like them
GROWTH = 1.3  # from one point's leases to the next one's: fine where the next tickets wait, coarse beyond
UNPREDICTED = 256  # tokens of an answer of which nothing is known
OVERDUE = 0.5  # of what an answer has, when it has more than was predicted: long answers tend to go on for long
UNKNOWN = LeaseEntry("", "", 0, "", "", "", 0)  # a lease that came along with its worker


def steps_left(entry: LeaseEntry, steps: int) -> float:
    """Return the steps that a lease has to go on, where its worker has done `steps` by now."""
    expected = entry.predicted_output or UNPREDICTED
    if not entry.output_served:
        return expected + 1.0  # a step at least in which it prefills
    made = entry.output_served + (steps - entry.served_at if steps > entry.served_at else 0)
    return expected - made if expected > made else 1 + OVERDUE * (made - 1)


def releases_of(workers: Sequence[Worker], leases: Mapping[str, LeaseEntry], turn: int = 0) -> list[Release]:
    """Return the curve without what prefill adds; `turn` says who is looked at where there are many workers."""
    every = max(1, len(workers) // WORKERS)
    seen = list(islice(workers, turn % every, None, every))
    ends = sorted(end for worker in seen for end in _ends(worker, leases))
    scale = len(workers) / max(1, len(seen))
    found = []
    for count in _counts(len(ends)):
        release = Release(leases=round(count * scale))
        set_seconds(release.after, ends[count - 1])
        found.append(release)
    return found


def _counts(most: int) -> Iterator[int]:
    count = 1
    while count < most:
        yield count
        count = max(count + 1, ceil(count * GROWTH))
    if most:
        yield most


def _ends(worker: Worker, leases: Mapping[str, LeaseEntry]) -> list[float]:
    """Return s for each lease."""
    step, steps = seconds_of(worker.report.decode_step_time), worker.report.steps
    if not step:
        return []
    return [step * steps_left(leases.get(lease_id, UNKNOWN), steps) for lease_id in worker.promised]
