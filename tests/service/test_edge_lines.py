"""Lines of batches at an edge: each ends once, is charged only if it is answered, and goes on elsewhere."""

import asyncio

import orjson
import pytest

from edge_calls import wait_at_rest
from edge_mesh import TIMEOUT_S, FakeWorker, edge_mesh, text_of
from line_streams import CHAT, line_client
from penstock.chassis.errors import Overloaded, QuotaExceeded
from penstock.edge.api.lines import service as lines_service
from penstock.mesh.v1 import batch_pb2 as pb
from penstock.v1.inference_pb2 import PRIORITY_BATCH

LINE_ID = "00c0ffee00c0ffee0123456789abcdef"


def completion(tokens=5, **fields):
    return {"model": "tiny", "prompt": "hi", "max_tokens": tokens, **fields}


async def charges(mesh, count):
    settles = [await asyncio.wait_for(mesh.auth.settles.get(), 20.0) for _ in range(count)]
    assert mesh.auth.settles.empty()
    return sorted((each.prompt_tokens, each.output_tokens) for each in settles)


async def test_a_line_is_answered_in_the_format_of_its_endpoint_and_charged():
    async with edge_mesh() as mesh, line_client(mesh.address) as lines:
        lines.start(1, completion(), line_id=LINE_ID)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        lines.start(2, body, endpoint=CHAT)
        ended, chat = await lines.end_of(1), await lines.end_of(2)
        assert (ended.verdict, ended.status, ended.request_id) == (pb.LINE_VERDICT_ANSWERED, 200, LINE_ID)
        answer = orjson.loads(ended.body)
        assert (answer["id"], answer["choices"][0]["text"]) == (f"cmpl-{LINE_ID}", text_of(5))
        assert (ended.input_tokens, ended.output_tokens) == (2, 5)
        assert answer["usage"]["completion_tokens"] == 5
        assert orjson.loads(chat.body)["choices"][0]["message"]["content"] == text_of(3)
        assert sorted(lines.running) == [1, 2]
        assert [output for _, output in await charges(mesh, 2)] == [5, 3]
        first, _ = sorted(mesh.auth.reserves, key=lambda each: -each.max_output_tokens)
        assert (first.answer_id, first.priority) == (LINE_ID, PRIORITY_BATCH)
        assert first.credential.delegation == b"good"
        assert not any(each.may_have_run for each in mesh.queue.tickets)
        seeds = {each.sampling.seed for each in mesh.workers[0].starts}
        assert int(LINE_ID[:16], 16) in seeds


async def test_a_line_ends_once_auth_has_recorded_its_charge():
    async with edge_mesh() as mesh, line_client(mesh.address) as lines:
        mesh.auth.confirms_settlements = False
        lines.start(1, completion())
        settle = await asyncio.wait_for(mesh.auth.settles.get(), 20.0)
        assert (settle.prompt_tokens, settle.output_tokens) == (2, 5)
        lines.start(2, b"{")  # its end follows all that the edge has sent before
        await lines.end_of(2)
        assert 1 not in lines.ended
        mesh.auth.confirm()
        assert (await lines.end_of(1)).verdict == pb.LINE_VERDICT_ANSWERED


async def test_a_line_whose_charge_is_on_the_way_is_answered_in_spite_of_a_stop():
    async with edge_mesh() as mesh, line_client(mesh.address) as lines:
        mesh.auth.confirms_settlements = False
        lines.start(1, completion())
        assert await charges(mesh, 1) == [(2, 5)]
        lines.stop(1)
        lines.start(2, b"{")  # its end follows all that the edge has sent before
        await lines.end_of(2)
        mesh.auth.confirm()
        assert (await lines.end_of(1)).verdict == pb.LINE_VERDICT_ANSWERED


@pytest.mark.parametrize(
    ("body", "endpoint", "code", "param"),
    [
        (b"{", "/v1/completions", "invalid_argument", None),
        (b"[]", "/v1/completions", "invalid_argument", None),
        (completion(stream=True), "/v1/completions", "invalid_argument", "stream"),
        (completion(tokens=0), "/v1/completions", "invalid_argument", "max_tokens"),
        (completion() | {"model": "other"}, "/v1/completions", "model_not_found", None),
        ({"model": "tiny", "input": "hi", "store": True}, "/v1/responses", "invalid_argument", "store"),
        ({"model": "tiny", "input": "hi"}, "/v1/embeddings", "embedding_unsupported", "model"),
        (completion(), "/v1/files", "invalid_argument", "endpoint"),
    ],
)
async def test_a_line_that_is_no_call_is_refused_and_not_charged(body, endpoint, code, param):
    async with edge_mesh() as mesh, line_client(mesh.address) as lines:
        lines.start(1, body, endpoint=endpoint)
        ended = await lines.end_of(1)
        assert ended.verdict == pb.LINE_VERDICT_REFUSED
        assert 400 <= ended.status < 500
        error = orjson.loads(ended.body)["error"]
        assert (error["code"], error["param"]) == (code, param)
        assert mesh.auth.settles.empty()


