"""How fast the workers of each model get work done, as the shards' predictions need it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.chassis.durations import seconds_of, set_seconds
from penstock.mesh.v1.queue_pb2 import Pace
from penstock.scheduler.effects import TellPace
from penstock.scheduler.leases import LeaseEntry
from penstock.scheduler.pool import Pool
from penstock.scheduler.releases import releases_of

RENEW_AFTER = 1.0  # s; an unchanged pace is told again, as an old one is not believed for ever
DIGITS = 3  # of a rate; its noise is no news


@dataclass(slots=True)
class PaceBook:
    """What each shard was told last."""

    _told: dict[tuple[str, str], tuple[Pace, float]] = field(default_factory=dict)  # by shard and model: what, when
    _turn: int = 0

    def news(
        self, queues: Iterable[str], pools: Mapping[str, Pool], leases: Mapping[str, LeaseEntry], now: float
    ) -> list[TellPace]:
        """Return what is news; models without workers are told once to have none."""
        self._turn += 1
        gone = {model: Pace(model=model) for _, model in self._told if model not in pools}
        paces = gone | {model: pace_of(model, pool, leases, self._turn) for model, pool in pools.items()}
        found = [
            TellPace(queue, pace) for queue in queues for pace in paces.values() if self._is_news(queue, pace, now)
        ]
        self._told |= {(each.queue, each.pace.model): (each.pace, now) for each in found}
        return found

    def forget(self, queue: str) -> None:
        self._told = {key: told for key, told in self._told.items() if key[0] != queue}

    def _is_news(self, queue: str, pace: Pace, now: float) -> bool:
        told, at = self._told.get((queue, pace.model), (None, 0.0))
        return pace != told or (pace.slots > 0 and at + RENEW_AFTER <= now)


def pace_of(model: str, pool: Pool, leases: Mapping[str, LeaseEntry], turn: int = 0) -> Pace:
    totals, following, workers = pool.totals, pool.best(), list(pool)
    reports = [each.report for each in workers]
    pace = Pace(
        model=model,
        tokens_per_second=_rounded(totals.tokens_per_second),
        prefill_tokens_per_second=_mean([each.prefill_tokens_per_second for each in reports]),
        running=totals.running,
        slots=totals.slots,
        leases=sum([len(each.promised) for each in workers]),
        room=totals.room,
        workers=len(workers),
        pending_prefill_tokens=sum([each.prefill_tokens for each in workers]),
        prefill_token_seconds=_mean([each.prefill_token_seconds for each in reports]),
        releases=releases_of(workers, leases, turn),
        step_tokens=max([each.step_tokens for each in reports], default=0),
        held_tokens=sum([each.promised_blocks * each.block_size for each in workers]),
        free_tokens=sum([each.free_blocks * each.block_size for each in workers]),
    )
    if decode_step := _mean([seconds_of(each.decode_step_time) for each in reports]):
        set_seconds(pace.decode_step_time, decode_step)
    if following:
        pace.prefill_backlog_tokens = following.prefill_tokens
        set_seconds(pace.step_time, _rounded(following.step_s))
    return pace


def _mean(measured: Sequence[float]) -> float:
    """Of those that have measured anything."""
    found = [each for each in measured if each]
    return _rounded(sum(found) / len(found)) if found else 0.0


def _rounded(rate: float) -> float:
    return float(f"{rate:.{DIGITS}g}") if rate else 0.0
