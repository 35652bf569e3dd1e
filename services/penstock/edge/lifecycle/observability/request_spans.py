"""Spans of one request, recorded once it has ended, from its record and its timeline.

No span ends after its parent: each stage ends at the latest when the client had its answer or left.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from opentelemetry.util.types import AttributeValue

from penstock.chassis.errors import Overloaded, PenstockError
from penstock.chassis.observability import semconv
from penstock.chassis.observability.spans import (
    INTERNAL,
    NO_ATTRIBUTES,
    SERVER,
    SpanEvent,
    is_recorded,
    keeps_call,
    open_span,
    record_span,
)
from penstock.chassis.observability.trace_context import child_of
from penstock.edge.lifecycle.active_request import ActiveRequest
from penstock.edge.lifecycle.attempts import LostRun
from penstock.edge.request.spec import ChatInput, RequestSpec

# Codes of errors that this server caused, not the caller.
SERVER_FAULT_CODES = frozenset({"INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "UNKNOWN"})
SESSION_METHOD = "penstock.v1.Inference/Session"
NANOS_PER_S = 1e9
RUN_LOST = "RUN_LOST"

# Spans of the stages of a timeline. Other tiers record theirs themselves if the trace is sampled.
EDGE_STAGES: Mapping[tuple[str, str], str] = {
    ("edge", "tokenize"): semconv.SPAN_TOKENIZE,
    ("auth", "admission"): semconv.SPAN_ADMISSION,
}
OTHER_STAGES: Mapping[tuple[str, str], str] = {
    ("queue", "wait"): semconv.SPAN_QUEUE_WAIT,
    ("scheduler", "placement"): semconv.SPAN_PLACEMENT,
    ("network", "dispatch"): semconv.SPAN_DISPATCH,
    ("worker", "wait"): semconv.SPAN_WORKER_WAIT,
    ("worker", "prefill"): semconv.SPAN_WORKER_PREFILL,
    ("worker", "decode"): semconv.SPAN_WORKER_DECODE,
}
# The stage in which a request ended, by the number of stages in its timeline.
OPEN_STAGES = (("edge", "tokenize"), ("auth", "admission"), ("queue", "wait"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRequest:
    """A request whose spans are recorded. `own` and `parent` are traceparents."""

    request: ActiveRequest
    spec: RequestSpec
    operation: str
    own: str
    parent: str  # empty: it is the first span of its trace
    session_link: str | None  # traceparent of its session or empty; None: a call of its own
    answered_at: float  # Unix s
    error: PenstockError | None
    attributes: Mapping[str, AttributeValue]
    events: Sequence[SpanEvent]


def operation_of(spec: RequestSpec) -> str:
    """Return the operation of the GenAI conventions."""
    if spec.embeds:
        return "embeddings"
    return "chat" if isinstance(spec.input, ChatInput) else "text_completion"


def record_request_spans(ended: EndedRequest) -> None:
    """Record the request, its stages and, if a run was lost, its runs."""
    request, model = ended.request, ended.request.model or ended.spec.model
    is_of_session = ended.session_link is not None
    record_span(
        f"{ended.operation} {model}" if model else ended.operation,
        ended.parent,
        _nanos(request.arrived_at),
        _nanos(ended.answered_at),
        {**_request_attributes(ended), **_result_attributes(ended), **ended.attributes},
        own=ended.own,
        kind=SERVER if is_of_session else INTERNAL,
        error=_fault(ended.error),
        events=[*_first_token_events(request), *ended.events],
        links=[ended.session_link] if ended.session_link else (),
    )
    for name, began, finished in _stages(ended):
        record_span(name, ended.own, began, finished, NO_ATTRIBUTES)
    if request.lost_runs:
        _record_runs(ended)


def record_rejection(error: PenstockError, parent: str, session_link: str) -> None:
    """Record the span of a session's request that was rejected before it became an active request."""
    own, now_ns = open_span(parent), time.time_ns()
    if keeps_call(own, failed=True):
        attributes: dict[str, AttributeValue] = {
            semconv.RPC_SYSTEM_NAME: "grpc",
            semconv.RPC_METHOD: SESSION_METHOD,
            semconv.ERROR_TYPE: error.code.name,
            semconv.PENSTOCK_REASON: error.reason,
        }
        record_span(
            SESSION_METHOD,
            parent,
            now_ns,
            now_ns,
            attributes,
            own=own,
            kind=SERVER,
            error=_fault(error),
            links=[session_link] if session_link else (),
        )


def _fault(error: PenstockError | None) -> str:
    """Return the description of the status ERROR; empty if the caller caused the error. Samplers see shed load."""
    is_fault = error and (error.code.name in SERVER_FAULT_CODES or isinstance(error, Overloaded))
    return error.reason if error and is_fault else ""


def _first_token_events(request: ActiveRequest) -> list[SpanEvent]:
    if math.isnan(request.first_token_at):
        return []
    return [SpanEvent(semconv.EVENT_FIRST_TOKEN, _nanos(request.first_token_at))]


