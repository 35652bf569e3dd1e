"""What an edge remembers of its requests: records, the history that finds them, and the cause of each."""

import math
import sys
import tracemalloc

import pytest

from active_requests import LIMITS, generation_plan, lease, new_active_request, running_request, send_tokens
from penstock.chassis.errors import Overloaded
from penstock.edge.explain.cause import cause_of
from penstock.edge.explain.history import RecordRing, RequestHistory
from penstock.edge.explain.record import (
    LostRunFacts,
    Part,
    QueueFacts,
    Record,
    RequestFacts,
    record_of,
    refusal_record_of,
    unpacked,
)
from penstock.edge.explain.service import explained
from penstock.edge.request.front_times import NO_TIMES, FrontTimes, front_times
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.mesh.v1.queue_pb2 import ClassCensus, Queued
from penstock.mesh.v1.worker_pb2 import RunTimes
from penstock.v1.inference_pb2 import FINISH_REASON_STOP

S = 1_000_000_000
FACTS = RequestFacts(
    request_id="r1",
    ticket_id="t1",
    trace_id="0" * 31 + "1",
    answer_id="t1",
    tenant_id="acme",
    key_id="k1",
    priority="standard",
    model="m",
    outcome="stop",
    reason="",
    rejected_by="",
    began_at=100.0,
    has_proxy_time=True,
    first_token_at=101.0,
    prompt_tokens=1_000,
    cached_prompt_tokens=200,
    output_tokens=11,
    attempts=1,
    worker_id="worker-1",
    parts=[Part("worker", "decode", S)],
    lost_runs=[],
    queue=QueueFacts(),
)
WAITED = [Part("auth", "admission", S // 100), Part("queue", "wait", 3 * S), Part("worker", "decode", S)]
BEHIND = QueueFacts(41, 3.2, "globex", 35, 2, 12, 12)
BEHIND_TEXT = (
    " waited 3.0 s behind 41 requests, while globex had 35 waiting; its class had 2 of 12 slots; 3.2 s were predicted."
)
DECODED_TEXT = "its answer of 11 tokens took 1.0 s to generate, 100.0 ms each."
LOST_TEXT = "a run of 7 tokens at worker-0 after 500.0 ms"


def facts(**changes):
    return FACTS._replace(**changes)


def only(tier, name, **changes):
    return facts(parts=[Part(tier, name, 2 * S), Part("worker", "decode", S)], **changes)


CAUSES = {
    "decode": (facts(), "Its answer of 11 tokens took 1.0 s to generate, 100.0 ms each."),
    "prefill": (
        only("worker", "prefill"),
        "Its prompt of 1000 tokens, of which 200 were cached, took 2.0 s to compute.",
    ),
    "queue": (
        facts(parts=WAITED, queue=BEHIND),
        f"It{BEHIND_TEXT}",
    ),
    "own tenant": (
        facts(parts=WAITED, queue=BEHIND._replace(busiest_tenant_id="acme", tickets_ahead=1, slots=0)),
        "It waited 3.0 s behind 1 request, while its own tenant had 35 waiting; 3.2 s were predicted.",
    ),
    "nobody ahead": (facts(parts=WAITED), "It waited 3.0 s in the queue with no request ahead."),
    "hold": (only("edge", "hold"), "It was held 2.0 s until a worker served m, which had none."),
    "tokenize": (only("edge", "tokenize"), "Its prompt took 2.0 s to tokenize."),
    "auth": (only("auth", "admission"), "Auth took 2.0 s to reserve its tokens."),
    "proxy": (only("envoy", "proxy"), "It took 2.0 s through the proxy and from there to this edge."),
    "receive": (only("edge", "receive"), "Its body and its caller's identity took 2.0 s to arrive."),
    "dispatch": (only("network", "dispatch"), "The way from its lease to the worker and back took 2.0 s."),
    "unknown stage": (only("worker", "dream"), "The dream of worker took 2.0 s."),
    "lost run": (
        facts(lost_runs=[LostRunFacts("worker-0", S // 2, 7)]),
        f"It lost {LOST_TEXT}, and went on at worker-1; {DECODED_TEXT}",
    ),
    "cancel": (
        facts(outcome="cancelled"),
        "Its client cancelled it after 1.0 s; its answer of 11 tokens took 1.0 s to generate, 100.0 ms each.",
    ),
    "deadline": (
        facts(outcome="failed", reason="DEADLINE", parts=WAITED[:2], queue=BEHIND),
        f"Its deadline passed after 3.0 s; it{BEHIND_TEXT}",
    ),
    "shed": (
        facts(outcome="shed", reason="QUEUE_FULL", rejected_by="queue"),
        "The queue rejected it: the queue of its model is full (QUEUE_FULL).",
    ),
    "quota": (
        facts(outcome="failed", reason="QUOTA_EXCEEDED"),
        "Tenant acme is over a limit or a budget (QUOTA_EXCEEDED).",
    ),
    "unknown reason": (facts(outcome="failed", reason="NEW_REASON"), "It failed (NEW_REASON)."),
    "attempts": (
        facts(outcome="failed", reason="ATTEMPTS_EXHAUSTED", lost_runs=[LostRunFacts("worker-0", S // 2, 7)]),
        f"It failed: each of its runs was lost with its worker (ATTEMPTS_EXHAUSTED); it had lost {LOST_TEXT}.",
    ),
    "nothing measured": (facts(parts=[]), "It took no time that is measured."),
}


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_of_a_request_is_named(name):
    given, expected = CAUSES[name]
    assert cause_of(given) == expected


def recorded(request, answered_at, **changes):
    given = {
        "request_id": "r1",
        "answer_id": "a1",
        "trace_id": "t",
        "requested_model": "asked",
        "front": NO_TIMES,
        "queued": None,
        "error": None,
        "rejected_by": "",
        **changes,
    }
    return unpacked(record_of(request, answered_at=answered_at, **given).packed)


def test_the_parts_of_a_finished_request_add_up_from_the_proxy_to_its_end():
    request = running_request()
    send_tokens(request, "ab")
    times = RunTimes()
    times.prefill.FromMilliseconds(100)
    times.decode.FromMilliseconds(200)
    request.on_run_finished(FINISH_REASON_STOP, 2, 0, times, 14.0)
    found = recorded(request, 14.5)
    assert found.parts[-1][:2] == ("edge", "finish")
    assert found.began_at + found.total == pytest.approx(14.5, abs=1e-6)
    message = explained(found)
    assert sum(each.length.ToNanoseconds() for each in message.stages) == message.total.ToNanoseconds()
    assert len(message.not_measured) == 2


def test_the_way_through_the_proxy_is_a_part_if_its_time_is_known():
    assert FrontTimes(98.0, 99.5).parts(100.0) == (98.0, [("envoy", "proxy", 3 * S // 2), ("edge", "receive", S // 2)])
    assert FrontTimes(0.0, 99.5).parts(100.0) == (99.5, [("edge", "receive", S // 2)])
    assert FrontTimes(99.6, 99.5).parts(100.0) == (99.5, [("edge", "receive", S // 2)])  # its clock is ahead
    assert explained(FACTS).not_measured == ["the network from this edge to the client"]


def test_the_stage_in_which_a_request_ended_is_a_part():
    request = new_active_request()
    assert recorded(request, 3.0).parts == [Part("edge", "tokenize", round((3.0 - request.arrived_at) * S))]
    request.is_held = True
    assert recorded(request, 3.0).parts[0][:2] == ("edge", "hold")
    request.on_tokenized(generation_plan(), 1.0)
    assert recorded(request, 3.0).parts[-1] == Part("auth", "admission", 2 * S)
    request.on_admitted(Identity(tenant_id="acme"), "reservation", 2.0)
    assert recorded(request, 3.0).parts[-1] == Part("queue", "wait", S)
    assert recorded(request, 1.5).total == pytest.approx(1.5 - request.arrived_at)  # nothing lies behind its answer


def test_a_record_has_what_the_queue_told_and_what_was_lost():
    request = running_request()
    send_tokens(request, "ab")
    request.on_worker_lost(13.0, died=True)
    census = ClassCensus(busiest_tenant_id="globex", busiest_tickets=3, class_running=1, running=2, slots=4)
    queued = Queued(ahead_hint=5, census=census)
    queued.predicted_wait.FromMilliseconds(1_500)
    found = recorded(request, 14.0, queued=queued)
    assert found.queue == QueueFacts(5, 1.5, "globex", 3, 1, 2, 4)
    assert [(run.worker_id, run.output_tokens) for run in found.lost_runs] == [(lease().worker_id, 2)]
    assert recorded(request, 14.0, queued=Queued(ahead_hint=2)).queue == QueueFacts(2)


def test_a_refused_request_is_found_by_its_id_and_its_trace():
    caller = Identity(tenant_id="acme", key_id="k", priority=2)
    error = Overloaded("full", reason="QUEUE_FULL", retry_after=1.0)
    record = refusal_record_of(request_id="r", trace_id="t", caller=caller, model="m", error=error, now=5.0)
    history = RequestHistory()
    history.add(record, 0.0, failed=True)
    assert history.find("r") == history.find("t") == record.packed
    found = unpacked(record.packed)
    assert (found.tenant_id, found.outcome, found.reason, found.parts) == ("acme", "shed", "QUEUE_FULL", [])
    assert explained(found).cause == "The edge rejected it: the queue of its model is full (QUEUE_FULL)."


def record(number, size=10):
    return Record((f"request-{number}", f"trace-{number}"), bytes(size))


def test_the_latest_requests_are_remembered_and_notable_ones_for_longer():
    history = RequestHistory(max_recent=100, max_notable=10)
    history.add(record("failed"), 0.1, failed=True)
    for number in range(1_000):
        history.add(record(number), 0.1 + number * 37 % 1_000 / 1e4, failed=False)
    assert sum(history.find(f"request-{number}") is not None for number in range(900, 1_000)) >= 98
    assert history.find("request-500") is None
    assert history.find("chatcmpl-request-999") == history.find("trace-999")
    assert history.figures["requests_remembered"] <= 110


def test_of_two_requests_with_one_id_the_latest_is_found_and_outlives_the_first():
    history = RequestHistory(max_recent=2, max_notable=2)
    first, second = Record(("same",), b"1"), Record(("same",), b"2")
    for each in (first, second, *(Record((f"other-{number}",), b"3") for number in range(1))):
        history.add(each, 0.0, failed=True)
    assert history.find("same") == b"2"


def test_the_bytes_of_a_history_are_bounded():
    ring = RecordRing(max_records=1_000, max_bytes=5_000)
    for number in range(100):
        ring.add(record(number, 1_000))
    assert ring.size <= 5_000
    assert len(ring.records) == 4


def test_a_record_has_no_more_memory_than_is_counted():
    caller, error = Identity(tenant_id="acme", key_id="k"), Overloaded("full", reason="QUEUE_FULL", retry_after=1.0)
    given = {"request_id": "r", "trace_id": "t", "caller": caller, "model": "m", "error": error, "now": 1.0}
    refusal_record_of(**given)
    tracemalloc.start()
    packed = [refusal_record_of(**given).packed for _ in range(100)]
    allocated, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert allocated < 2 * sum(map(sys.getsizeof, packed))


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "-5", "1e400", "999999999999"])
def test_a_time_of_a_proxy_that_cannot_be_true_is_ignored(text):
    assert front_times(text).parts(1_000.0) == (1_000.0, [])


def test_a_request_without_a_first_token_has_none():
    assert math.isnan(new_active_request().first_token_at)
    assert recorded(new_active_request(), LIMITS.upstream_timeout).first_token_at is None
    assert not explained(recorded(new_active_request(), 5.0)).HasField("first_token")
