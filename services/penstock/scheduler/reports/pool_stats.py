"""Pool statistics: rates, step costs and slot releases of the workers of each model, for the predictions of shards."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from math import ceil

from penstock.chassis.durations import seconds_of, set_seconds
from penstock.mesh.limits.bounds import COUNT, RATE, TOTAL_TOKENS, at_most
from penstock.mesh.v1.queue_pb2 import PoolStats, PrefillBacklog, SlotRelease
from penstock.scheduler.effects import SendPoolStats
from penstock.scheduler.fleet.pool import Pool
from penstock.scheduler.fleet.worker import Worker
from penstock.scheduler.leases import LeaseEntry

MAX_SAMPLED_WORKERS = 8  # workers sampled for the slot release curve
POINT_GROWTH_FACTOR = 1.3  # ratio of lease counts between points: fine for the next tickets, coarse for later ones
DEFAULT_OUTPUT_TOKENS = 256  # output tokens assumed without a prediction
OVERDUE_OUTPUT_SHARE = 0.5  # further tokens of an answer beyond its prediction, as a share of its present tokens
UNKNOWN_LEASE = LeaseEntry("", "", 0, "", "", "", 0)  # stands for a lease that the worker brought without a ticket id


def steps_left(entry: LeaseEntry, steps: int) -> float:
    """Return the expected remaining steps of a lease, if its worker has done `steps` steps by now."""
    expected = entry.predicted_output_tokens or DEFAULT_OUTPUT_TOKENS
    if not entry.served_output_tokens:
        return expected + 1.0  # at least one step for the prefill
    made = entry.served_output_tokens + (steps - entry.served_at_step if steps > entry.served_at_step else 0)
    return expected - made if expected > made else 1 + OVERDUE_OUTPUT_SHARE * (made - 1)


def slot_releases_of(workers: Sequence[Worker], leases: Mapping[str, LeaseEntry], turn: int = 0) -> list[SlotRelease]:
    """Return the slot release curve for steps without prefill. `turn` rotates the sample of many workers."""
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
    """Return the s from now to the expected end of each lease; empty if the step time is unknown."""
    step, steps = seconds_of(worker.report.decode_step_time), worker.report.steps
    if not step:
        return []
    return [step * steps_left(leases.get(lease_id, UNKNOWN_LEASE), steps) for lease_id in worker.promised]


RESEND_INTERVAL_S = 1.0  # s; unchanged statistics are sent again, because shards ignore old ones
FEW_AVAILABLE_LEASES = 8  # an idle worker with more of them, and of free KV blocks, is not reported by itself
FEW_FREE_BLOCKS_SHARE = 1 / 4  # of its KV blocks
MAX_PREFILL_BACKLOGS = 64  # workers whose backlog is reported; the next tickets go to those with the smallest
SIGNIFICANT_DIGITS = 3  # digits of a rate, so that noise does not cause frames


@dataclass(slots=True)
class PoolStatsReports:
    """Statistics to send to each shard, and the ones that were sent last."""

    # By shard and model: statistics, and s of sending.
    _last_sent: dict[tuple[str, str], tuple[PoolStats, float]] = field(default_factory=dict)
    _turn: int = 0

    def updates(
        self, queues: Iterable[str], pools: Mapping[str, Pool], leases: Mapping[str, LeaseEntry], now: float
    ) -> list[SendPoolStats]:
        """Return changed statistics. For a model that has lost its workers, empty statistics are sent once."""
        self._turn += 1
        lost = {model: PoolStats(model=model) for _, model in self._last_sent if model not in pools}
        stats_by_model = lost | {model: pool_stats_of(model, pool, leases, self._turn) for model, pool in pools.items()}
        found = [
            SendPoolStats(queue, stats)
            for queue in queues
            for stats in stats_by_model.values()
            if self._is_update_due(queue, stats, now)
        ]
        self._last_sent |= {(each.queue, each.stats.model): (each.stats, now) for each in found}
        return found

    def discard(self, queue: str) -> None:
        self._last_sent = {key: sent for key, sent in self._last_sent.items() if key[0] != queue}

    def _is_update_due(self, queue: str, stats: PoolStats, now: float) -> bool:
        sent, sent_at = self._last_sent.get((queue, stats.model), (None, 0.0))
        return stats != sent or (stats.slots > 0 and sent_at + RESEND_INTERVAL_S <= now)


def pool_stats_of(model: str, pool: Pool, leases: Mapping[str, LeaseEntry], turn: int = 0) -> PoolStats:
    totals, next_worker, workers = pool.totals, pool.next_worker(), list(pool)
    reports = [each.report for each in workers]
    stats = PoolStats(
        model=model,
        tokens_per_second=_rounded(totals.tokens_per_second),
        prefill_tokens_per_second=_mean([each.prefill_tokens_per_second for each in reports]),
        running=at_most(totals.running, COUNT),
        slots=at_most(totals.slots, COUNT),
        leases=at_most(sum([len(each.promised) for each in workers]), COUNT),
        available_leases=at_most(totals.available_leases, COUNT),
        workers=len(workers),
        pending_prefill_tokens=at_most(sum([each.prefill_backlog_tokens for each in workers]), TOTAL_TOKENS),
        seconds_per_prefill_token=_mean([each.seconds_per_prefill_token for each in reports]),
        slot_releases=slot_releases_of(workers, leases, turn),
        max_step_tokens=max([each.max_step_tokens for each in reports], default=0),
        leased_tokens=at_most(sum([each.promised_blocks * each.block_size for each in workers]), TOTAL_TOKENS),
        free_tokens=at_most(sum([each.free_blocks * each.block_size for each in workers]), TOTAL_TOKENS),
        prefill_backlogs=_prefill_backlogs(workers),
    )
    # A worker that has not measured the cost of a prompt token reports its mean step as a decode step.
    measured = [each for each in reports if each.seconds_per_prefill_token] or reports
    if decode_step := _mean([seconds_of(each.decode_step_time) for each in measured]):
        set_seconds(stats.decode_step_time, decode_step)
    if next_worker:
        stats.next_worker_backlog_tokens = next_worker.prefill_backlog_tokens
        set_seconds(stats.step_time, _rounded(next_worker.step_s))
    return stats


def _prefill_backlogs(workers: Sequence[Worker]) -> list[PrefillBacklog]:
    busy = [each for each in workers if each.prefill_backlog_tokens > 0 or _has_little_capacity(each)]
    if len(busy) > MAX_PREFILL_BACKLOGS:
        busy = nsmallest(MAX_PREFILL_BACKLOGS, busy, key=lambda each: each.prefill_backlog_tokens)
    return [
        PrefillBacklog(
            worker_id=each.worker_id,
            tokens=at_most(each.prefill_backlog_tokens, COUNT),
            available_leases=at_most(each.available_leases, COUNT),
            free_tokens=at_most(each.free_blocks * each.block_size, COUNT),
        )
        for each in busy
    ]


def _has_little_capacity(worker: Worker) -> bool:
    return (
        worker.available_leases <= FEW_AVAILABLE_LEASES
        or worker.free_blocks <= FEW_FREE_BLOCKS_SHARE * worker.profile.kv_blocks
    )


def _mean(measured: Sequence[float]) -> float:
    """Return the mean of the values that are not 0; 0.0 if there are none."""
    known = [each for each in measured if each]
    return _rounded(sum(known) / len(known)) if known else 0.0


def _rounded(rate: float) -> float:
    return min(RATE, float(f"{rate:.{SIGNIFICANT_DIGITS}g}")) if rate else 0.0
