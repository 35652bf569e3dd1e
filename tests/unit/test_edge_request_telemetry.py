"""The spans of a request, by its end and by the sampling of its trace. Times are those of `active_requests`."""

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from active_requests import DEADLINE, RUN_TIMES, lease, new_active_request, queued_request, running_request
from penstock.chassis.errors import DeadlineExceeded, InvalidArgument, Overloaded
from penstock.chassis.observability.deferred import deferred_calls
from penstock.chassis.observability.sampling import HeadSampler
from penstock.chassis.observability.spans import INTERNAL, SERVER, EndedSpan, SpanRecorder, install_recorder
from penstock.edge.explain.history import RequestHistory
from penstock.edge.lifecycle.effects import AcknowledgeCancel
from penstock.edge.lifecycle.observability.telemetry import RequestTelemetry
from penstock.edge.request.spec import RequestSpec, TextInput
from penstock.v1.inference_pb2 import FINISH_REASON_STOP

SPEC = RequestSpec(request_id="r1", model="tiny", input=TextInput("hi"), seed=3, max_output_tokens=6)
ROOT = "text_completion tiny"
PARENT, UNSAMPLED = (f"00-{'a' * 32}-{'b' * 16}-{flags}" for flags in ("01", "00"))
SESSION = f"00-{'c' * 32}-{'d' * 16}-01"
EDGE_STAGES = {"edge.tokenize", "edge.admission"}


@dataclass
class RecordedSpans:
    """In the place of the batch processor."""

    spans: list[EndedSpan] = field(default_factory=list)

    def on_end(self, span):
        self.spans.append(span)


@contextmanager
def recorded():
    found = RecordedSpans()
    install_recorder(SpanRecorder(found, HeadSampler()))
    try:
        yield found.spans
    finally:
        install_recorder(None)


def spans_of(request, now, *, parent=PARENT, session_link=None, error=None, failed_at=0.0, cancel=None, warm=0):
    """The spans of a request that is removed at `now`, after `warm` quick ones, by name."""

    async def record():
        with recorded() as spans:
            for _ in range(warm):
                RequestTelemetry(SPEC, "quick", UNSAMPLED, history=RequestHistory()).end(new_active_request(), 0.001)
            deferred_calls().flush()
            spans.clear()
            telemetry = RequestTelemetry(SPEC, "r1", parent, history=RequestHistory(), session_link=session_link)
            if error:
                telemetry.on_failed(error, failed_at)
            if cancel:
                telemetry.on_cancelled(*cancel[:2], is_received=cancel[2])
            telemetry.end(request, now)
            deferred_calls().flush()
            return spans

    return asyncio.run(record())


def finished_request():
    request = running_request()
    request.on_token(0, ord("a"), None, 14.0)
    request.on_run_finished(FINISH_REASON_STOP, 1, 0, RUN_TIMES, 14.0)
    return request


def by_name(spans):
    return {span.name: span for span in spans}


def seconds(span):
    return span.began_ns / 1e9, span.ended_ns / 1e9


def test_a_request_is_named_by_its_operation_and_model_and_its_stages_are_below_it():
    spans = by_name(spans_of(finished_request(), 14.0))
    assert spans.keys() == {ROOT, *EDGE_STAGES}, "other tiers record theirs"
    root = spans[ROOT]
    assert (root.parent, root.kind, root.error, seconds(root)) == (PARENT, INTERNAL, "", (0.0, 14.0))
    assert seconds(spans["edge.tokenize"]) == (0.0, 1.0)
    assert seconds(spans["edge.admission"]) == (1.0, 2.0)
    assert {spans[each].parent for each in EDGE_STAGES} == {root.own}
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.seed": 3,
        "gen_ai.response.id": "t1",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": 14.0,
        "gen_ai.usage.output_tokens": 1,
        "penstock.outcome": "stop",
    }
    assert root.attributes.items() >= expected.items()
    assert [(event.name, event.at_ns) for event in root.events] == [("first_token", 14_000_000_000)]
    assert "hi" not in map(str, root.attributes.values())


