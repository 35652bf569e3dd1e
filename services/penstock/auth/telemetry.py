"""The `auth.reserve` span, from the arrival of a reservation request until it is persisted or rejected."""

import time
from dataclasses import dataclass

from opentelemetry.util.types import AttributeValue

from penstock.chassis.observability import semconv
from penstock.chassis.observability.spans import is_recorded, record_span
from penstock.mesh.v1.admission_pb2 import Reserve


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
