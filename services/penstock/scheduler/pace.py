"""How fast the workers of each model get work done, as the shards' predictions need it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.mesh.v1.queue_pb2 import Pace
from penstock.scheduler.effects import TellPace
from penstock.scheduler.pool import Pool

RENEW_AFTER = 1.0  # s; an unchanged pace is told again, as an old one is not believed for ever
DIGITS = 3  # of a rate; its noise is no news


@dataclass(slots=True)
class PaceBook:
    """What each shard was told last."""

    _told: dict[tuple[str, str], tuple[Pace, float]] = field(default_factory=dict)  # by shard and model: what, when

    def news(self, queues: Iterable[str], pools: dict[str, Pool], now: float) -> list[TellPace]:
        """Return what is news; models without workers are told once to have none."""
        gone = {model: Pace(model=model) for _, model in self._told if model not in pools}
        paces = gone | {model: pace_of(model, pool) for model, pool in pools.items()}
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


def pace_of(model: str, pool: Pool) -> Pace:
    totals, following = pool.totals, pool.best()
    measured = [rate for worker in pool if (rate := worker.report.prefill_tokens_per_second)]
    pace = Pace(
        model=model,
        tokens_per_second=_rounded(totals.tokens_per_second),
        prefill_tokens_per_second=_rounded(sum(measured) / len(measured)) if measured else 0.0,
        running=totals.running,
        slots=totals.slots,
    )
    if following:
        pace.prefill_backlog_tokens = following.prefill_tokens
        pace.step_time.FromNanoseconds(round(_rounded(following.step_s) * 1e9))
    return pace


def _rounded(rate: float) -> float:
    return float(f"{rate:.{DIGITS}g}")
