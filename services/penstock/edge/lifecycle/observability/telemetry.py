"""Telemetry of one request: its spans, its metrics and its log line."""

import math
from functools import partial

import structlog
from opentelemetry.util.types import AttributeValue

from penstock.chassis.errors import PenstockError
from penstock.chassis.observability import semconv
from penstock.chassis.observability.deferred import defer
from penstock.chassis.observability.metrics import exemplar_in
from penstock.chassis.observability.spans import SpanEvent, keeps_request, open_span
from penstock.chassis.observability.trace_context import TRACE_ID
from penstock.edge.explain.history import RequestHistory
from penstock.edge.explain.record import record_of
from penstock.edge.lifecycle.active_request import ActiveRequest
from penstock.edge.lifecycle.effects import AcknowledgeCancel
from penstock.edge.lifecycle.observability.request_metrics import (
    record_answer_resumed,
    record_cancel_acknowledged,
    record_ended,
    time_per_token,
)
from penstock.edge.lifecycle.observability.request_spans import EndedRequest, operation_of, record_request_spans
from penstock.edge.request.front_times import NO_TIMES, FrontTimes
from penstock.edge.request.spec import RequestSpec
from penstock.mesh.v1.queue_pb2 import Queued

log = structlog.get_logger()


class RequestTelemetry:
    """Records one request. Its spans continue the trace of its client; other tiers continue `traceparent`."""

    __slots__ = (
        "_cancelled",
        "_cancelled_at",
        "_error",
        "_failed_at",
        "_front",
        "_history",
        "_is_by_fallback",
        "_is_received",
        "_operation",
        "_parent",
        "_queued",
        "_rejected_by",
        "_request_id",
        "_session_link",
        "_spec",
        "traceparent",
    )

    def __init__(
        self,
        spec: RequestSpec,
        request_id: str,
        parent: str,
        *,
        history: RequestHistory,
        front: FrontTimes = NO_TIMES,
        session_link: str | None = None,
    ) -> None:
        """`parent` is a traceparent, valid or empty. `history` receives the record of the request.

        session_link: traceparent of the request's session, if that is another trace; may be empty. None: the request
        is a call of its own, which has a span of its own.
        """
        self._spec = spec
        self._operation = operation_of(spec)
        self._request_id = request_id
        self._parent, self._session_link = parent, session_link
        self._history, self._front = history, front
        self._queued: Queued | None = None
        self._error: PenstockError | None = None
        self._failed_at = math.nan
        self._rejected_by = ""  # tier
        self._is_by_fallback = False
        self._cancelled: AcknowledgeCancel | None = None
        self._is_received = False
        self._cancelled_at = math.nan  # when its cancel was acknowledged
        self.traceparent = open_span(parent)

    @property
    def trace_id(self) -> str:
        return self.traceparent[TRACE_ID]

    def on_admitted_by_fallback(self) -> None:
        self._is_by_fallback = True

    def on_failed(self, error: PenstockError, now: float) -> None:
        self._error, self._failed_at = error, now

    def on_queued(self, queued: Queued) -> None:
        self._queued = queued

    def set_rejected_by(self, tier: str) -> None:
        self._rejected_by = tier

    def on_cancelled(self, acknowledgement: AcknowledgeCancel, now: float, *, is_received: bool) -> None:
        """`is_received`: the client waits for the acknowledgement."""
        self._cancelled, self._cancelled_at, self._is_received = acknowledgement, now, is_received
        if acknowledgement.is_acknowledged:
            defer(partial(record_cancel_acknowledged, acknowledgement.waited_s))

    def end(self, request: ActiveRequest, now: float) -> None:
        """Write the log line at once, so that a crash cannot lose it, and defer spans and metrics."""
        log.info("ticket_done", **self._log_fields(request, now))
        defer(partial(self._record, request, now))

    def _record(self, request: ActiveRequest, now: float) -> None:
        reason = self._error.reason if self._error else ""
        record_ended(request, self._operation, reason, now, exemplar_in(self.traceparent))
        if self._spec.resume_ids:
            record_answer_resumed(request.model)
        answered_at = self._answered_at(request, now)
        took_s = answered_at - request.arrived_at
        self._remember(request, answered_at, took_s)
        if keeps_request(self.traceparent, took_s, now, failed=self._error is not None):
            self._record_spans(request, answered_at)

    def _remember(self, request: ActiveRequest, answered_at: float, took_s: float) -> None:
        record = record_of(
            request,
            request_id=self._request_id,
            answer_id=self._spec.answer_id or request.ticket_id,
            trace_id=self.trace_id,
            requested_model=self._spec.model,
            front=self._front,
            queued=self._queued,
            error=self._error,
            rejected_by=self._rejected_by,
            answered_at=answered_at,
        )
        self._history.add(record, took_s, failed=self._error is not None)

    def _record_spans(self, request: ActiveRequest, answered_at: float) -> None:
        attributes: dict[str, AttributeValue] = {semconv.PENSTOCK_REQUEST_ID: self._request_id}
        if self._rejected_by:
            attributes[semconv.PENSTOCK_REJECTED_BY] = self._rejected_by
        if self._is_by_fallback:
            attributes[semconv.PENSTOCK_AUTH_FALLBACK] = True
        record_request_spans(
            EndedRequest(
                request=request,
                spec=self._spec,
                operation=self._operation,
                own=self.traceparent,
                parent=self._parent,
                session_link=self._session_link,
                answered_at=answered_at,
                error=self._error,
                attributes=attributes,
                events=self._cancel_events(),
            )
        )

    def _answered_at(self, request: ActiveRequest, now: float) -> float:
        """Return the time at which the client had its answer, or left. The request may have ended later."""
        if self._error:
            return self._failed_at
        is_left = self._cancelled is not None and not self._is_received
        return request.cancelled_at if is_left else now

    def _cancel_events(self) -> list[SpanEvent]:
        if self._cancelled is None:
            return []
        freed = {semconv.PENSTOCK_KV_BLOCKS_FREED: self._cancelled.kv_blocks_freed}
        return [SpanEvent(semconv.EVENT_CANCEL_ACKNOWLEDGED, round(self._cancelled_at * 1e9), freed)]

    def _log_fields(self, request: ActiveRequest, now: float) -> dict[str, object]:
        is_routed = request.model and self._spec.model not in ("", request.model)
        return {
            **({"requested_model": self._spec.model} if is_routed else {}),
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
            "tpot_s": _rounded(time_per_token(request)),
            "total_s": round(now - request.arrived_at, 6),
            "cancelled_at": _rounded(request.cancelled_at),
        }


def _rounded(seconds: float) -> float | None:
    return None if math.isnan(seconds) else round(seconds, 6)
