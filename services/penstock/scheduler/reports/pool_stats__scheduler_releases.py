"""When the leases that a model's workers hold are likely to end, as a curve of few points. Pure arithmetic."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import ceil

from penstock.chassis.durations import seconds_of, set_seconds
from penstock.mesh.v1.queue_pb2 import SlotRelease
from penstock.scheduler.fleet.worker import Worker
from penstock.scheduler.leases import LeaseEntry

MAX_SAMPLED_WORKERS = 8  # that are looked at; more are taken to be like them
POINT_GROWTH_FACTOR = 1.3  # from one point's leases to the next one's: fine where the next tickets wait, coarse beyond
DEFAULT_OUTPUT_TOKENS = 256  # tokens of an answer of which nothing is known
OVERDUE_OUTPUT_SHARE = (
    0.5  # of what an answer has, when it has more than was predicted: long answers tend to go on for long
)
UNKNOWN_LEASE = LeaseEntry("", "", 0, "", "", "", 0)  # a lease that came along with its worker


def steps_left(entry: LeaseEntry, steps: int) -> float:
    """Return the steps that a lease has to go on, where its worker has done `steps` by now."""
    expected = entry.predicted_output_tokens or DEFAULT_OUTPUT_TOKENS
    if not entry.served_output_tokens:
        return expected + 1.0  # a step at least in which it prefills
    made = entry.served_output_tokens + (steps - entry.served_at_step if steps > entry.served_at_step else 0)
    return expected - made if expected > made else 1 + OVERDUE_OUTPUT_SHARE * (made - 1)


def slot_releases_of(workers: Sequence[Worker], leases: Mapping[str, LeaseEntry], turn: int = 0) -> list[SlotRelease]:
    """Return the curve without what prefill adds; `turn` says who is looked at where there are many workers."""
    every = max(1, len(workers) // MAX_SAMPLED_WORKERS)
    seen = list(islice(workers, turn % every, None, every))
    ends = sorted(end for worker in seen for end in _lease_ends(worker, leases))
    scale = len(workers) / max(1, len(seen))
    found = []
    for count in _point_counts(len(ends)):
        release = SlotRelease(ended_leases=round(count * scale))
        set_seconds(release.after, ends[count - 1])
        found.append(release)
    return found


def _point_counts(max_count: int) -> Iterator[int]:
    count = 1
    while count < max_count:
        yield count
        count = max(count + 1, ceil(count * POINT_GROWTH_FACTOR))
    if max_count:
        yield max_count


def _lease_ends(worker: Worker, leases: Mapping[str, LeaseEntry]) -> list[float]:
    """Return s for each lease."""
    step, steps = seconds_of(worker.report.decode_step_time), worker.report.steps
    if not step:
        return []
    return [step * steps_left(leases.get(lease_id, UNKNOWN_LEASE), steps) for lease_id in worker.promised]
