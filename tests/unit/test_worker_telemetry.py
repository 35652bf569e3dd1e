"""The spans of a run."""

import pytest

from penstock.worker import telemetry
from penstock.worker.engine.interface import FinishReason, SequenceCancelled, SequenceFinished
from penstock.worker.runs import errors
from penstock.worker.runs.effects import RunEnded
from worker_runs import make_run, ready_table

TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.fixture
def recorded(monkeypatch):
    """The recorded spans: name, begin and end in s, and the names of events and status."""
    spans = []

    def record_span(name, parent, began_ns, ended_ns, attributes, *, error="", events=()):
        assert parent == TRACEPARENT
        spans.append((name, began_ns / 1e9, ended_ns / 1e9, error, [(each.name, each.at_ns / 1e9) for each in events]))

    monkeypatch.setattr(telemetry, "record_span", record_span)
    return spans


def run_telemetry():
    return telemetry.RunTelemetry()


def traced_run(**times):
    run = make_run(ready_table())
    run.traceparent = TRACEPARENT
    for name, value in {"admitted_at": 1.0, "first_token_at": 2.0, "last_token_at": 5.0, **times}.items():
        setattr(run, name, value)
    return run


def ended(run, outcome, at):
    return RunEnded(run, outcome, at, step=3, is_reported=True)


FINISHED = SequenceFinished(1, FinishReason.LENGTH, 2, 0)
CANCELLED = SequenceCancelled(1, 2, 0)


def test_a_run_is_a_prefill_and_a_decode_with_its_preemptions(recorded):
    run = traced_run(preempted_at=(1.5, 3.0, 4.0))
    run_telemetry()._record_spans(ended(run, FINISHED, 5.0), "length")
    assert recorded == [
        ("worker.prefill", 1.0, 2.0, "", [("preempted", 1.5)]),
        ("worker.decode", 2.0, 5.0, "", [("preempted", 3.0), ("preempted", 4.0)]),
    ]


def test_a_stopped_run_ends_with_the_last_token_that_was_wanted(recorded):
    run = traced_run(stop_requested_at=4.5, last_wanted_at=4.0)
    run_telemetry()._record_spans(ended(run, CANCELLED, 6.0), "cancelled")
    assert [span[:3] for span in recorded] == [("worker.prefill", 1.0, 2.0), ("worker.decode", 2.0, 4.0)]


def test_a_run_that_is_stopped_before_its_first_token_has_no_decode(recorded):
    run = traced_run(stop_requested_at=1.5)
    run_telemetry()._record_spans(ended(run, CANCELLED, 6.0), "cancelled")
    assert [span[:3] for span in recorded] == [("worker.prefill", 1.0, 1.5)]


def test_a_run_that_its_engine_lost_is_an_error(recorded):
    run_telemetry()._record_spans(ended(traced_run(), errors.engine_crashed(), 5.0), "ENGINE_DIED")
    assert [span[3] for span in recorded] == ["ENGINE_DIED"] * 2
