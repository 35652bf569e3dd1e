"""Spans of this process: recorded when they have ended, and exported in batches by a thread of their own.

A span that is open is a traceparent and no object, so an unsampled request costs the text that other tiers receive
anyway. `record_span` is called once its end is known. The SDK's spans would cost eight times as much: 50 us each, to
create and to encode.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage
from opentelemetry.proto.trace.v1 import trace_pb2 as pb
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.util.types import AttributeValue

from penstock.chassis.observability.sampling import HeadSampler, TailSampler
from penstock.chassis.observability.semconv import SCHEMA_URL
from penstock.chassis.observability.trace_context import (
    NOT_SAMPLED,
    SPAN_ID,
    TRACE_ID,
    child_of,
    is_sampled,
    traceparent_or_empty,
)

INSTRUMENTATION_SCOPE: Final = "penstock"
INTERNAL, SERVER = pb.Span.SPAN_KIND_INTERNAL, pb.Span.SPAN_KIND_SERVER
Attributes = Mapping[str, AttributeValue]
NO_ATTRIBUTES: Attributes = MappingProxyType({})


class SpanEvent(NamedTuple):
    name: str
    at_ns: int  # Unix
    attributes: Attributes = NO_ATTRIBUTES


@dataclass(slots=True)  # not frozen, as making a frozen one takes three times as long
class EndedSpan:
    """One span. Times are Unix ns; `own` and `parent` are traceparents."""

    # Read by the SDK's batch processor, which exports sampled spans alone.
    context: ClassVar[SpanContext] = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    name: str
    own: str
    parent: str  # empty: the first span of its trace
    began_ns: int
    ended_ns: int
    attributes: Attributes
    kind: "pb.Span.SpanKind.ValueType" = INTERNAL
    error: str = ""  # description of the status ERROR; empty: the status is unset
    events: Sequence[SpanEvent] = ()
    links: Sequence[str] = ()  # traceparents


class SpanRecorder:
    """Records the spans of one process."""

    def __init__(self, processor: BatchSpanProcessor, head: HeadSampler) -> None:
        self.processor = processor
        self.head = head
        self.tail = TailSampler()

    def shutdown(self) -> None:
        """Export the spans that are left."""
        self.processor.shutdown()  # type: ignore[no-untyped-call]


_recorder: SpanRecorder | None = None  # None without an exporter


def install_recorder(recorder: SpanRecorder | None) -> None:
    """Have the spans of this process recorded by `recorder`; None: they are not recorded."""
    global _recorder  # noqa: PLW0603  # like the SDK's providers, one for each process
    _recorder = recorder


def open_span(parent: str) -> str:
    """Return the traceparent of a new span below a valid `parent`, or of a new trace if that is empty.

    Its flags tell other tiers whether to record the trace. Without an exporter here they do not.
    """
    if _recorder is None:
        return child_of(parent, NOT_SAMPLED)
    traceparent = child_of(parent, NOT_SAMPLED)
    return traceparent[:-2] + _recorder.head.flags(parent, traceparent[TRACE_ID])


def is_recorded(traceparent: str) -> bool:
    """Whether spans of a trace are recorded here; False if its root is not sampled or `traceparent` is malformed."""
    return _recorder is not None and is_sampled(traceparent) and bool(traceparent_or_empty(traceparent))


def keeps_request(traceparent: str, duration_s: float, now: float, *, failed: bool) -> bool:
    """Whether the spans of a request that has ended are recorded, although its trace may not be sampled."""
    if _recorder is None:
        return False
    is_kept = _recorder.tail.keeps_request(traceparent, duration_s, now, failed=failed)
    return is_kept or is_sampled(traceparent)


def keeps_call(traceparent: str, *, failed: bool) -> bool:
    """Whether the span of a call that has ended is recorded: with the spans of its request, or as an error."""
    if _recorder is None:
        return False
    return is_sampled(traceparent) or _recorder.tail.keeps_call(traceparent, time.time(), failed=failed)


def record_span(
    name: str,
    parent: str,
    began_ns: int,
    ended_ns: int,
    attributes: Attributes,
    *,
    own: str = "",  # as `open_span` returned it; empty: a span without children
    kind: "pb.Span.SpanKind.ValueType" = INTERNAL,
    error: str = "",
    events: Sequence[SpanEvent] = (),
    links: Sequence[str] = (),
) -> None:
    """Record a span that has ended, for the caller of which `is_recorded` or `keeps_request` is True."""
    if _recorder is not None:
        ended_ns = max(began_ns, ended_ns)
        own = own or child_of(parent, parent[-2:])
        span = EndedSpan(name, own, parent, began_ns, ended_ns, attributes, kind, error, events, links)
        _recorder.processor.on_end(span)  # type: ignore[arg-type]  # it reads `context` alone


class SpanExporter(OTLPSpanExporter):
    """Exports `EndedSpan` over OTLP/gRPC. Settings are the SDK's `OTEL_EXPORTER_OTLP_*`."""

    def __init__(self, endpoint: str, resource: Resource, timeout_s: float) -> None:
        super().__init__(endpoint=endpoint, insecure=not endpoint.startswith("https"), timeout=timeout_s)
        message = ResourceMessage()
        _add_attributes(message.attributes, resource.attributes)
        self._envelope = pb.ResourceSpans(
            resource=message,
            scope_spans=[pb.ScopeSpans(scope=InstrumentationScope(name=INSTRUMENTATION_SCOPE), schema_url=SCHEMA_URL)],
        )

    def _translate_data(self, data: Sequence[Any]) -> ExportTraceServiceRequest:
        request = ExportTraceServiceRequest(resource_spans=[self._envelope])
        messages = request.resource_spans[0].scope_spans[0].spans
        for span in data:
            _add_span(messages, span)
        return request


def open_recorder(resource: Resource, endpoint: str, timeout_s: float) -> SpanRecorder:
    """Return a recorder that exports to `endpoint`. Raises SamplerInvalid."""
    head = HeadSampler.from_environment(os.environ)
    return SpanRecorder(BatchSpanProcessor(SpanExporter(endpoint, resource, timeout_s)), head)


def _add_span(messages: Any, span: EndedSpan) -> None:
    """Add the OTLP message of a span, in place: a message that is made apart would be copied."""
    message = messages.add(
        trace_id=bytes.fromhex(span.own[TRACE_ID]),
        span_id=bytes.fromhex(span.own[SPAN_ID]),
        parent_span_id=bytes.fromhex(span.parent[SPAN_ID]),
        name=span.name,
        kind=span.kind,
        start_time_unix_nano=span.began_ns,
        end_time_unix_nano=span.ended_ns,
    )
    _add_attributes(message.attributes, span.attributes)
    if span.error:
        message.status.code, message.status.message = pb.Status.STATUS_CODE_ERROR, span.error
    for event in span.events:
        _add_attributes(message.events.add(name=event.name, time_unix_nano=event.at_ns).attributes, event.attributes)
    for link in span.links:
        message.links.add(trace_id=bytes.fromhex(link[TRACE_ID]), span_id=bytes.fromhex(link[SPAN_ID]))


def _add_attributes(pairs: Any, attributes: Attributes) -> None:
    for name, value in attributes.items():
        _set_value(pairs.add(key=name).value, value)


def _set_value(target: AnyValue, value: Any) -> None:
    if isinstance(value, str):
        target.string_value = value
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int):
        target.int_value = value
    elif isinstance(value, float):
        target.double_value = value
    else:
        items = ArrayValue()
        for each in value:
            _set_value(items.values.add(), each)
        target.array_value.CopyFrom(items)
