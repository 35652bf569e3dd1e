"""The spans of a request by the sampling of its trace."""

from dataclasses import dataclass, field

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from penstock.edge.lifecycle import telemetry
from penstock.edge.lifecycle.effects import AcknowledgeCancel
from penstock.edge.lifecycle.telemetry import RequestTelemetry
from penstock.edge.request.spec import RequestSpec, TextInput


@dataclass
class SpanStarts:
    """Starts spans of a provider of its own and records their names."""

    provider: TracerProvider
    names: list[str] = field(default_factory=list)

    def start_span(self, name, traceparent="", *, start_time=None):
        self.names.append(name)
        return self.provider.get_tracer("test").start_span(name, start_time=start_time)


@pytest.mark.parametrize(
    ("sampler", "started"),
    [(ALWAYS_OFF, ["edge.generate"]), (ALWAYS_ON, ["edge.generate", "edge.tokenize", "edge.admission"])],
)
def test_a_request_of_an_unsampled_trace_has_an_id_and_no_stage_spans(monkeypatch, sampler, started):
    spans = SpanStarts(TracerProvider(sampler=sampler))
    monkeypatch.setattr(telemetry, "start_span", spans.start_span)
    request = RequestTelemetry(RequestSpec(request_id="r1", model="tiny", input=TextInput("hi")), "t1", "r1", "", 1.0)
    request.on_tokenized(2.0)
    request.on_admitted(3.0, by_fallback=True)
    request.set_rejected_by("edge")
    request.on_cancelled(AcknowledgeCancel(output_tokens=1, kv_blocks_freed=1, waited_s=0.0, is_acknowledged=False))
    assert spans.names == started
    assert int(request.trace_id, 16)
