"""Metrics of requests: instruments bound once per model, class and tenant, and one record per request at its end."""

import math
from functools import lru_cache
from typing import NamedTuple

from prometheus_client import Counter, Histogram

from penstock.chassis.observability import semconv
from penstock.chassis.observability.metrics import counter, histogram
from penstock.chassis.observability.series import TENANT
from penstock.chassis.observability.tenant_labels import TenantLabels
from penstock.edge import series
from penstock.edge.lifecycle.active_request import ActiveRequest
from penstock.mesh.class_names import class_name

MAX_BOUND = 4_096  # label sets whose instruments are kept
SHED = "shed"

Exemplar = dict[str, str] | None

_requests = counter(series.REQUESTS)
_tokens = counter(series.TOKENS)
_duration = histogram(series.REQUEST_DURATION)
_time_to_first_token = histogram(series.TIME_TO_FIRST_TOKEN)
_time_per_output_token = histogram(series.TIME_PER_OUTPUT_TOKEN)
_cancel_acknowledged = histogram(series.CANCEL_ACKNOWLEDGED)
_resumes = counter(series.RESUMES)


class _TokenCounters(NamedTuple):
    input: Counter
    cached_input: Counter
    output: Counter


class _Times(NamedTuple):
    duration: Histogram
    first_token: Histogram
    per_output_token: Histogram


@lru_cache(maxsize=MAX_BOUND)
def _requests_of(model: str, priority: int, tenant: str, outcome: str, reason: str) -> Counter:
    return _requests.labels(model, class_name(priority), tenant, outcome, reason)


@lru_cache(maxsize=MAX_BOUND)
def _tokens_of(model: str, priority: int, tenant: str) -> _TokenCounters:
    name = class_name(priority)
    return _TokenCounters(*(_tokens.labels(model, name, tenant, kind) for kind in _TokenCounters._fields))


@lru_cache(maxsize=MAX_BOUND)
def _times_of(operation: str, model: str, priority: int, tenant: str) -> _Times:
    name = class_name(priority)
    return _Times(
        _duration.labels(operation, semconv.PROVIDER, model, name, ""),
        _time_to_first_token.labels(operation, semconv.PROVIDER, model, name, tenant),
        _time_per_output_token.labels(operation, semconv.PROVIDER, model, name),
    )


@lru_cache(maxsize=MAX_BOUND)
def _failed_duration_of(operation: str, model: str, priority: int, reason: str) -> Histogram:
    return _duration.labels(operation, semconv.PROVIDER, model, class_name(priority), reason)


def _remove_tenant(tenant: str) -> None:
    for each in (_requests, _tokens, _time_to_first_token):
        each.remove_by_labels({TENANT: tenant})
    for cache in (_requests_of, _tokens_of, _times_of):
        cache.cache_clear()


_tenants = TenantLabels(_remove_tenant)


def record_ended(request: ActiveRequest, operation: str, reason: str, now: float, exemplar: Exemplar = None) -> None:
    """Record a request that has ended. `reason`: of its error; empty if it has none."""
    identity = request.identity
    model, priority, tenant = request.model, identity.priority, _tenants.record(identity.tenant_id)
    _requests_of(model, priority, tenant, request.outcome, reason).inc()
    if request.worker_id:
        _record_tokens(request, model, priority, tenant)
    duration_s = now - request.arrived_at
    if reason:
        _failed_duration_of(operation, model, priority, reason).observe(duration_s, exemplar)
        return
    times = _times_of(operation, model, priority, tenant)
    times.duration.observe(duration_s, exemplar)
    if not math.isnan(request.first_token_at):
        times.first_token.observe(request.first_token_at - request.arrived_at, exemplar)
        if request.output_tokens > 1:
            times.per_output_token.observe(time_per_token(request), exemplar)


def _record_tokens(request: ActiveRequest, model: str, priority: int, tenant: str) -> None:
    tokens = _tokens_of(model, priority, tenant)
    cached = min(request.cached_prompt_tokens, request.charged_prompt_tokens)
    tokens.input.inc(request.charged_prompt_tokens - cached)
    tokens.cached_input.inc(cached)
    tokens.output.inc(request.output_tokens)
    if request.attempt > 1:
        _resumes.labels(model, "run").inc(request.attempt - 1)


def record_refused(model: str, priority: int, tenant_id: str, reason: str) -> None:
    """Record a request that was refused before it was active. `model`: empty unless it is known."""
    _requests_of(model, priority, _tenants.record(tenant_id), SHED, reason).inc()


def record_answer_resumed(model: str) -> None:
    _resumes.labels(model, "answer").inc()


def record_cancel_acknowledged(seconds: float) -> None:
    _cancel_acknowledged.observe(seconds)


def time_per_token(request: ActiveRequest) -> float:
    """Return the mean s between output tokens; NaN if there are fewer than two."""
    if request.output_tokens < 2:
        return math.nan
    return (request.last_token_at - request.first_token_at) / (request.output_tokens - 1)