async def test_a_line_that_is_shed_runs_later_and_one_over_budget_stops_its_batch():
    async with edge_mesh() as mesh, line_client(mesh.address) as lines:
        mesh.queue.sheds.append(Overloaded("full", reason="QUEUE_FULL", retry_after=3.0))
        lines.start(1, completion())
        shed = await lines.end_of(1)
        assert (shed.verdict, shed.failure.retry_after.seconds) == (pb.LINE_VERDICT_LATER, 3)
        mesh.auth.rejections.append(QuotaExceeded("spent", reason="BUDGET_EXCEEDED", retry_after=1e6))
        lines.start(1, completion())
        await lines.wait(lines.events.empty)
        lines.ended.clear()
        assert (await lines.end_of(1)).verdict == pb.LINE_VERDICT_STOP
        lines.start(2, completion(), delegation=b"revoked")
        assert (await lines.end_of(2)).verdict == pb.LINE_VERDICT_STOP


async def test_several_choices_and_embeddings_are_one_answer_each():
    worker = FakeWorker("w1", embedding_size=4)
    async with edge_mesh(fakes=[worker]) as mesh, line_client(mesh.address) as lines:
        lines.start(1, completion(n=2), line_id=LINE_ID)
        choices = orjson.loads((await lines.end_of(1)).body)["choices"]
        assert [each["text"] for each in choices] == [text_of(5), text_of(5)]
        lines.start(2, {"model": "tiny", "input": ["one", "two"]}, endpoint="/v1/embeddings")
        embedded = await lines.end_of(2)
        assert len(orjson.loads(embedded.body)["data"]) == 2
        assert embedded.input_tokens == 6
        await charges(mesh, 4)
        ids = [each.answer_id for each in mesh.auth.reserves]
        assert ids[:2] == [f"{LINE_ID}-0", f"{LINE_ID}-1"]
        assert sorted(ids[2:]) == [f"{2:032x}-0", f"{2:032x}-1"]


async def test_a_stopped_line_is_free_and_another_edge_continues_it_from_its_progress():
    worker = FakeWorker("w1", pause_at_index=3)
    async with edge_mesh(fakes=[worker]) as mesh, line_client(mesh.address) as lines:
        lines.start(1, completion(), line_id=LINE_ID)
        await asyncio.wait_for(worker.paused.get(), 20.0)
        await lines.wait(lambda: lines.running)
        await lines.wait(lambda: lines.progress)  # within two seconds
        lines.stop(1)
        stopped = await lines.end_of(1)
        assert (stopped.verdict, stopped.failure.reason) == (pb.LINE_VERDICT_LATER, "LINE_STOPPED")
        assert await charges(mesh, 1) == [(0, 0)]
        state = pb.LineState.FromString(lines.progress[1])
        assert (state.model_version, state.text) == ("d1", text_of(3))

        worker.pause_at_index = None
        lines.start(2, completion(), line_id=LINE_ID, progress=lines.progress[1], may_have_run=True)
        ended = await lines.end_of(2)
        assert orjson.loads(ended.body)["choices"][0]["text"] == text_of(5)
        assert (ended.input_tokens, ended.output_tokens) == (2, 5)
        assert worker.starts[-1].emitted == 3
        assert mesh.queue.tickets[-1].may_have_run
        assert [(each.answer_id, each.emitted_tokens) for each in mesh.auth.reserves] == [(LINE_ID, 0), (LINE_ID, 3)]
        assert [output for _, output in await charges(mesh, 1)] == [2]  # auth adds what the first run has made


async def test_progress_that_cannot_be_read_begins_the_line_anew():
    async with edge_mesh() as mesh, line_client(mesh.address) as lines:
        state = pb.LineState(model="tiny", model_version="d1")
        state.token_ids.append(5)
        empty = pb.LineState(model="tiny", model_version="d1")
        of_plain_text = state.SerializeToString()
        for number, progress in enumerate((b"\xff", empty.SerializeToString(), of_plain_text)):
            lines.start(number, completion(logprobs=2), progress=progress)
            assert orjson.loads((await lines.end_of(number)).body)["choices"][0]["text"] == text_of(5)