def _stages(ended: EndedRequest) -> Iterator[tuple[str, int, int]]:
    """Yield name, begin and end in Unix ns of the edge's stages, and of all if no other tier records the trace."""
    names = EDGE_STAGES if is_recorded(ended.own) else {**EDGE_STAGES, **OTHER_STAGES}
    last = _nanos(ended.answered_at)
    stages = list(ended.request.timeline.intervals())
    if len(stages) < len(OPEN_STAGES):
        stages.append((*OPEN_STAGES[len(stages)], stages[-1][3] if stages else _nanos(ended.request.arrived_at), last))
    for tier, stage, began, finished in stages:
        if (name := names.get((tier, stage))) and began < last:
            yield name, began, min(finished, last)


def _record_runs(ended: EndedRequest) -> None:
    """Record each run: a lost one as an error, linked to the run that continued it."""
    runs = [*ended.request.lost_runs]
    latest = ended.request.latest_attempt
    if latest and latest.lease.attempt > runs[-1].attempt:
        lease, generated = latest.lease, ended.request.output_tokens - latest.emitted_before
        runs.append(
            LostRun(lease.attempt, lease.worker_id, lease.lease_id, latest.leased_at, ended.answered_at, generated)
        )
    owns = [child_of(ended.own, ended.own[-2:]) for _ in runs]
    neighbours: dict[str, list[str]] = {own: [] for own in owns}
    for former, later in pairwise(owns):
        neighbours[former].append(later)
        neighbours[later].append(former)
    for number, (run, own) in enumerate(zip(runs, owns, strict=True)):
        is_lost = number < len(ended.request.lost_runs)
        attributes: dict[str, AttributeValue] = {
            semconv.PENSTOCK_ATTEMPT: run.attempt,
            semconv.PENSTOCK_WORKER_ID: run.worker_id,
            semconv.PENSTOCK_LEASE_ID: run.lease_id,
            semconv.GEN_AI_USAGE_OUTPUT_TOKENS: run.output_tokens,
            **({semconv.ERROR_TYPE: RUN_LOST} if is_lost else {}),
        }
        record_span(
            semconv.SPAN_RUN,
            ended.own,
            _nanos(run.leased_at),
            min(_nanos(run.lost_at), _nanos(ended.answered_at)),
            attributes,
            own=own,
            error=RUN_LOST if is_lost else "",
            links=neighbours[own],
        )


def _request_attributes(ended: EndedRequest) -> dict[str, AttributeValue]:
    spec = ended.spec
    asked: dict[str, AttributeValue] = {
        semconv.GEN_AI_OPERATION_NAME: ended.operation,
        semconv.GEN_AI_PROVIDER_NAME: semconv.PROVIDER,
        semconv.GEN_AI_REQUEST_TEMPERATURE: spec.temperature,
        semconv.GEN_AI_REQUEST_TOP_P: spec.top_p,
        semconv.PENSTOCK_TICKET_ID: ended.request.ticket_id,
    }
    if spec.model:
        asked[semconv.GEN_AI_REQUEST_MODEL] = spec.model
    if spec.max_output_tokens is not None:
        asked[semconv.GEN_AI_REQUEST_MAX_TOKENS] = spec.max_output_tokens
    if spec.top_k:
        asked[semconv.GEN_AI_REQUEST_TOP_K] = spec.top_k
    if spec.seed is not None and spec.seed < 2**63:  # OTLP has signed integers
        asked[semconv.GEN_AI_REQUEST_SEED] = spec.seed
    if spec.n > 1:
        asked[semconv.GEN_AI_REQUEST_CHOICE_COUNT] = spec.n
    if ended.session_link is not None:
        asked[semconv.RPC_SYSTEM_NAME], asked[semconv.RPC_METHOD] = "grpc", SESSION_METHOD
    return asked


def _result_attributes(ended: EndedRequest) -> dict[str, AttributeValue]:
    request = ended.request
    result: dict[str, AttributeValue] = {
        semconv.GEN_AI_RESPONSE_ID: ended.spec.answer_id or request.ticket_id,
        semconv.GEN_AI_USAGE_INPUT_TOKENS: request.prompt_tokens,
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: request.output_tokens,
        semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: request.cached_prompt_tokens,
        semconv.PENSTOCK_OUTCOME: request.outcome,
        semconv.PENSTOCK_TENANT_ID: request.identity.tenant_id,
        semconv.PENSTOCK_ATTEMPT: request.attempt,
        semconv.PENSTOCK_WORKER_ID: request.worker_id,
    }
    if request.model:
        result[semconv.GEN_AI_RESPONSE_MODEL] = request.model
    if request.outcome in semconv.FINISH_REASONS:
        result[semconv.GEN_AI_RESPONSE_FINISH_REASONS] = [request.outcome]
    if not math.isnan(request.first_token_at):
        waited = request.first_token_at - request.arrived_at
        result[semconv.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK] = waited
    if ended.error:
        result[semconv.ERROR_TYPE] = ended.error.code.name
        result[semconv.PENSTOCK_REASON] = ended.error.reason
    return result


def _nanos(seconds: float) -> int:
    return round(seconds * NANOS_PER_S)
