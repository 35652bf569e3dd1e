"""What is told of runs and steps to people: spans, metrics, and one wide log line for each run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import structlog
from opentelemetry.metrics import CallbackOptions, Histogram, Observation
from opentelemetry.trace import StatusCode
from opentelemetry.util.types import AttributeValue

from penstock.chassis import semconv
from penstock.chassis.afterwards import afterwards
from penstock.chassis.errors import PenstockError
from penstock.chassis.telemetry import is_recorded, meter, start_span, trace_id_of
from penstock.worker.effects import Ended
from penstock.worker.engine.interface import Finished
from penstock.worker.run import Times

log = structlog.get_logger()

NANO = 1_000_000_000


class RunAccounts:
    """Knows the model's name and nothing of how runs come about."""

    def __init__(self, kv_figures: Callable[[], Mapping[str, float]]) -> None:
        """`kv_figures` has kv_blocks and kv_blocks_used, asked for whenever metrics are read."""
        self.model = ""
        self._duration = _histogram(semconv.GEN_AI_SERVER_REQUEST_DURATION, semconv.REQUEST_DURATION_BUCKETS)
        self._first = _histogram(semconv.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN, semconv.TIME_TO_FIRST_TOKEN_BUCKETS)
        self._per_token = _histogram(semconv.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN, semconv.TIME_PER_OUTPUT_TOKEN_BUCKETS)
        self._let_go = _histogram(semconv.PENSTOCK_CANCEL_LET_GO, semconv.TIME_TO_FIRST_TOKEN_BUCKETS)
        self._wasted = meter().create_counter(semconv.PENSTOCK_CANCEL_WASTED, unit="{token}")

        self._gauge(semconv.PENSTOCK_KV_BLOCKS_USED, lambda: kv_figures()["kv_blocks_used"])
        self._gauge(semconv.PENSTOCK_KV_BLOCKS_TOTAL, lambda: kv_figures()["kv_blocks"])

    def note(self, ended: Ended) -> None:
        """Write the line at once, which is to outlive the process, and the rest later."""
        run, times, reason = ended.run, ended.run.times(ended.at), _reason(ended)
        log.info(
            "run_ended",
            trace_id=trace_id_of(run.traceparent),
            ticket_id=run.ticket_id,
            lease_id=run.lease_id,
            outcome=reason,
            prompt_tokens=len(run.spec.token_ids),
            cached_tokens=run.cached_tokens,
            output_tokens=run.tokens,
            wait_s=round(times.wait, 6),
            prefill_s=round(times.prefill, 6),
            decode_s=round(times.decode, 6),
            **_letting_go(ended),
        )
        afterwards(partial(self._measure, ended, times, reason))
        if is_recorded(run.traceparent):
            afterwards(partial(self._trace, ended, reason))

    def _gauge(self, name: str, read: Callable[[], float]) -> None:
        def observe(_: CallbackOptions) -> list[Observation]:
            return [Observation(read(), {semconv.GEN_AI_REQUEST_MODEL: self.model})]

        meter().create_observable_gauge(name, [observe], unit="{block}")

    def _measure(self, ended: Ended, times: Times, reason: str) -> None:
        names = {semconv.GEN_AI_REQUEST_MODEL: self.model}
        failed = {semconv.ERROR_TYPE: reason} if isinstance(ended.outcome, PenstockError) else {}
        self._duration.record(sum(times), {**names, **failed})
        if ended.run.tokens:
            self._first.record(times.wait + times.prefill, names)
        if ended.run.tokens > 1:
            self._per_token.record(times.decode / (ended.run.tokens - 1), names)
        if ended.run.asked_at is not None:
            self._let_go.record(_let_go_after(ended, ended.run.asked_at), names)
            self._wasted.add(ended.run.wasted, names)

    def _trace(self, ended: Ended, reason: str) -> None:
        for name, begun, over, attributes in _stretches(ended, self.model):
            span = start_span(name, ended.run.traceparent, attributes=attributes, start_time=round(begun * NANO))
            if isinstance(ended.outcome, PenstockError):
                span.set_attribute(semconv.ERROR_TYPE, reason)
                span.set_status(StatusCode.ERROR, ended.outcome.message)
            span.end(round(over * NANO))


def _stretches(ended: Ended, model: str) -> Iterator[tuple[str, float, float, dict[str, AttributeValue]]]:
    """Name, begin, end (Unix s) and attributes of the spans of a run, as far as it came."""
    run = ended.run
    if run.admitted_at is None:
        return
    common: dict[str, AttributeValue] = {
        semconv.GEN_AI_REQUEST_MODEL: model,
        semconv.PENSTOCK_TICKET_ID: run.ticket_id,
        semconv.PENSTOCK_LEASE_ID: run.lease_id,
    }
    prompt: dict[str, AttributeValue] = {
        semconv.GEN_AI_USAGE_INPUT_TOKENS: len(run.spec.token_ids),
        semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: run.cached_tokens,
    }
    over = ended.at if run.first_token_at is None else run.first_token_at
    yield semconv.SPAN_WORKER_PREFILL, run.admitted_at, over, {**common, **prompt}
    if run.first_token_at is not None:
        decoded: dict[str, AttributeValue] = {
            semconv.GEN_AI_USAGE_OUTPUT_TOKENS: run.tokens,
            semconv.GEN_AI_RESPONSE_FINISH_REASONS: (_reason(ended),),
        }
        yield semconv.SPAN_WORKER_DECODE, run.first_token_at, run.last_token_at or over, {**common, **decoded}


def _letting_go(ended: Ended) -> dict[str, float]:
    """How soon the engine let go of a run that was to end; empty for one that ended by itself."""
    run = ended.run
    if run.asked_at is None:
        return {}
    return {
        "asked_at": round(run.asked_at, 6),
        "let_go_s": round(_let_go_after(ended, run.asked_at), 6),
        "let_go_steps": run.steps_since_asked,
        "wasted_tokens": run.wasted,
    }


def _let_go_after(ended: Ended, asked_at: float) -> float:
    """Seconds, to where the engine began the step without it; a step's news come when it ends."""
    let_go_at = ended.at if ended.run.let_go_at is None else ended.run.let_go_at
    return max(0.0, let_go_at - asked_at)


def _reason(ended: Ended) -> str:
    if isinstance(ended.outcome, PenstockError):
        return ended.outcome.reason
    return str(ended.outcome.reason) if isinstance(ended.outcome, Finished) else "cancelled"


def _histogram(name: str, buckets: Sequence[float]) -> Histogram:
    return meter().create_histogram(name, unit="s", explicit_bucket_boundaries_advisory=buckets)
