"""Spans and metrics as received by a collector, and logs as written to stderr."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import threading
from textwrap import dedent

import pytest

from otlp_receiver import attributes_of
from penstock.chassis.observability import semconv, series
from penstock.chassis.observability.metrics import (
    REGISTRY,
    Observation,
    counter,
    exemplar_in,
    histogram,
    observing,
)
from penstock.chassis.observability.spans import SERVER, SpanEvent, is_recorded, open_span, record_span
from penstock.chassis.observability.trace_context import trace_id_of, traceparent_or_empty

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


def run_python(script, **environ):
    """Run `script` in a process of its own and return it, ended."""

    source = dedent(script)
    return subprocess.run(
        [sys.executable, "-c", source], env=os.environ | environ, capture_output=True, text=True, timeout=60, check=True
    )


def record(name, parent="", *, span=("", 1_000, 2_000), **options):
    """Record a span of the given name and (own traceparent, begin, end in ns)."""
    own, began, ended = span
    record_span(name, parent, began, ended, options.pop("attributes", {}), own=own, **options)


def test_a_span_is_the_child_of_the_traceparent_it_was_given(receiver):
    parent = TRACEPARENT.replace(TRACE_ID, "1" * 32)
    outer = open_span(parent)
    record("outer", parent, span=(outer, 1, 9), attributes={semconv.PENSTOCK_ATTEMPT: 2}, kind=SERVER)
    record("inner", outer)
    spans = {each.name: each for each in receiver.wait_for_spans("outer", "inner", trace_id="1" * 32)}
    assert spans["outer"].parent_id == "b7ad6b7169203331"
    assert spans["inner"].parent_id == spans["outer"].span_id == outer[36:52]
    assert spans["outer"].attributes == {"penstock.attempt": 2}
    assert (spans["outer"].kind, spans["inner"].kind) == ("SERVER", "INTERNAL")
    assert (spans["outer"].start_unix_nano, spans["outer"].end_unix_nano) == (1, 9)


def test_a_span_has_status_attributes_events_and_links(receiver):
    parent, other = TRACEPARENT.replace(TRACE_ID, "2" * 32), TRACEPARENT.replace(TRACE_ID, "3" * 32)
    attributes = {"text": "a", "flag": True, "count": -2, "share": 0.5, "many": ("x", "y")}
    event = SpanEvent("first_token", 1_500, {"index": 0})
    record("run", parent, attributes=attributes, error="RUN_LOST", events=[event], links=[other])
    [span] = receiver.wait_for_spans("run", trace_id="2" * 32)
    assert span.attributes == {**attributes, "many": ["x", "y"]}
    assert (span.status, span.status_message) == ("ERROR", "RUN_LOST")
    assert span.events == (("first_token", 1_500, {"index": 0}),)
    assert span.links == (("3" * 32, "b7ad6b7169203331"),)


def test_a_span_never_ends_before_it_begins(receiver):
    record("backwards", TRACEPARENT.replace(TRACE_ID, "4" * 32), span=("", 2_000, 1_000))
    [span] = receiver.wait_for_spans("backwards", trace_id="4" * 32)
    assert span.start_unix_nano == span.end_unix_nano == 2_000


def test_a_span_names_its_tier_and_process_and_the_conventions(receiver):
    record("request", TRACEPARENT.replace(TRACE_ID, "5" * 32))
    [span] = receiver.wait_for_spans("request", trace_id="5" * 32)
    assert span.service == "penstock-test"
    assert span.resource["service.namespace"] == "penstock"
    assert span.resource["service.instance.id"] == "test-1"
    assert span.resource["service.version"]
    assert span.schema_url.startswith("https://opentelemetry.io/schemas/")


@pytest.mark.parametrize("malformed", ["nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", TRACEPARENT + "-more"])
def test_a_malformed_traceparent_is_not_recorded_and_begins_no_trace(receiver, malformed):
    assert traceparent_or_empty(malformed) == trace_id_of(malformed) == ""
    assert not is_recorded(malformed)


def test_a_span_without_a_parent_is_the_root_of_a_new_trace(receiver):
    own = open_span("")
    record("root", span=(own, 1, 2))
    [received] = receiver.wait_for_spans("root", trace_id=trace_id_of(own))
    assert received.parent_id == ""
    assert is_recorded(own)


def test_the_trace_id_of_a_traceparent():
    assert trace_id_of(TRACEPARENT) == TRACE_ID
    zeros, ids = f"00-{'0' * 32}-{'b' * 16}-01", f"{'a' * 32}-{'0' * 16}-01"
    assert [trace_id_of(each) for each in ("", "00-xyz", zeros, f"00-{ids}", TRACEPARENT + "-more")] == [""] * 5
    assert trace_id_of(TRACEPARENT.replace("00-", "ff-", 1)) == ""
    later = TRACEPARENT.replace("00-", "01-", 1)
    assert traceparent_or_empty(later + "-more") == later, "a later version may say more"


def test_a_counter_made_before_telemetry_is_configured_counts(receiver):
    counter(series.counter("penstock.test.count", "{event}", "Events of a test.", "kind")).labels("a").inc(2)
    metric = receiver.wait_for_metric("penstock.test.count")
    assert [point.as_int for point in metric.sum.data_points] == [2]
    assert metric.sum.is_monotonic
    assert (metric.unit, metric.description) == ("{event}", "Events of a test.")
    assert [attributes_of(point.attributes) for point in metric.sum.data_points] == [{"kind": "a"}]


def test_a_histogram_is_exported_with_its_bounds_and_with_exemplars_of_sampled_traces(receiver):
    waits = histogram(series.histogram("penstock.test.wait", "Waits of a test.", buckets=(1.0, 2.0)))
    waits.observe(0.5, exemplar_in(TRACEPARENT))
    waits.observe(1.5, exemplar_in(TRACEPARENT[:-2] + "00"))
    waits.observe(9.0)
    [point] = receiver.wait_for_metric("penstock.test.wait").histogram.data_points
    assert (list(point.explicit_bounds), list(point.bucket_counts)) == ([1.0, 2.0], [1, 1, 1])
    assert (point.count, point.sum) == (3, 11.0)
    assert [each.trace_id.hex() for each in point.exemplars] == [TRACE_ID]
    assert not point.HasField("min")


async def test_values_are_read_by_the_loop_and_a_stalled_loop_delays_no_collection():
    value = series.gauge("penstock.test.value", "{thing}", "A value of a test.")
    threads, values = [], itertools.count(1)

    def observe():
        threads.append(threading.current_thread())
        return [Observation(value, next(values))]

    def collected():
        return REGISTRY.get_sample_value("penstock_test_value")

    with observing(observe):
        first = collected()  # on the loop itself
        second = await asyncio.to_thread(collected)
        assert 1 <= first < second
        seen = []
        stalled = threading.Thread(target=lambda: seen.append(collected()))
        stalled.start()
        stalled.join()  # the loop does not run meanwhile
        assert seen == [next(values) - 1], "the last value"
    assert set(threads) == {threading.main_thread()}
    assert collected() is None


def test_without_an_endpoint_spans_have_ids_and_are_not_exported():
    ended = run_python("""
        from penstock.chassis.observability.spans import is_recorded, keeps_request, open_span
        from penstock.chassis.observability.telemetry import configure
        telemetry = configure("demo", "demo-1")
        own = open_span("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        print(own, is_recorded(own), keeps_request(own, 9.0, 1.0, failed=True))
        telemetry.shutdown()
    """)
    traceparent, recorded, kept = ended.stdout.split()
    assert trace_id_of(traceparent) == TRACE_ID
    assert traceparent.endswith("-00"), "other tiers must not record the trace either"
    assert (recorded, kept) == ("False", "False")
    assert ended.stderr == ""


def test_spans_still_unsent_are_sent_at_shutdown(receiver):
    run_python(
        f"""
        from penstock.chassis.observability.spans import record_span
        from penstock.chassis.observability.telemetry import configure
        telemetry = configure("demo", "demo-1", otlp_endpoint="{receiver.endpoint}")
        record_span("last words", "{TRACEPARENT.replace(TRACE_ID, "6" * 32)}", 1, 2, {{}})
        telemetry.shutdown()
        """,
        OTEL_BSP_SCHEDULE_DELAY="3600000",
    )
    assert [each.service for each in receiver.spans(trace_id="6" * 32)] == ["penstock-demo"]


def test_an_unreachable_receiver_is_logged_and_does_not_delay_the_end():
    ended = run_python("""
        from penstock.chassis.observability.spans import open_span, record_span
        from penstock.chassis.observability.telemetry import configure
        telemetry = configure("demo", "demo-1", otlp_endpoint="http://127.0.0.1:9")
        record_span("lost", "", 1, 2, {}, own=open_span(""))
        telemetry.shutdown()
    """)
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert any("export" in line["event"].lower() for line in lines), ended.stderr


def test_metrics_are_served_for_scraping():
    ended = run_python("""
        import json, sys, urllib.request
        import io
        sys.stderr = io.TextIOWrapper(io.BytesIO())
        from penstock.chassis.observability.metrics import exemplar_in, histogram
        from penstock.chassis.observability.telemetry import configure
        from penstock.queue.series import WAIT
        telemetry = configure("demo", "demo-1", metrics_listen="127.0.0.1:0")
        address = json.loads(sys.stderr.buffer.getvalue().splitlines()[0])["address"]
        traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        histogram(WAIT).labels("tiny", "batch").observe(0.3, exemplar_in(traceparent))
        accept = {"accept": "application/openmetrics-text;version=1.0.0"}
        with urllib.request.urlopen(urllib.request.Request(f"http://{address}/metrics", headers=accept)) as answer:
            print(answer.read().decode())
        telemetry.shutdown()
    """)
    lines = ended.stdout.splitlines()
    [bucket] = [line for line in lines if line.startswith("penstock_queue_wait_seconds_bucket") and "#" in line]
    sample, exemplar = bucket.split(" # ")
    assert sample == 'penstock_queue_wait_seconds_bucket{class="batch",le="0.33",model="tiny"} 1.0'
    assert f'trace_id="{TRACE_ID}"' in exemplar
    assert 'service_instance_id="demo-1"' in ended.stdout
    assert not [line for line in lines if "_created" in line]


def test_every_line_on_stderr_is_json_with_tier_instance_and_bound_context():
    ended = run_python("""
        import logging, warnings
        import structlog
        from penstock.chassis.observability.telemetry import configure
        telemetry = configure("demo", "demo-1")
        log = structlog.get_logger()
        with structlog.contextvars.bound_contextvars(trace_id="abc"):
            log.info("lease_expired", held_s=1.5)
            logging.getLogger("grpc").warning("from a %s", "library")
        log.debug("too_quiet")
        warnings.warn("odd")
        try:
            1 / 0
        except ZeroDivisionError:
            log.exception("crashed")
        telemetry.shutdown()
    """)
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [line["event"] for line in lines[:2]] == ["lease_expired", "from a library"]
    assert lines[0] | {"timestamp": ""} == {
        "tier": "demo",
        "instance_id": "demo-1",
        "trace_id": "abc",
        "held_s": 1.5,
        "event": "lease_expired",
        "level": "info",
        "timestamp": "",
    }
    assert lines[1]["trace_id"] == "abc"
    assert lines[1]["level"] == "warning"
    assert "odd" in lines[2]["event"]
    assert "ZeroDivisionError" in lines[3]["exception"]
    assert len(lines) == 4


def test_lines_on_a_terminal_are_text():
    script = """
        import logging
        import structlog
        from penstock.chassis.observability.telemetry import configure
        telemetry = configure("demo", "demo-1")
        structlog.get_logger().info("lease_expired", held_s=1.5, name="half of a pair: \\ud83d")
        logging.getLogger("grpc").warning("from a %s", "library")
        try:
            1 / 0
        except ZeroDivisionError:
            structlog.get_logger().exception("crashed")
        telemetry.shutdown()
    """
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "wb") as terminal:
        environ = os.environ | {"NO_COLOR": "1"}
        subprocess.run([sys.executable, "-c", dedent(script)], env=environ, stderr=terminal, timeout=60, check=True)
    with os.fdopen(ours, "rb") as read_end:
        text = read_end.read1(65_536).decode()
    lines = text.splitlines()
    assert "lease_expired" in lines[0]
    assert "held_s=1.5" in lines[0]
    assert "tier=demo" in lines[0]
    assert "from a library" in lines[1]
    assert "ZeroDivisionError: division by zero" in lines[-1]
    assert not any(line.startswith("{") or "\x1b" in line for line in lines)


def test_a_line_with_invalid_text_of_a_client_is_written():
    ended = run_python("""
        import math
        import structlog
        from penstock.chassis.observability.telemetry import configure
        telemetry = configure("demo", "demo-1")
        log = structlog.get_logger()
        log.info("request", name="half of a pair: \\ud83d", seed=2**70, took_s=1.5)
        log.info("request", value={1: object})
        log.info("request", took_s=math.nan)
        telemetry.shutdown()
    """)
    first, second, third = (json.loads(line) for line in ended.stderr.splitlines())
    assert (first["name"], first["seed"], first["took_s"]) == ("half of a pair: \ud83d", 2**70, 1.5)
    assert second["value"] == {"1": "<class 'object'>"}
    assert third["took_s"] is None
