"""Telemetry of one request: its spans, its metrics and its log line."""

import math
from functools import partial

import structlog
from opentelemetry.trace import Span, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from penstock.chassis.errors import PenstockError
from penstock.chassis.observability import semconv
from penstock.chassis.observability.deferred import defer
from penstock.chassis.observability.telemetry import (
    meter,
    records_spans,
    start_span,
    trace_id_of,
    traceparent_of,
    unrecorded_traceparent,
)
from penstock.edge.lifecycle.active_request import ActiveRequest
from penstock.edge.lifecycle.effects import AcknowledgeCancel
from penstock.edge.request.spec import ChatInput, RequestSpec

log = structlog.get_logger()

PROVIDER = "penstock"
SPAN_TOKENIZE = "edge.tokenize"
# Codes of errors that this server caused, not the caller.
SERVER_FAULT_CODES = frozenset({"INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "UNKNOWN"})

_time_to_first_token = meter().create_histogram(
    semconv.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN,
    unit="s",
    description="From arrival to the first token.",
    explicit_bucket_boundaries_advisory=list(semconv.TIME_TO_FIRST_TOKEN_BUCKETS),
)
_time_per_output_token = meter().create_histogram(
    semconv.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN,
    unit="s",
    description="Between tokens after the first.",
    explicit_bucket_boundaries_advisory=list(semconv.TIME_PER_OUTPUT_TOKEN_BUCKETS),
)
_request_duration = meter().create_histogram(
    semconv.GEN_AI_SERVER_REQUEST_DURATION,
    unit="s",
    description="From arrival to the end of the answer.",
    explicit_bucket_boundaries_advisory=list(semconv.REQUEST_DURATION_BUCKETS),
)
_cancel_acknowledged = meter().create_histogram(
    semconv.PENSTOCK_CANCEL_ACKNOWLEDGED,
    unit="s",
    description="From a client's cancel to its worker's acknowledgement.",
    explicit_bucket_boundaries_advisory=list(semconv.TIME_TO_FIRST_TOKEN_BUCKETS),
)


class RequestTelemetry:
    """Records one request. Its spans continue the trace that the client sent; other tiers continue `traceparent`."""

    def __init__(self, spec: RequestSpec, ticket_id: str, request_id: str, traceparent: str, arrived: float) -> None:
        self._operation = _operation_of(spec)
        self._request_id = request_id
        self._requested_model = spec.model
        self._error: PenstockError | None = None
        self._root_span: Span | None = None  # None if the trace is not sampled, which has no spans
        self._stage_span: Span | None = None
        if not records_spans():
            self.traceparent = unrecorded_traceparent(traceparent)
            return
        root = start_span(semconv.SPAN_EDGE_GENERATE, traceparent, start_time=round(arrived * 1e9))
        self.traceparent = traceparent_of(root)
        if root.is_recording():
            root.set_attributes(_request_attributes(spec, self._operation, ticket_id, request_id))
            self._root_span = root
            self._start_stage_span(SPAN_TOKENIZE, arrived)

    @property
    def trace_id(self) -> str:
        return trace_id_of(self.traceparent)

    def on_tokenized(self, now: float) -> None:
        self._end_stage_span(now)
        self._start_stage_span(semconv.SPAN_ADMISSION, now)

    def on_admitted(self, now: float, *, by_fallback: bool = False) -> None:
        self._end_stage_span(now)
        if by_fallback and self._root_span:
            self._root_span.set_attribute(semconv.PENSTOCK_AUTH_FALLBACK, by_fallback)

    def on_failed(self, error: PenstockError) -> None:
        self._error = error

    def set_rejected_by(self, tier: str) -> None:
        if self._root_span:
            self._root_span.set_attribute(semconv.PENSTOCK_REJECTED_BY, tier)

    def on_cancelled(self, acknowledgement: AcknowledgeCancel) -> None:
        if self._root_span:
            self._root_span.set_attribute("penstock.kv_blocks_freed", acknowledgement.kv_blocks_freed)
        if acknowledgement.is_acknowledged:
            defer(partial(_cancel_acknowledged.record, acknowledgement.waited_s))

    def end(self, request: ActiveRequest, now: float) -> None:
        """Write the log line at once, so that a crash cannot lose it, and defer spans and metrics."""
        log.info("ticket_done", **self._log_fields(request, now))
        defer(partial(self._record, request, now))

    def _record(self, request: ActiveRequest, now: float) -> None:
        if self._root_span:
            self._end_spans(self._root_span, request, now)
        self._record_metrics(request, now)

    def _end_spans(self, root: Span, request: ActiveRequest, now: float) -> None:
        self._end_stage_span(now)  # ends with its request, although this code is deferred
        root.set_attributes(_result_attributes(request))
        if self._error:
            code = self._error.code.name
            root.set_attributes({semconv.ERROR_TYPE: code, semconv.PENSTOCK_REASON: self._error.reason})
            if code in SERVER_FAULT_CODES:
                root.set_status(Status(StatusCode.ERROR, self._error.reason))
        root.end(round(now * 1e9))

    def _start_stage_span(self, name: str, now: float) -> None:
        if self._root_span:
            self._stage_span = start_span(name, self.traceparent, start_time=round(now * 1e9))

    def _end_stage_span(self, now: float) -> None:
        if self._stage_span:
            self._stage_span.end(round(now * 1e9))
            self._stage_span = None

    def _record_metrics(self, request: ActiveRequest, now: float) -> None:
        labels: dict[str, AttributeValue] = {
            semconv.GEN_AI_OPERATION_NAME: self._operation,
            semconv.GEN_AI_PROVIDER_NAME: PROVIDER,
            semconv.GEN_AI_REQUEST_MODEL: request.model,
        }
        failed = {semconv.ERROR_TYPE: self._error.reason} if self._error else {}
        _request_duration.record(now - request.arrived_at, {**labels, **failed})
        if self._error or math.isnan(request.first_token_at):
            return
        _time_to_first_token.record(request.first_token_at - request.arrived_at, labels)
        if request.output_tokens > 1:
            _time_per_output_token.record(_time_per_token(request), labels)

    def _log_fields(self, request: ActiveRequest, now: float) -> dict[str, object]:
        is_routed = request.model and self._requested_model not in ("", request.model)
        return {
            **({"requested_model": self._requested_model} if is_routed else {}),
            "ticket_id": request.ticket_id,
            "request_id": self._request_id,
            "trace_id": self.trace_id,
            "tenant": request.identity.tenant_id,
            "key_id": request.identity.key_id,
            "model": request.model,
            "outcome": request.outcome,
            "reason": self._error.reason if self._error else "",
            "prompt_tokens": request.prompt_tokens,
            "output_tokens": request.output_tokens,
            "cached_tokens": request.cached_prompt_tokens,
            "attempts": request.attempt,
            "worker_id": request.worker_id,
            "queue_s": round(request.timeline.seconds("queue", "wait"), 6),
            "ttft_s": _rounded(request.first_token_at - request.arrived_at),
            "tpot_s": _rounded(_time_per_token(request)),
            "total_s": round(now - request.arrived_at, 6),
            "cancelled_at": _rounded(request.cancelled_at),
        }


def _operation_of(spec: RequestSpec) -> str:
    if spec.embeds:
        return "embeddings"
    return "chat" if isinstance(spec.input, ChatInput) else "text_completion"


def _time_per_token(request: ActiveRequest) -> float:
    if request.output_tokens < 2:
        return math.nan
    return (request.last_token_at - request.first_token_at) / (request.output_tokens - 1)


def _rounded(seconds: float) -> float | None:
    return None if math.isnan(seconds) else round(seconds, 6)


def _request_attributes(
    spec: RequestSpec, operation: str, ticket_id: str, request_id: str
) -> dict[str, AttributeValue]:
    asked: dict[str, AttributeValue] = {
        semconv.GEN_AI_OPERATION_NAME: operation,
        semconv.GEN_AI_PROVIDER_NAME: PROVIDER,
        semconv.GEN_AI_REQUEST_TEMPERATURE: spec.temperature,
        semconv.GEN_AI_REQUEST_TOP_P: spec.top_p,
        semconv.PENSTOCK_TICKET_ID: ticket_id,
        semconv.PENSTOCK_REQUEST_ID: request_id,
    }
    if spec.model:
        asked[semconv.GEN_AI_REQUEST_MODEL] = spec.model
    if spec.max_output_tokens is not None:
        asked[semconv.GEN_AI_REQUEST_MAX_TOKENS] = spec.max_output_tokens
    if spec.top_k:
        asked[semconv.GEN_AI_REQUEST_TOP_K] = spec.top_k
    return asked


def _result_attributes(request: ActiveRequest) -> dict[str, AttributeValue]:
    return {
        semconv.GEN_AI_RESPONSE_MODEL: request.model,
        semconv.GEN_AI_RESPONSE_FINISH_REASONS: [request.outcome],
        semconv.GEN_AI_USAGE_INPUT_TOKENS: request.prompt_tokens,
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: request.output_tokens,
        semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: request.cached_prompt_tokens,
        semconv.PENSTOCK_TENANT_ID: request.identity.tenant_id,
        semconv.PENSTOCK_ATTEMPT: request.attempt,
        semconv.PENSTOCK_WORKER_ID: request.worker_id,
    }
