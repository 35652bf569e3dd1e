"""A real edge between a caller and fakes of the tiers behind it."""

import asyncio
from datetime import timedelta

import pytest
import structlog

from edge_calls import read_answer, read_tokens, rejected_call, wait_at_rest
from edge_mesh import CONTEXT, KEY, edge_mesh, text_of, token_at
from penstock.chassis.errors import Overloaded, QuotaExceeded
from penstock.v1.inference_pb2 import (
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    Chat,
    CountTokensRequest,
    ListModelsRequest,
    Message,
    Sampling,
)

ROOT = "text_completion tiny"  # the span of a request
MAX_OVERLAP_NS = 1_000_000  # of a span beyond its parent


async def test_a_request_is_reserved_queued_run_streamed_and_settled():
    async with edge_mesh() as mesh:
        accepted, text, ids, finished = await read_answer(
            mesh.generate("hi", request_id="mine", max_output_tokens=9, explain=True, sampling=Sampling(seed=5))
        )
        assert (accepted.request_id, accepted.model, accepted.prompt_tokens, accepted.seed) == ("mine", "tiny", 2, 5)
        assert (text, ids) == (text_of(9), [token_at(index) for index in range(9)])
        assert finished.reason == FINISH_REASON_LENGTH
        assert (finished.usage.prompt_tokens, finished.usage.output_tokens) == (2, 9)
        lengths = [stage.length.ToNanoseconds() for stage in finished.timeline.stages]
        assert sum(lengths) == finished.timeline.total.ToNanoseconds()
        assert [stage.name for stage in finished.timeline.stages] == [
            *("tokenize", "admission", "wait", "placement", "dispatch", "wait", "prefill", "decode", "finish")
        ]
        settle = await mesh.auth.settles.get()
        assert (settle.prompt_tokens, settle.output_tokens, settle.outcome) == (2, 9, "length")
        await wait_at_rest(mesh)


async def test_queue_and_auth_get_sizes_and_the_worker_alone_gets_ids():
    async with edge_mesh() as mesh:
        await read_answer(mesh.generate("x" * 40, max_output_tokens=3))
        (ticket,), (reserve,), (start,) = mesh.queue.tickets, mesh.auth.reserves, mesh.workers[0].starts
        assert (ticket.prompt_tokens, ticket.max_output_tokens, ticket.tenant_id) == (40, 3, "acme")
        assert (reserve.prompt_tokens, reserve.max_output_tokens) == (40, 3)
        assert len(start.token_ids) == 40
        assert len(ticket.prefix_hashes) == 2  # two full blocks of 16
        assert ticket.traceparent == start.traceparent == reserve.traceparent != ""


async def test_a_conversation_is_rendered_with_the_models_template():
    async with edge_mesh() as mesh:
        chat = Chat(messages=[Message(role="user", content="hi")])
        await read_answer(mesh.generate(text=None, chat=chat, max_output_tokens=1))
        count = await mesh.inference.CountTokens(CountTokensRequest(chat=chat, include_token_ids=True), metadata=KEY)
        assert list(count.token_ids) == list(mesh.workers[0].starts[0].token_ids)
        assert (count.prompt_tokens, count.context_length) == (len(count.token_ids), CONTEXT)


async def test_models_are_listed_with_their_limits():
    async with edge_mesh(workers=2) as mesh:
        await read_answer(mesh.generate(max_output_tokens=1))
        (model,) = (await mesh.inference.ListModels(ListModelsRequest(), metadata=KEY)).models
        assert (model.name, model.context_length, model.workers_hint) == ("tiny", CONTEXT, 2)


async def test_a_stop_string_cancels_the_run_and_is_not_part_of_the_answer():
    async with edge_mesh() as mesh:
        mesh.workers[0].pause_at_index = 10
        _, text, ids, finished = await read_answer(mesh.generate(max_output_tokens=50, stop=["ef"]))
        assert (text, finished.reason, finished.stop_string) == ("abcd", FINISH_REASON_STOP, "ef")
        assert finished.usage.output_tokens == len(ids) == 6
        assert await mesh.workers[0].cancels.get() == 1


async def test_logprobs_are_sent_only_if_requested():
    async with edge_mesh() as mesh:
        for requested, expected in ((True, [-0.5, -0.5]), (False, [])):
            logprobs = []
            async for frame in mesh.generate(max_output_tokens=2, sampling=Sampling(logprobs=requested)):
                logprobs += frame.delta.logprobs
            assert logprobs == expected


async def test_the_likeliest_tokens_of_each_token_are_sent_if_requested():
    async with edge_mesh() as mesh:
        top = []
        async for frame in mesh.generate(max_output_tokens=2, sampling=Sampling(top_logprobs=2)):
            top += zip(frame.delta.top_token_ids, frame.delta.top_logprobs, strict=True)
        assert top == [(token_at(0), -0.5), (token_at(1), -1.5), (token_at(1), -0.5), (token_at(2), -1.5)]
        assert mesh.workers[0].starts[0].sampling.logprobs


