"""Spans and metrics as received by a collector, and logs as written to stderr."""

import json
import os
import subprocess
import sys
from textwrap import dedent

import pytest

from penstock.chassis.observability import semconv
from penstock.chassis.observability.telemetry import meter, start_span, trace_id_of, traceparent_of

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


def run_python(script, **environ):
    """Run `script` in a process of its own and return it, ended."""

    source = dedent(script)
    return subprocess.run(
        [sys.executable, "-c", source], env=os.environ | environ, capture_output=True, text=True, timeout=60, check=True
    )


def test_a_span_is_the_child_of_the_traceparent_it_was_given(receiver):
    outer = start_span("outer", TRACEPARENT.replace(TRACE_ID, "1" * 32), attributes={semconv.PENSTOCK_ATTEMPT: 2})
    inner = start_span("inner", traceparent_of(outer))
    inner.end()
    outer.end()
    spans = {each.name: each for each in receiver.wait_for_spans("outer", "inner", trace_id="1" * 32)}
    assert spans["outer"].parent_id == "b7ad6b7169203331"
    assert spans["inner"].parent_id == spans["outer"].span_id
    assert spans["outer"].attributes == {"penstock.attempt": 2}
    assert spans["inner"].kind == "INTERNAL"


def test_a_span_names_its_tier_and_process(receiver):
    start_span("request", TRACEPARENT.replace(TRACE_ID, "2" * 32)).end()
    [span] = receiver.wait_for_spans("request", trace_id="2" * 32)
    assert span.service == "penstock-test"
    assert span.resource["service.namespace"] == "penstock"
    assert span.resource["service.instance.id"] == "test-1"
    assert span.resource["service.version"]


def test_a_span_may_begin_in_the_past(receiver):
    start_span("past", TRACEPARENT.replace(TRACE_ID, "3" * 32), start_time=1_000_000_000).end(end_time=3_000_000_000)
    [span] = receiver.wait_for_spans("past", trace_id="3" * 32)
    assert (span.start_unix_nano, span.end_unix_nano) == (1_000_000_000, 3_000_000_000)


@pytest.mark.parametrize("traceparent", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_without_a_valid_parent_a_span_is_the_root_of_a_new_trace(receiver, traceparent):
    span = start_span("root", traceparent)
    span.end()
    trace_id = trace_id_of(traceparent_of(span))
    [received] = receiver.wait_for_spans("root", trace_id=trace_id)
    assert received.parent_id == ""
    assert trace_id != "0" * 32


def test_the_trace_id_of_a_malformed_traceparent_is_empty():
    assert trace_id_of(TRACEPARENT) == TRACE_ID
    zeros, ids = f"00-{'0' * 32}-{'b' * 16}-01", f"{'a' * 32}-{'0' * 16}-01"
    assert [trace_id_of(each) for each in ("", "00-xyz", zeros, f"00-{ids}", TRACEPARENT + "-more")] == [""] * 5
    assert trace_id_of(TRACEPARENT.replace("00-", "01-", 1) + "-more") == TRACE_ID, "a later version may say more"


def test_a_counter_made_before_telemetry_is_configured_counts(receiver):
    meter().create_counter("penstock.test.count").add(2, {"kind": "a"})
    metric = receiver.wait_for_metric("penstock.test.count")
    assert [point.as_int for point in metric.sum.data_points] == [2]


def test_without_an_endpoint_spans_have_ids_and_are_not_exported():
    ended = run_python("""
        from penstock.chassis.observability.telemetry import configure, start_span, traceparent_of
        telemetry = configure("demo", "demo-1")
        span = start_span("x")
        print(traceparent_of(span), span.is_recording())
        telemetry.shutdown()
    """)
    traceparent, is_recording = ended.stdout.split()
    assert trace_id_of(traceparent)
    assert is_recording == "False"
    assert ended.stderr == ""


def test_spans_still_unsent_are_sent_at_shutdown(receiver):
    run_python(
        f"""
        from penstock.chassis.observability.telemetry import configure, start_span
        telemetry = configure("demo", "demo-1", otlp_endpoint="{receiver.endpoint}")
        start_span("last words", "{TRACEPARENT.replace(TRACE_ID, "4" * 32)}").end()
        telemetry.shutdown()
        """,
        OTEL_BSP_SCHEDULE_DELAY="3600000",
    )
    assert [each.service for each in receiver.spans(trace_id="4" * 32)] == ["penstock-demo"]


def test_an_unreachable_receiver_is_logged_and_does_not_delay_the_end():
    ended = run_python("""
        from penstock.chassis.observability.telemetry import configure, start_span
        telemetry = configure("demo", "demo-1", otlp_endpoint="http://127.0.0.1:9")
        start_span("lost").end()
        telemetry.shutdown()
    """)
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert any("export" in line["event"].lower() for line in lines), ended.stderr


def test_metrics_are_served_for_scraping():
    ended = run_python("""
        import json, sys, urllib.request
        import io
        sys.stderr = io.TextIOWrapper(io.BytesIO())
        from penstock.chassis.observability.telemetry import configure, meter
        telemetry = configure("demo", "demo-1", metrics_listen="127.0.0.1:0")
        address = json.loads(sys.stderr.buffer.getvalue().splitlines()[0])["address"]
        depth = meter().create_up_down_counter("penstock.queue.depth")
        depth.add(3, {"priority": "batch"})
        with urllib.request.urlopen(f"http://{address}/metrics") as answer:
            print(answer.read().decode())
        telemetry.shutdown()
    """)
    samples = [line for line in ended.stdout.splitlines() if line.startswith("penstock_queue_depth{")]
    assert len(samples) == 1
    assert 'priority="batch"' in samples[0]
    assert samples[0].endswith(" 3.0")
    assert 'service_instance_id="demo-1"' in ended.stdout


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