async def test_a_line_whose_tokens_the_model_does_not_know_begins_anew():
    async with edge_mesh() as mesh, line_client(mesh.address) as lines:
        state = pb.LineState(model="tiny", model_version="d1", token_ids=[10**6])
        lines.start(1, completion(), progress=state.SerializeToString())
        ended = await lines.end_of(1)
        assert (ended.verdict, ended.failure.reason) == (pb.LINE_VERDICT_LATER, "MODEL_REPLACED")
        assert lines.progress == {1: b""}
        lines.start(2, completion(), progress=lines.progress[1])
        assert orjson.loads((await lines.end_of(2)).body)["choices"][0]["text"] == text_of(5)
        lines.start(3, completion(prompt=[10**6]))  # tokens of its own
        assert (await lines.end_of(3)).verdict == pb.LINE_VERDICT_REFUSED


async def test_a_cut_stream_ends_its_lines_without_a_charge():
    worker = FakeWorker("w1", pause_at_index=3)
    async with edge_mesh(fakes=[worker]) as mesh:
        async with line_client(mesh.address) as lines:
            lines.start(1, completion())
            await asyncio.wait_for(worker.paused.get(), 20.0)
        assert await charges(mesh, 1) == [(0, 0)]
        await wait_at_rest(mesh)
        assert (await mesh.figures())["lines"] == 0


async def test_a_draining_edge_gives_its_lines_back_with_their_tokens():
    worker = FakeWorker("w1", pause_at_index=3)
    async with edge_mesh(fakes=[worker]) as mesh, line_client(mesh.address) as lines:
        lines.start(1, completion())
        await asyncio.wait_for(worker.paused.get(), 20.0)
        await lines.wait(lambda: lines.running)
        await mesh.drain()
        ended = await lines.end_of(1)
        assert (ended.verdict, ended.failure.reason) == (pb.LINE_VERDICT_LATER, "DRAINING")
        assert pb.LineState.FromString(lines.progress[1]).text == text_of(3)
        await lines.wait(lines.has_ended.is_set)
        assert await charges(mesh, 1) == [(0, 0)]


async def test_a_draining_edge_ends_a_line_whose_charge_is_on_the_way_and_refuses_others_after_it():
    async with edge_mesh() as mesh, line_client(mesh.address) as lines:
        mesh.auth.confirms_settlements = False
        lines.start(1, completion())
        assert await charges(mesh, 1) == [(2, 5)]
        draining = asyncio.create_task(mesh.drain())
        lines.start(2, completion())
        async with asyncio.timeout(TIMEOUT_S):
            while (await mesh.figures())["lines"] < 2:  # noqa: ASYNC110  # figures are polled
                await asyncio.sleep(0.01)
        assert not lines.ended
        mesh.auth.confirm()
        assert (await lines.end_of(1)).verdict == pb.LINE_VERDICT_ANSWERED
        refused = await lines.end_of(2)
        assert (refused.verdict, refused.failure.reason) == (pb.LINE_VERDICT_LATER, "DRAINING")
        await lines.wait(lines.has_ended.is_set)
        await draining


async def test_a_draining_edge_gives_back_a_line_whose_charge_is_not_confirmed(monkeypatch):
    monkeypatch.setattr(lines_service, "SETTLE_TIMEOUT_S", 0.05)
    async with edge_mesh() as mesh, line_client(mesh.address) as lines:
        mesh.auth.confirms_settlements = False
        lines.start(1, completion())
        assert await charges(mesh, 1) == [(2, 5)]
        await mesh.drain()
        assert (await lines.end_of(1)).failure.reason == "DRAINING"
        assert pb.LineState.FromString(lines.progress[1]).text == text_of(5)
        mesh.auth.confirm()


async def test_a_number_that_is_in_use_costs_its_sender_the_stream():
    worker = FakeWorker("w1", pause_at_index=3)
    async with (
        edge_mesh(fakes=[worker]) as mesh,
        line_client(mesh.address) as lines,
        line_client(mesh.address) as other,
    ):
        other.start(1, completion())
        handle = await asyncio.wait_for(worker.paused.get(), 20.0)
        lines.is_up.clear()
        for _ in range(2):
            lines.start(1, completion())
        async with asyncio.timeout(20.0):
            await lines.is_up.wait()  # the link has connected again
        assert lines.ended == {}
        worker.send_tokens(handle)
        assert (await other.end_of(1)).verdict == pb.LINE_VERDICT_ANSWERED
        await wait_at_rest(mesh)
