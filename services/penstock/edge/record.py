"""What is told of one request to operators: its spans, its measurements, its one line in the log."""

import math
from functools import partial

import structlog
from opentelemetry.trace import Span, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from penstock.chassis import semconv
from penstock.chassis.afterwards import afterwards
from penstock.chassis.errors import PenstockError
from penstock.chassis.telemetry import meter, start_span, trace_id_of, traceparent_of
from penstock.edge.flight.effects import Cancelled
from penstock.edge.flight.flight import Flight
from penstock.edge.request.spec import ChatInput, RequestSpec

log = structlog.get_logger()

PROVIDER = "penstock"
SPAN_TOKENIZE = "edge.tokenize"
FAULTS = frozenset({"INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "UNKNOWN"})  # ours, not the caller's

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
    description="From a client's leaving to its worker's receipt.",
    explicit_bucket_boundaries_advisory=list(semconv.TIME_TO_FIRST_TOKEN_BUCKETS),
)


class Record:
    """Spans of one request, from the traceparent it came with. `traceparent` is what other tiers hang theirs under."""

    def __init__(self, spec: RequestSpec, ticket_id: str, request_id: str, traceparent: str, arrived: float) -> None:
        self._operation = "chat" if isinstance(spec.input, ChatInput) else "text_completion"
        self._request_id = request_id
        self._error: PenstockError | None = None
        self._root = start_span(
            semconv.SPAN_EDGE_GENERATE,
            traceparent,
            start_time=round(arrived * 1e9),
            attributes=_asked(spec, self._operation, ticket_id, request_id),
        )
        self.traceparent = traceparent_of(self._root)
        self.trace_id = trace_id_of(self.traceparent)
        self._stage: Span | None = start_span(SPAN_TOKENIZE, self.traceparent, start_time=round(arrived * 1e9))

    def tokenized(self, now: float) -> None:
        self._end_stage(now)
        self._stage = start_span(semconv.SPAN_ADMISSION, self.traceparent, start_time=round(now * 1e9))

    def admitted(self, now: float, *, in_grace: bool = False) -> None:
        self._end_stage(now)
        if in_grace:
            self._root.set_attribute(semconv.PENSTOCK_IN_GRACE, in_grace)

    def failed(self, error: PenstockError) -> None:
        self._error = error

    def refused_by(self, tier: str) -> None:
        self._root.set_attribute(semconv.PENSTOCK_REFUSED_BY, tier)

    def cancelled(self, receipt: Cancelled) -> None:
        self._root.set_attribute("penstock.kv_blocks_freed", receipt.kv_blocks_freed)
        if receipt.has_receipt:
            afterwards(partial(_cancel_acknowledged.record, receipt.waited))

    def end(self, flight: Flight, now: float) -> None:
        """Write the line at once, which is to outlive the process, and the rest later; the flight is over."""
        log.info("ticket_done", **self._line(flight, now))
        afterwards(partial(self._close, flight, now))

    def _close(self, flight: Flight, now: float) -> None:
        self._end_stage(now)  # with its request, however much later this is done
        self._root.set_attributes(_came_of_it(flight))
        if self._error:
            code = self._error.code.name
            self._root.set_attributes({semconv.ERROR_TYPE: code, semconv.PENSTOCK_REASON: self._error.reason})
            if code in FAULTS:
                self._root.set_status(Status(StatusCode.ERROR, self._error.reason))
        self._root.end(round(now * 1e9))
        self._measure(flight, now)

    def _end_stage(self, now: float) -> None:
        if self._stage:
            self._stage.end(round(now * 1e9))
            self._stage = None

    def _measure(self, flight: Flight, now: float) -> None:
        labels: dict[str, AttributeValue] = {
            semconv.GEN_AI_OPERATION_NAME: self._operation,
            semconv.GEN_AI_PROVIDER_NAME: PROVIDER,
            semconv.GEN_AI_REQUEST_MODEL: flight.model,
        }
        failed = {semconv.ERROR_TYPE: self._error.reason} if self._error else {}
        _request_duration.record(now - flight.arrived, {**labels, **failed})
        if self._error or math.isnan(flight.first_token_at):
            return
        _time_to_first_token.record(flight.first_token_at - flight.arrived, labels)
        if flight.output_tokens > 1:
            _time_per_output_token.record(_per_token(flight), labels)

    def _line(self, flight: Flight, now: float) -> dict[str, object]:
        return {
            "ticket_id": flight.ticket_id,
            "request_id": self._request_id,
            "trace_id": self.trace_id,
            "tenant": flight.identity.tenant_id,
            "key_id": flight.identity.key_id,
            "model": flight.model,
            "outcome": flight.outcome,
            "reason": self._error.reason if self._error else "",
            "prompt_tokens": flight.prompt_tokens,
            "output_tokens": flight.output_tokens,
            "cached_tokens": flight.cached_prompt_tokens,
            "attempts": flight.attempt,
            "worker_id": flight.worker_id,
            "queue_s": round(flight.timeline.seconds("queue", "wait"), 6),
            "ttft_s": _rounded(flight.first_token_at - flight.arrived),
            "tpot_s": _rounded(_per_token(flight)),
            "total_s": round(now - flight.arrived, 6),
            "left_at": _rounded(flight.left_at),
        }


def _per_token(flight: Flight) -> float:
    if flight.output_tokens < 2:
        return math.nan
    return (flight.last_token_at - flight.first_token_at) / (flight.output_tokens - 1)


def _rounded(seconds: float) -> float | None:
    return None if math.isnan(seconds) else round(seconds, 6)


def _asked(spec: RequestSpec, operation: str, ticket_id: str, request_id: str) -> dict[str, AttributeValue]:
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


def _came_of_it(flight: Flight) -> dict[str, AttributeValue]:
    return {
        semconv.GEN_AI_RESPONSE_MODEL: flight.model,
        semconv.GEN_AI_RESPONSE_FINISH_REASONS: [flight.outcome],
        semconv.GEN_AI_USAGE_INPUT_TOKENS: flight.prompt_tokens,
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: flight.output_tokens,
        semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: flight.cached_prompt_tokens,
        semconv.PENSTOCK_TENANT_ID: flight.identity.tenant_id,
        semconv.PENSTOCK_ATTEMPT: flight.attempt,
        semconv.PENSTOCK_WORKER_ID: flight.worker_id,
    }
