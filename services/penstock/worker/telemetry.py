"""Telemetry of runs: spans, metrics, and one wide log line per run."""

from collections.abc import Iterator
from functools import partial

import structlog
from opentelemetry.util.types import AttributeValue

from penstock.chassis.errors import PenstockError
from penstock.chassis.observability import semconv
from penstock.chassis.observability.deferred import defer
from penstock.chassis.observability.spans import SpanEvent, is_recorded, record_span
from penstock.chassis.observability.trace_context import TRACE_ID
from penstock.worker import metrics
from penstock.worker.engine.interface import SequenceFinished
from penstock.worker.runs.effects import RunEnded
from penstock.worker.runs.run import Run, RunTimes

log = structlog.get_logger()

NANOS_PER_S = 1_000_000_000


class RunTelemetry:
    """Records each run when it ends. Knows the model's name, but not the run table."""

    def __init__(self) -> None:
        self.model = ""

    def record(self, ended: RunEnded) -> None:
        """Write the log line at once, so that it outlives the process; defer metrics and spans."""
        run, times, reason = ended.run, ended.run.times(ended.at), _reason(ended)
        log.info(
            "run_ended",
            trace_id=run.traceparent[TRACE_ID],
            ticket_id=run.ticket_id,
            request_id=run.request_id,
            lease_id=run.lease_id,
            outcome=reason,
            prompt_tokens=len(run.spec.token_ids),
            cached_tokens=run.cached_tokens,
            output_tokens=run.tokens,
            wait_s=round(times.wait_s, 6),
            prefill_s=round(times.prefill_s, 6),
            decode_s=round(times.decode_s, 6),
            **_cancel_fields(ended),
        )
        defer(partial(self._record_metrics, ended, times, reason))
        if is_recorded(run.traceparent):
            defer(partial(self._record_spans, ended, reason))

    def _record_metrics(self, ended: RunEnded, times: RunTimes, reason: str) -> None:
        run = ended.run
        metrics.record_ended(self.model, run, times, reason)
        if run.stop_requested_at is not None:
            latency_s = _engine_cancel_latency_s(ended, run.stop_requested_at)
            metrics.record_cancelled(self.model, latency_s, run.wasted_tokens)

    def _record_spans(self, ended: RunEnded, reason: str) -> None:
        failed = isinstance(ended.outcome, PenstockError)
        for name, began_at, ended_at, attributes in _span_intervals(ended, self.model):
            record_span(
                name,
                ended.run.traceparent,
                round(began_at * NANOS_PER_S),
                round(ended_at * NANOS_PER_S),
                {**attributes, semconv.ERROR_TYPE: reason} if failed else attributes,
                error=reason if failed else "",
                events=_preemptions(ended.run, began_at, ended_at),
            )


def _preemptions(run: Run, began_at: float, ended_at: float) -> list[SpanEvent]:
    return [
        SpanEvent(semconv.EVENT_PREEMPTED, round(each * NANOS_PER_S))
        for each in run.preempted_at
        if began_at <= each <= ended_at
    ]


def _span_intervals(ended: RunEnded, model: str) -> Iterator[tuple[str, float, float, dict[str, AttributeValue]]]:
    """Yield name, begin, end (Unix s) and attributes of each span that the run reached.

    A run that was stopped ends with the last token that was wanted, as its client may have left before the next one.
    """
    run = ended.run
    if run.admitted_at is None:
        return
    common: dict[str, AttributeValue] = {
        semconv.GEN_AI_REQUEST_MODEL: model,
        semconv.PENSTOCK_TICKET_ID: run.ticket_id,
        semconv.PENSTOCK_LEASE_ID: run.lease_id,
        semconv.PENSTOCK_ATTEMPT: run.attempt,
    }
    prompt: dict[str, AttributeValue] = {
        semconv.GEN_AI_USAGE_INPUT_TOKENS: len(run.spec.token_ids),
        semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: run.cached_tokens,
    }
    stopped_at = run.stop_requested_at
    wanted_until = ended.at if stopped_at is None else stopped_at
    prefill_ended_at = min(run.first_token_at or wanted_until, wanted_until)
    yield semconv.SPAN_WORKER_PREFILL, run.admitted_at, prefill_ended_at, {**common, **prompt}
    decoded_until = run.last_token_at if stopped_at is None else run.last_wanted_at
    if run.first_token_at is not None and decoded_until is not None:
        decoded: dict[str, AttributeValue] = {semconv.GEN_AI_USAGE_OUTPUT_TOKENS: run.tokens}
        if isinstance(ended.outcome, SequenceFinished):
            decoded[semconv.GEN_AI_RESPONSE_FINISH_REASONS] = (str(ended.outcome.reason),)
        yield semconv.SPAN_WORKER_DECODE, run.first_token_at, decoded_until, {**common, **decoded}


def _cancel_fields(ended: RunEnded) -> dict[str, float]:
    """Log fields on how soon the engine released a run that was stopped; empty if the run ended by itself."""
    run = ended.run
    if run.stop_requested_at is None:
        return {}
    return {
        "stop_requested_at": round(run.stop_requested_at, 6),
        "engine_cancel_latency_s": round(_engine_cancel_latency_s(ended, run.stop_requested_at), 6),
        "engine_cancel_latency_steps": run.steps_after_stop,
        "wasted_tokens": run.wasted_tokens,
    }


def _engine_cancel_latency_s(ended: RunEnded, stop_requested_at: float) -> float:
    """Seconds until the engine began the first step without the run, which it reports when the step has ended."""
    released_at = ended.at if ended.run.released_at is None else ended.run.released_at
    return max(0.0, released_at - stop_requested_at)


def _reason(ended: RunEnded) -> str:
    if isinstance(ended.outcome, PenstockError):
        return ended.outcome.reason
    return str(ended.outcome.reason) if isinstance(ended.outcome, SequenceFinished) else "cancelled"
