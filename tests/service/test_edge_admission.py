"""A real edge that was told by the queue to refuse for a while: whom it refuses, whom not, and what that spares."""

from datetime import timedelta

import grpc
import pytest
import structlog
from google.protobuf.json_format import MessageToDict

from edge_mesh import TIMEOUT_S, edge_mesh
from penstock.chassis.errors import Overloaded, error_from_rpc
from penstock.mesh.v1.queue_pb2 import RejectionWindow
from penstock.v1.admin_pb2 import GetSnapshotRequest
from penstock.v1.inference_pb2 import PRIORITY_BATCH, GenerateRequest, Resume, TokenIds

TOKENS = TokenIds(ids=[5] * 20)
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
FULL = Overloaded("full", retry_after=TIMEOUT_S)


async def outcome(call):
    """Return the reason of a refusal, and which tier it was; of what is answered, neither."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as failure:
        error = error_from_rpc(failure)
        return error.reason, error.metadata.get("rejected_by", "queue")
    return "", ""


@pytest.fixture
async def mesh(monkeypatch):
    """One whose queue has refused 20 prompt and 10 output tokens, and would take anything now."""
    monkeypatch.setattr("penstock.edge.admission.rejection_cache.PROBE_INTERVAL_S", TIMEOUT_S)
    monkeypatch.setattr("penstock.edge.admission.rejection_cache.MAX_REJECTION_TTL_S", TIMEOUT_S)
    async with edge_mesh() as found:
        found.queue.sheds = [FULL]
        found.queue.shed_windows = [
            RejectionWindow(duration=timedelta(seconds=TIMEOUT_S), min_prompt_tokens=20, min_output_tokens=10)
        ]
        assert await outcome(ask(found)) == ("OVERLOADED", "queue")
        yield found


def ask(mesh, key="good", **fields):
    fields = {"token_ids": TOKENS, "max_output_tokens": 10, **fields}
    metadata = (("authorization", f"Bearer {key}"),)
    return mesh.inference.Generate(GenerateRequest(**fields), metadata=metadata, timeout=TIMEOUT_S)


async def test_the_like_of_what_was_refused_costs_neither_a_reservation_nor_a_ticket(mesh):
    asked = len(mesh.auth.reserves), len(mesh.queue.tickets)
    assert await outcome(ask(mesh)) == ("OVERLOADED", "edge")
    assert (len(mesh.auth.reserves), len(mesh.queue.tickets)) == asked
    figures = await mesh.figures()
    assert (figures["rejected_by_edge"], figures["rejected_by_queue"], figures["active_requests"]) == (1, 1, 0)


async def test_a_look_at_the_edge_shows_what_it_refused_alone(mesh):
    assert await outcome(ask(mesh)) == ("OVERLOADED", "edge")
    snapshot = (await mesh.admin.GetSnapshot(GetSnapshotRequest())).snapshot
    row = {"class": "standard", "reason": "OVERLOADED", "by": "edge", "tickets": 1.0}
    assert MessageToDict(snapshot.tables)["sheds"] == [row]


async def test_of_many_refusals_one_is_logged(mesh):
    with structlog.testing.capture_logs() as lines:
        outcomes = [await outcome(ask(mesh, request_id=f"r{each}", traceparent=TRACE)) for each in range(5)]
    assert outcomes == [("OVERLOADED", "edge")] * 5
    told = [line for line in lines if line["event"] == "requests_rejected"]
    assert 1 <= len(told) < 5
    assert (told[0]["request_id"], told[0]["trace_id"]) == ("r0", "a" * 32)
    assert (told[0]["tenant"], told[0]["key_id"]) == ("acme", "key-1")
    assert not [line for line in lines if line["event"] == "ticket_done"]


async def test_who_is_refused_here_is_told_when_to_come_back(mesh):
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await ask(mesh).read()
    assert 0 < error_from_rpc(failure.value).retry_after <= TIMEOUT_S


async def test_smaller_requests_and_answers_that_go_on_reach_the_queue(mesh):
    assert await outcome(ask(mesh, max_output_tokens=9)) == ("", "")
    assert await outcome(ask(mesh, token_ids=TokenIds(ids=[5] * 19))) == ("", "")
    assert await outcome(ask(mesh, resume=Resume(token_ids=[5]))) == ("", "")
    assert await outcome(ask(mesh)) == ("OVERLOADED", "edge"), "what they were told says nothing of the like"


async def test_a_rejection_of_a_smaller_request_by_the_queue_holds_for_that_size_from_then_on(mesh):
    mesh.queue.sheds = [FULL]
    mesh.queue.shed_windows = [
        RejectionWindow(duration=timedelta(seconds=TIMEOUT_S), min_prompt_tokens=19, min_output_tokens=10)
    ]
    assert await outcome(ask(mesh, token_ids=TokenIds(ids=[5] * 19))) == ("OVERLOADED", "queue")
    assert await outcome(ask(mesh, token_ids=TokenIds(ids=[5] * 19))) == ("OVERLOADED", "edge")
    figures = await mesh.figures()
    assert (figures["rejected_by_edge"], figures["rejected_by_queue"], figures["active_requests"]) == (1, 2, 0)


async def test_a_key_that_auth_has_not_let_in_of_late_is_for_auth_to_judge(mesh):
    assert (await outcome(ask(mesh, key="stolen")))[0] == "KEY_UNKNOWN"


async def test_text_is_refused_by_its_words_before_it_is_tokenized(mesh):
    assert await outcome(ask(mesh, text="a " * 20)) == ("OVERLOADED", "edge")
    assert (await mesh.figures())["requests_started"] == 1, "the one that the queue refused"


async def test_text_of_few_words_is_refused_by_its_tokens_before_it_is_reserved(mesh):
    asked = len(mesh.auth.reserves)
    assert await outcome(ask(mesh, text="x" * 60)) == ("OVERLOADED", "edge")
    assert len(mesh.auth.reserves) == asked
    assert await outcome(ask(mesh, text="x")) == ("", "")


async def test_who_comes_behind_the_last_that_there_was_room_for_is_refused_unasked(mesh):
    closed = RejectionWindow(duration=timedelta(seconds=TIMEOUT_S), min_prompt_tokens=2, min_output_tokens=1)
    mesh.queue.queued_windows = [closed]
    assert await outcome(ask(mesh, max_output_tokens=1)) == ("", "")
    assert await outcome(ask(mesh, max_output_tokens=1)) == ("OVERLOADED", "edge")
    assert await outcome(ask(mesh, text="a")) == ("", ""), "one that is smaller"


async def test_another_class_reaches_the_queue(mesh):
    assert await outcome(ask(mesh, priority=PRIORITY_BATCH)) == ("", "")


async def test_what_could_never_be_run_is_told_so(mesh):
    assert (await outcome(ask(mesh, max_output_tokens=10_000)))[0] == "PROMPT_TOO_LONG"