@pytest.mark.parametrize(
    ("request_at_end", "stages"),
    [(new_active_request, {"edge.tokenize"}), (queued_request, EDGE_STAGES)],
)
def test_the_stage_in_which_a_request_fails_ends_with_its_request(request_at_end, stages):
    request, error = request_at_end(), InvalidArgument("no")
    request.fail(error, 2.5)
    spans = by_name(spans_of(request, 30.0, error=error, failed_at=2.5))
    assert spans.keys() - {ROOT} == stages
    assert all(0.0 <= span.began_ns <= span.ended_ns <= 2.5e9 for span in spans.values())
    assert spans[ROOT].ended_ns == 2.5e9, "not when auth or the worker has answered"
    assert "gen_ai.response.finish_reasons" not in spans[ROOT].attributes


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidArgument("no"), ""),
        (Overloaded("full", reason="QUEUE_FULL"), "QUEUE_FULL"),
        (DeadlineExceeded("late"), "DEADLINE"),
    ],
)
def test_errors_of_the_service_and_shed_load_have_the_status_error(error, status):
    root = by_name(spans_of(queued_request(), 5.0, error=error, failed_at=5.0))[ROOT]
    assert root.error == status
    assert root.attributes["penstock.reason"] == error.reason
    assert root.attributes["error.type"] == error.code.name


@pytest.mark.parametrize(
    ("session_link", "is_received", "ended", "kind"),
    [(None, False, 12.0, INTERNAL), ("", False, 12.0, SERVER), ("", True, 13.0, SERVER)],
)
def test_a_cancelled_request_ends_when_its_client_left_or_had_its_receipt(session_link, is_received, ended, kind):
    request = running_request()
    request.on_client_cancelled(12.0)
    request.on_run_stopped(1, 4, RUN_TIMES, 13.0)
    receipt = AcknowledgeCancel(output_tokens=1, kv_blocks_freed=4, waited_s=1.0, is_acknowledged=True)
    root = by_name(spans_of(request, 13.0, session_link=session_link, cancel=(receipt, 13.0, is_received)))[ROOT]
    assert (root.ended_ns, root.kind, root.error) == (ended * 1e9, kind, "")
    [event] = root.events
    assert (event.name, event.at_ns) == ("cancel_acknowledged", 13_000_000_000)
    assert event.attributes == {"penstock.kv_blocks_freed": 4}


def test_a_request_of_a_session_is_linked_to_the_session():
    root = by_name(spans_of(finished_request(), 14.0, parent="", session_link=SESSION))[ROOT]
    assert (root.parent, root.links) == ("", [SESSION])
    assert root.attributes["rpc.method"] == "penstock.v1.Inference/Session"


def test_a_lost_run_is_an_error_linked_to_the_run_that_continues_it():
    request = running_request()
    request.on_token(0, ord("a"), None, 11.0)
    request.on_worker_lost(12.0, died=True)
    request.on_leased(lease(2, "w2"), 15.0)
    request.on_run_started()
    request.on_token(1, ord("b"), None, 16.0)
    request.on_run_finished(FINISH_REASON_STOP, 1, 0, RUN_TIMES, 17.0)
    lost, continued = (span for span in spans_of(request, 17.0) if span.name == "edge.run")
    assert (lost.error, continued.error) == ("RUN_LOST", "")
    assert (seconds(lost), seconds(continued)) == ((10.0, 12.0), (15.0, 17.0))
    assert (lost.links, continued.links) == ([continued.own], [lost.own])
    assert (lost.attributes["penstock.worker_id"], continued.attributes["penstock.worker_id"]) == ("w1", "w2")
    assert [span.attributes["gen_ai.usage.output_tokens"] for span in (lost, continued)] == [1, 1]


def test_an_unsampled_request_that_fails_is_recorded_from_its_timeline():
    request = running_request()
    error = DeadlineExceeded("late")
    request.fail(error, DEADLINE)
    request.on_run_stopped(0, 0, RUN_TIMES, DEADLINE + 1)
    spans = by_name(spans_of(request, DEADLINE + 1, parent=UNSAMPLED, error=error, failed_at=DEADLINE))
    assert spans.keys() >= {ROOT, *EDGE_STAGES, "queue.wait", "scheduler.place", "worker.prefill"}
    assert all(span.ended_ns <= DEADLINE * 1e9 for span in spans.values())


def test_an_unsampled_request_that_is_slow_is_recorded_and_a_quick_one_is_not():
    slow = spans_of(finished_request(), 14.0, parent=UNSAMPLED, warm=2_000)
    assert {"queue.wait", "worker.decode"} < by_name(slow).keys()
    assert spans_of(new_active_request(), 0.0001, parent=UNSAMPLED, warm=2_000) == []
