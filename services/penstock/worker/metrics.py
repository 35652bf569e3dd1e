"""Metrics of a worker: one record per run at its end, and values that are read at each collection."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from prometheus_client import Counter, Histogram

from penstock.chassis.observability.metrics import Observation, counter, exemplar_in, histogram
from penstock.mesh.model_key import model_name
from penstock.worker import series
from penstock.worker.engine_host.state import EngineState
from penstock.worker.engine_host.supervisor import EngineSupervisor
from penstock.worker.runs.run import Run, RunTimes
from penstock.worker.runs.table import RunTable

_runs = counter(series.RUNS)
_run_duration = histogram(series.RUN_DURATION)
_time_to_first_token = histogram(series.TIME_TO_FIRST_TOKEN)
_time_per_output_token = histogram(series.TIME_PER_OUTPUT_TOKEN)
_cancel_latency = histogram(series.CANCEL_LATENCY)
_cancel_wasted = counter(series.CANCEL_WASTED)


class _Instruments(NamedTuple):
    duration: Histogram
    first_token: Histogram
    per_output_token: Histogram
    cancel_latency: Histogram
    cancel_wasted: Counter


@lru_cache(maxsize=16)  # a process serves one model
def _instruments_of(model: str) -> _Instruments:
    return _Instruments(
        _run_duration.labels(model),
        _time_to_first_token.labels(model),
        _time_per_output_token.labels(model),
        _cancel_latency.labels(model),
        _cancel_wasted.labels(model),
    )


@lru_cache(maxsize=256)
def _runs_of(model: str, outcome: str) -> Counter:
    return _runs.labels(model, outcome)


def record_ended(model: str, run: Run, times: RunTimes, outcome: str) -> None:
    """Record a run that has ended. `outcome`: stop, length, cancelled or the reason of its error."""
    exemplar, instruments = exemplar_in(run.traceparent), _instruments_of(model)
    _runs_of(model, outcome).inc()
    instruments.duration.observe(sum(times), exemplar)
    if run.tokens:
        instruments.first_token.observe(times.wait_s + times.prefill_s, exemplar)
    if run.tokens > 1:
        instruments.per_output_token.observe(times.decode_s / (run.tokens - 1), exemplar)


def record_cancelled(model: str, latency_s: float, wasted_tokens: int) -> None:
    """Record the release of a run that was stopped."""
    instruments = _instruments_of(model)
    instruments.cancel_latency.observe(latency_s)
    instruments.cancel_wasted.inc(wasted_tokens)


def observations(
    runs: RunTable, state: EngineState, engine: EngineSupervisor, *, is_attached: bool
) -> Iterator[Observation]:
    labels = (model_name(state.model),) if state.model else ("",)
    capacity, throughput, counts = state.capacity, state.throughput, runs.counters
    for each, value in (
        (series.CANCELS, counts.cancels),
        (series.PREFIX_QUERIES, counts.tokens_admitted),
        (series.PREEMPTIONS, counts.preemptions),
        (series.STEPS, throughput.steps),
        (series.STEP_SECONDS, throughput.busy_s),
        (series.STEP_TIME, throughput.step_time or 0.0),
        (series.ATTACHED, is_attached),
        (series.ENGINE_READY, capacity is not None),
        (series.ENGINE_RESTARTS, engine.restarts),
        (series.LOAD_SECONDS, engine.load_s),
        (series.QUARANTINED, len(runs.quarantine.isolation.suspects)),
        (series.RUNNING, capacity.running if capacity else 0),
        (series.WAITING, capacity.waiting if capacity else 0),
        (series.SLOTS, capacity.slots if capacity else 0),
        (series.KV_USED, capacity.blocks - capacity.blocks_free if capacity else 0),
        (series.KV_CACHED, capacity.blocks_cached if capacity else 0),
        (series.KV_TOTAL, capacity.blocks if capacity else 0),
        (series.PREFILL_BACKLOG, capacity.prefill_backlog_tokens if capacity else 0),
    ):
        yield Observation(each, value, labels)
    for kind, tokens in (
        ("prefill", counts.tokens_prefilled),
        ("decode", counts.tokens_generated),
        ("cached", counts.tokens_cached),
    ):
        yield Observation(series.TOKENS, tokens, (*labels, kind))
