"""Metrics of a scheduler: placements, changes of its workers, and values that are read at each collection."""

from collections import Counter as Totals
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from prometheus_client import Counter

from penstock.chassis.observability.metrics import Observation, counter, histogram
from penstock.chassis.observability.series import Series
from penstock.mesh.model_key import model_name
from penstock.scheduler import series
from penstock.scheduler.dispatcher import Dispatcher

MAX_BOUND = 1_024  # models whose instruments are kept

_placements = counter(series.PLACEMENTS)
_prompt_tokens = counter(series.PROMPT_TOKENS)
_declines = counter(series.DECLINES)
_placement_duration = histogram(series.PLACEMENT_DURATION)
_worker_changes = counter(series.WORKER_CHANGES)


class _Placements(NamedTuple):
    placed: Counter
    cached_tokens: Counter
    new_tokens: Counter


@lru_cache(maxsize=MAX_BOUND)
def _placements_of(model: str) -> _Placements:
    name = model_name(model)
    return _Placements(
        _placements.labels(name), _prompt_tokens.labels(name, "cached"), _prompt_tokens.labels(name, "new")
    )


def record_placed(model: str, prompt_tokens: int, new_tokens: int, took_s: float) -> None:
    """Record a lease. `new_tokens` of the prompt are not expected in the prefix cache of the worker."""
    placements = _placements_of(model)
    placements.placed.inc()
    placements.cached_tokens.inc(max(0, prompt_tokens - new_tokens))
    placements.new_tokens.inc(new_tokens)
    _placement_duration.observe(took_s)


def record_declined(reason: str) -> None:
    _declines.labels(reason).inc()


def record_worker_change(model: str, change: str) -> None:
    """Record that a worker attached, detached or was lost."""
    _worker_changes.labels(model_name(model), change).inc()


def observations(dispatcher: Dispatcher) -> Iterator[Observation]:
    yield Observation(series.UNSTARTED_LEASES, dispatcher.leases.unstarted_count)
    yield Observation(series.LEASES_EXPIRED, dispatcher.expired_lease_count)
    yield Observation(series.LEASES_PREEMPTED, dispatcher.preempted_lease_count)
    yield Observation(series.QUEUES, len(dispatcher.queues))
    credit = Totals[str]()
    for model, book in dispatcher.credit_books.items():
        credit[model_name(model)] += book.held_tickets
    for model, tickets in credit.items():
        yield Observation(series.CREDIT, tickets, (model,))
    yield from _capacities(dispatcher)


def _capacities(dispatcher: Dispatcher) -> Iterator[Observation]:
    """Yield the sums over the workers of each model. Versions of a model have a pool each and are added up."""
    sums: dict[str, Totals[Series]] = {}
    for model, pool in dispatcher.fleet.pools.items():
        totals, found = pool.totals, sums.setdefault(model_name(model), Totals())
        found[series.WORKERS] += len(pool)
        found[series.SLOTS] += totals.slots
        found[series.RUNNING] += sum(worker.report.running for worker in pool)
        found[series.AVAILABLE_LEASES] += totals.available_leases
        found[series.LEASES] += sum(len(worker.promised) for worker in pool)
        found[series.KV_PROMISED] += sum(worker.promised_blocks for worker in pool)
        found[series.KV_TOTAL] += sum(worker.profile.kv_blocks for worker in pool)
        found[series.TOKENS_PER_SECOND] += totals.tokens_per_second
    for model, found in sums.items():
        for each, value in found.items():
            yield Observation(each, value, (model,))
