"""The admission filter of a real edge: the requests that it rejects after a rejection by the queue, and their cost."""

import asyncio
from datetime import timedelta

import grpc
import pytest
import structlog
from google.protobuf.json_format import MessageToDict

from edge_mesh import KEY, TIMEOUT_S, edge_mesh
from edge_sessions import session
from penstock.chassis.errors import Overloaded, error_from_rpc
from penstock.mesh.v1.queue_pb2 import RejectionWindow
from penstock.v1.admin_pb2 import GetSnapshotRequest
from penstock.v1.inference_pb2 import (
    PRIORITY_BATCH,
    GenerateRequest,
    Resume,
    SessionGenerate,
    SessionRequest,
    TokenIds,
)

PROMPT = TokenIds(ids=[5] * 20)
TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"
QUEUE_FULL = Overloaded("full", retry_after=TIMEOUT_S)


async def outcome(call):
    """Return the reason of a rejection and the tier that rejected; empty strings if the request is answered."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as failure:
        error = error_from_rpc(failure)
        return error.reason, error.metadata.get("rejected_by", "queue")
    return "", ""


@pytest.fixture
async def mesh(monkeypatch):
    """A mesh whose queue has rejected 20 prompt and 10 output tokens, and would admit any request now."""
    monkeypatch.setattr("penstock.edge.admission.rejection_cache.PROBE_INTERVAL_S", TIMEOUT_S)
    monkeypatch.setattr("penstock.edge.admission.rejection_cache.MAX_REJECTION_TTL_S", TIMEOUT_S)
    async with edge_mesh() as started:
        started.queue.sheds = [QUEUE_FULL]
        started.queue.shed_windows = [
            RejectionWindow(duration=timedelta(seconds=TIMEOUT_S), min_prompt_tokens=20, min_output_tokens=10)
        ]
        assert await outcome(generate(started)) == ("OVERLOADED", "queue")
        yield started


def generate(mesh, key="good", **fields):
    fields = {"token_ids": PROMPT, "max_output_tokens": 10, **fields}
    metadata = (("authorization", f"Bearer {key}"),)
    return mesh.inference.Generate(GenerateRequest(**fields), metadata=metadata, timeout=TIMEOUT_S)


async def test_a_request_similar_to_a_rejected_one_costs_neither_a_reservation_nor_a_ticket(mesh):
    before = len(mesh.auth.reserves), len(mesh.queue.tickets)
    assert await outcome(generate(mesh)) == ("OVERLOADED", "edge")
    assert (len(mesh.auth.reserves), len(mesh.queue.tickets)) == before
    figures = await mesh.figures()
    assert (figures["rejected_by_edge"], figures["rejected_by_queue"], figures["active_requests"]) == (1, 1, 0)


async def test_the_snapshot_of_an_edge_shows_its_own_rejections(mesh):
    assert await outcome(generate(mesh)) == ("OVERLOADED", "edge")
    snapshot = (await mesh.admin.GetSnapshot(GetSnapshotRequest())).snapshot
    row = {"class": "standard", "reason": "OVERLOADED", "by": "edge", "tickets": 1.0}
    assert MessageToDict(snapshot.tables)["sheds"] == [row]


async def test_many_rejections_are_logged_in_fewer_lines(mesh):
    with structlog.testing.capture_logs() as lines:
        outcomes = [await outcome(generate(mesh, request_id=f"r{each}", traceparent=TRACEPARENT)) for each in range(5)]
    assert outcomes == [("OVERLOADED", "edge")] * 5
    logged = [line for line in lines if line["event"] == "requests_rejected"]
    assert 1 <= len(logged) < 5
    assert (logged[0]["request_id"], logged[0]["trace_id"]) == ("r0", "a" * 32)
    assert (logged[0]["tenant"], logged[0]["key_id"]) == ("acme", "key-1")
    assert not [line for line in lines if line["event"] == "ticket_done"]


async def test_a_rejection_at_the_door_is_a_span_of_its_call(mesh, receiver):
    trace_id = "ad" * 16
    traceparent = f"00-{trace_id}-{'b' * 16}-01"
    assert await outcome(generate(mesh, traceparent=traceparent)) == ("OVERLOADED", "edge")
    [span] = await asyncio.to_thread(receiver.wait_for_spans, "penstock.v1.Inference/Generate", trace_id=trace_id)
    assert (span.kind, span.status, span.status_message) == ("SERVER", "ERROR", "OVERLOADED")


async def test_a_rejection_on_a_session_is_a_span_of_its_request(mesh, receiver):
    opened, given = (f"00-{digits * 16}-{'b' * 16}-01" for digits in ("ae", "af"))
    async with session(mesh, metadata=(*KEY, ("traceparent", opened))) as client:
        for handle, traceparent in enumerate((given, opened, "")):
            client.link.send(
                SessionRequest(
                    generate=SessionGenerate(
                        handle=handle,
                        request=GenerateRequest(token_ids=PROMPT, max_output_tokens=10, traceparent=traceparent),
                    )
                )
            )
            assert (await client.next_frame("failed")).failure.reason == "OVERLOADED"
    name = "penstock.v1.Inference/Session"
    [own] = await asyncio.to_thread(receiver.wait_for_spans, name, trace_id="af" * 16)
    assert (own.kind, own.status, own.parent_id, own.links) == ("SERVER", "ERROR", "b" * 16, (("ae" * 16, "b" * 16),))
    [same] = await asyncio.to_thread(receiver.wait_for_spans, name, trace_id="ae" * 16)
    assert (same.parent_id, same.links) == ("b" * 16, ())

    def begun_by_the_session():
        return [span for span in receiver.spans(name=name) if not span.parent_id and span.links == own.links]

    async with asyncio.timeout(TIMEOUT_S):
        while not begun_by_the_session():  # noqa: ASYNC110  # exported by another thread
            await asyncio.sleep(0.02)
    [new] = begun_by_the_session()
    assert new.trace_id not in (own.trace_id, same.trace_id)


async def test_a_rejection_by_the_edge_has_the_time_to_retry(mesh):
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await generate(mesh).read()
    assert 0 < error_from_rpc(failure.value).retry_after <= TIMEOUT_S


async def test_smaller_requests_and_resumed_answers_reach_the_queue(mesh):
    assert await outcome(generate(mesh, max_output_tokens=9)) == ("", "")
    assert await outcome(generate(mesh, token_ids=TokenIds(ids=[5] * 19))) == ("", "")
    assert await outcome(generate(mesh, resume=Resume(token_ids=[5]))) == ("", "")
    assert await outcome(generate(mesh)) == ("OVERLOADED", "edge"), (
        "their admission does not end the rejection of the larger size"
    )


async def test_a_rejection_of_a_smaller_request_by_the_queue_extends_the_cache_to_its_size(mesh):
    mesh.queue.sheds = [QUEUE_FULL]
    mesh.queue.shed_windows = [
        RejectionWindow(duration=timedelta(seconds=TIMEOUT_S), min_prompt_tokens=19, min_output_tokens=10)
    ]
    assert await outcome(generate(mesh, token_ids=TokenIds(ids=[5] * 19))) == ("OVERLOADED", "queue")
    assert await outcome(generate(mesh, token_ids=TokenIds(ids=[5] * 19))) == ("OVERLOADED", "edge")
    figures = await mesh.figures()
    assert (figures["rejected_by_edge"], figures["rejected_by_queue"], figures["active_requests"]) == (1, 2, 0)


async def test_a_key_that_auth_has_not_admitted_recently_is_judged_by_auth(mesh):
    assert (await outcome(generate(mesh, key="stolen")))[0] == "KEY_UNKNOWN"


async def test_text_is_rejected_by_its_words_before_it_is_tokenized(mesh):
    assert await outcome(generate(mesh, text="a " * 20)) == ("OVERLOADED", "edge")
    assert (await mesh.figures())["requests_started"] == 1, "the one that the queue rejected"


async def test_text_of_few_words_is_rejected_by_its_tokens_before_it_is_reserved(mesh):
    before = len(mesh.auth.reserves)
    assert await outcome(generate(mesh, text="x" * 60)) == ("OVERLOADED", "edge")
    assert len(mesh.auth.reserves) == before
    assert await outcome(generate(mesh, text="x")) == ("", "")


async def test_rejection_windows_of_an_admitted_request_reject_later_ones_at_the_edge(mesh):
    window = RejectionWindow(duration=timedelta(seconds=TIMEOUT_S), min_prompt_tokens=2, min_output_tokens=1)
    mesh.queue.queued_windows = [window]
    assert await outcome(generate(mesh, max_output_tokens=1)) == ("", "")
    assert await outcome(generate(mesh, max_output_tokens=1)) == ("OVERLOADED", "edge")
    assert await outcome(generate(mesh, text="a")) == ("", ""), "a smaller request"


async def test_another_class_reaches_the_queue(mesh):
    assert await outcome(generate(mesh, priority=PRIORITY_BATCH)) == ("", "")


async def test_a_request_that_can_never_run_fails_with_its_reason(mesh):
    assert (await outcome(generate(mesh, max_output_tokens=10_000)))[0] == "PROMPT_TOO_LONG"