async def test_one_trace_goes_through_the_edge_to_every_tier_behind_it(receiver):
    trace_id = "e" * 31 + "1"
    traceparent = f"00-{trace_id}-{'c' * 16}-01"
    async with edge_mesh() as mesh:
        _, _, _, finished = await read_answer(
            mesh.generate(max_output_tokens=3, explain=True, metadata=(*KEY, ("traceparent", traceparent)))
        )
        assert finished.timeline.trace_id == trace_id
        names = (ROOT, "edge.tokenize", "edge.admission", "penstock.v1.Inference/Generate")
        spans = {
            span.name: span for span in await asyncio.to_thread(receiver.wait_for_spans, *names, trace_id=trace_id)
        }
        root = spans[ROOT]
        assert spans["penstock.v1.Inference/Generate"].parent_id == "c" * 16
        assert root.parent_id == spans["penstock.v1.Inference/Generate"].span_id
        assert spans["edge.tokenize"].parent_id == spans["edge.admission"].parent_id == root.span_id
        below = f"00-{trace_id}-{root.span_id}-01"
        assert mesh.queue.tickets[0].traceparent == mesh.workers[0].starts[0].traceparent == below
        assert mesh.auth.reserves[0].traceparent == below
        assert root.attributes["gen_ai.usage.output_tokens"] == 3
        assert root.attributes["gen_ai.response.finish_reasons"] == ["length"]
        assert root.attributes["penstock.tenant_id"] == "acme"


async def rejected_by_auth(mesh, **fields):
    mesh.auth.rejections.append(QuotaExceeded("slow down", retry_after=1.0))
    await rejected_call(mesh.generate(**fields))


async def rejected_by_the_queue(mesh, **fields):
    mesh.queue.sheds.append(Overloaded("full", reason="QUEUE_FULL", retry_after=1.5))
    await rejected_call(mesh.generate(**fields))


async def rejected_by_the_edge(mesh, **fields):
    await rejected_call(mesh.generate("x" * (CONTEXT + 1), **fields))


async def cancelled_as_it_waits(mesh, **fields):
    mesh.queue.holds_tickets = True
    call = mesh.generate(**fields)
    await mesh.queue.held_tickets.get()
    call.cancel()
    await mesh.queue.withdrawn.get()


async def cancelled_as_it_runs(mesh, **fields):
    mesh.workers[0].pause_at_index = 1
    call = mesh.generate(**fields)
    await read_tokens(call, 1)
    call.cancel()
    await mesh.workers[0].cancels.get()


async def failed_at_its_deadline(mesh, **fields):
    mesh.queue.holds_tickets = True
    await rejected_call(mesh.generate(timeout=timedelta(seconds=0.05), **fields))


REQUEST_ENDINGS = [
    *(rejected_by_auth, rejected_by_the_queue, rejected_by_the_edge),
    *(cancelled_as_it_waits, cancelled_as_it_runs, failed_at_its_deadline),
]


@pytest.mark.parametrize("ending", REQUEST_ENDINGS, ids=lambda ending: ending.__name__)
async def test_every_stage_span_lies_within_its_request_at_every_end(receiver, ending):
    trace_id = f"{REQUEST_ENDINGS.index(ending) + 1:032x}"
    traceparent = ("traceparent", f"00-{trace_id}-{'c' * 16}-01")
    async with edge_mesh() as mesh:
        await ending(mesh, metadata=(*KEY, traceparent))
        await wait_at_rest(mesh)
        names = ("edge.tokenize", "penstock.v1.Inference/Generate")
        spans = await asyncio.to_thread(receiver.wait_for_spans, *names, trace_id=trace_id)
    (root,) = [span for span in spans if span.name.startswith("text_completion")]
    (call,) = [span for span in spans if span.kind == "SERVER"]
    assert root.parent_id == call.span_id
    assert root.end_unix_nano <= call.end_unix_nano + MAX_OVERLAP_NS
    assert root.status == ("ERROR" if ending in (rejected_by_the_queue, failed_at_its_deadline) else "UNSET")
    stages = [span for span in spans if span.parent_id == root.span_id]
    assert stages
    for stage in stages:
        assert root.start_unix_nano <= stage.start_unix_nano <= stage.end_unix_nano <= root.end_unix_nano, stage.name


async def test_each_request_logs_one_line(receiver):
    with structlog.testing.capture_logs() as logs:
        async with edge_mesh() as mesh:
            accepted, *_ = await read_answer(mesh.generate("a secret prompt", max_output_tokens=3, request_id="mine"))
            await wait_at_rest(mesh)
    (line,) = [line for line in logs if line["event"] == "ticket_done"]
    assert (line["request_id"], line["tenant"], line["outcome"], line["worker_id"]) == ("mine", "acme", "length", "w1")
    assert (line["prompt_tokens"], line["output_tokens"], line["attempts"]) == (accepted.prompt_tokens, 3, 1)
    assert 0 < line["ttft_s"] <= line["total_s"]
    assert not any("secret" in str(value) or "good" in str(value) for entry in logs for value in entry.values())
