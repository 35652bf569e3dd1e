"""The `auth.reserve` span, from the arrival of a reservation request until it is persisted or rejected; and metrics."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from opentelemetry.util.types import AttributeValue

from penstock.chassis.observability import semconv
from penstock.chassis.observability.spans import is_recorded, record_span
from penstock.chassis.observability.telemetry import meter
from penstock.mesh.v1.admission_pb2 import Reserve

_disk_used = meter().create_gauge(
    semconv.PENSTOCK_AUTH_DISK_USED, unit="1", description="Used share of the volume that holds the store."
)


_shadow_refusals = meter().create_counter(
    semconv.PENSTOCK_AUTH_SHADOW_REFUSALS,
    unit="{limit}",
    description="Limits in shadow mode that admitted requests have exceeded, by limit.",
)
_budget_warnings = meter().create_counter(
    semconv.PENSTOCK_AUTH_BUDGET_WARNINGS,
    unit="{request}",
    description="Requests admitted beyond the soft share of a budget.",
)
_stored_responses = meter().create_gauge(
    semconv.PENSTOCK_AUTH_STORED_RESPONSES, unit="{response}", description="Stored responses of all tenants."
)
_stored_response_bytes = meter().create_gauge(
    semconv.PENSTOCK_AUTH_STORED_RESPONSE_BYTES, unit="By", description="Bytes of the stored responses of all tenants."
)
_response_call_failures = meter().create_counter(
    semconv.PENSTOCK_AUTH_RESPONSE_CALL_FAILURES,
    unit="{call}",
    description="Calls on stored responses that failed because the store was unavailable.",
)


def record_shadow_refusals(limits: Iterable[str]) -> None:
    """Count limits that are named by subject and name; only the names become attributes."""
    for each in limits:
        _shadow_refusals.add(1, {semconv.PENSTOCK_LIMIT: each.rpartition(" ")[2]})


def record_budget_warning() -> None:
    _budget_warnings.add(1)


def record_disk_used(share: float) -> None:
    _disk_used.set(share)


def record_responses(count: int, size: int) -> None:
    _stored_responses.set(count)
    _stored_response_bytes.set(size)


def record_response_call_failures(count: int) -> None:
    _response_call_failures.add(count)


@dataclass(frozen=True, slots=True)
class ReserveSpan:
    """Span of one reservation request, recorded when it ends."""

    frame: Reserve
    began_ns: int  # Unix; 0 if the trace of the caller is not recorded

    @classmethod
    def start(cls, frame: Reserve) -> "ReserveSpan":
        return cls(frame, time.time_ns() if is_recorded(frame.traceparent) else 0)

    def end(self, *, tenant_id: str = "", key_id: str = "", reason: str = "") -> None:
        if not self.began_ns:
            return
        frame = self.frame
        names = {
            semconv.PENSTOCK_TENANT_ID: tenant_id,
            semconv.PENSTOCK_KEY_ID: key_id,
            semconv.PENSTOCK_REASON: reason,
        }
        attributes: dict[str, AttributeValue] = {
            semconv.PENSTOCK_REQUEST_ID: frame.request_id,
            semconv.GEN_AI_REQUEST_MODEL: frame.model,
            semconv.GEN_AI_REQUEST_MAX_TOKENS: frame.max_output_tokens,
            semconv.GEN_AI_USAGE_INPUT_TOKENS: frame.prompt_tokens,
            **{name: value for name, value in names.items() if value},
        }
        record_span(semconv.SPAN_AUTH_RESERVE, frame.traceparent, self.began_ns, time.time_ns(), attributes)
