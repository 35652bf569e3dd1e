"""A real edge between a caller and fakes of the tiers behind it."""

import asyncio
import threading
from datetime import timedelta

import grpc
import pytest
import structlog

from edge_mesh import CONTEXT, KEY, PATIENCE, edge_mesh, text_of, token_at
from penstock.chassis.errors import Overloaded, Unavailable, error_from_rpc
from penstock.edge.config import EdgeConfig
from penstock.edge.gateway import Gateway
from penstock.edge.request import limits
from penstock.edge.threads import SMALL, Threads
from penstock.v1.inference_pb2 import (
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    Chat,
    CountTokensRequest,
    ListModelsRequest,
    Message,
    Resume,
    Sampling,
)


async def read(call):
    """Whole answer: accepted, text, ids, finished; indexes must be contiguous."""
    accepted, text, ids, finished, first = None, "", [], None, None
    while (frame := await call.read()) is not grpc.aio.EOF:
        kind = frame.WhichOneof("frame")
        if kind == "accepted":
            accepted = frame.accepted
        elif kind == "delta":
            first = frame.delta.first_index if first is None else first
            assert frame.delta.first_index == first + len(ids)
            text += frame.delta.text
            ids += frame.delta.token_ids
        else:
            finished = frame.finished
    return accepted, text, ids, finished


async def some_tokens(call, count):
    """The first `count` tokens of an answer that goes no further for now."""
    ids = []
    while len(ids) < count:
        ids += (await call.read()).delta.token_ids
    return ids


async def refusing(mesh):
    """Return once the edge takes no new calls."""
    while True:
        try:
            await mesh.figures()
        except grpc.aio.AioRpcError:
            return


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await read(call)
    return error_from_rpc(failure.value)


async def at_rest(mesh):
    figures = await mesh.figures()
    while figures["flights"] or figures["reservations_open"]:
        figures = await mesh.figures()
    assert not mesh.auth.open
    return figures


async def test_a_request_is_reserved_queued_run_streamed_and_settled():
    async with edge_mesh() as mesh:
        accepted, text, ids, finished = await read(
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
        await at_rest(mesh)


async def test_queue_and_auth_get_sizes_and_the_worker_alone_gets_ids():
    async with edge_mesh() as mesh:
        await read(mesh.generate("x" * 40, max_output_tokens=3))
        (ticket,), (reserve,), (start,) = mesh.queue.tickets, mesh.auth.reserves, mesh.workers[0].starts
        assert (ticket.prompt_tokens, ticket.max_output_tokens, ticket.tenant_id) == (40, 3, "acme")
        assert (reserve.prompt_tokens, reserve.max_output_tokens) == (40, 3)
        assert len(start.token_ids) == 40
        assert len(ticket.prefix_hashes) == 2  # two full blocks of 16
        assert ticket.traceparent == start.traceparent == reserve.traceparent != ""


async def test_a_conversation_is_rendered_with_the_models_template():
    async with edge_mesh() as mesh:
        chat = Chat(messages=[Message(role="user", content="hi")])
        await read(mesh.generate(text=None, chat=chat, max_output_tokens=1))
        count = await mesh.inference.CountTokens(CountTokensRequest(chat=chat, include_token_ids=True), metadata=KEY)
        assert list(count.token_ids) == list(mesh.workers[0].starts[0].token_ids)
        assert (count.prompt_tokens, count.context_length) == (len(count.token_ids), CONTEXT)


async def test_models_are_listed_with_their_limits():
    async with edge_mesh(workers=2) as mesh:
        await read(mesh.generate(max_output_tokens=1))
        (model,) = (await mesh.inference.ListModels(ListModelsRequest(), metadata=KEY)).models
        assert (model.name, model.context_length, model.workers_hint) == ("tiny", CONTEXT, 2)


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer bad"),)])
async def test_an_unknown_key_is_refused_everywhere(metadata):
    async with edge_mesh() as mesh:
        error = await refused(mesh.generate(metadata=metadata))
        assert (error.code, error.reason) == (grpc.StatusCode.UNAUTHENTICATED, "KEY_UNKNOWN")
        for call in (
            mesh.inference.ListModels(ListModelsRequest(), metadata=metadata),
            mesh.inference.CountTokens(CountTokensRequest(text="hi"), metadata=metadata),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await call
            assert failure.value.code() == grpc.StatusCode.UNAUTHENTICATED
        await at_rest(mesh)


async def test_a_long_prompt_is_not_tokenized_for_nobody():
    async with edge_mesh() as mesh:
        long = "far more than the context holds " * 4_000
        stranger = await refused(mesh.generate(long, metadata=(("authorization", "Bearer bad"),)))
        assert stranger.reason == "KEY_UNKNOWN"
        assert (await refused(mesh.generate(long))).reason == "PROMPT_TOO_LONG"
        await at_rest(mesh)


async def test_a_shed_ticket_becomes_a_status_that_says_when_to_come_back():
    async with edge_mesh() as mesh:
        mesh.queue.sheds.append(Overloaded("full", reason="QUEUE_FULL", retry_after=1.5))
        error = await refused(mesh.generate())
        assert (error.code, error.reason, error.retry_after) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "QUEUE_FULL",
            1.5,
        )
        settle = await mesh.auth.settles.get()
        assert (settle.prompt_tokens, settle.output_tokens, settle.outcome) == (0, 0, "shed")


async def test_a_prompt_over_the_context_is_refused_with_the_numbers():
    async with edge_mesh() as mesh:
        error = await refused(mesh.generate("x" * 600))
        assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PROMPT_TOO_LONG")
        assert (error.metadata["prompt_tokens"], error.metadata["context_length"]) == ("600", str(CONTEXT))
        error = await refused(mesh.generate("x" * 500, max_output_tokens=13))
        assert error.field_violations[0].field == "max_output_tokens"
        assert not mesh.auth.reserves


async def test_wrong_fields_are_named_as_the_contract_calls_them():
    async with edge_mesh() as mesh:
        error = await refused(mesh.generate(sampling=Sampling(temperature=9.0), stop=[""]))
        assert {violation.field for violation in error.field_violations} == {"sampling.temperature", "stop"}
        assert (await refused(mesh.generate(text=None))).reason == "INPUT_MISSING"
        assert (await refused(mesh.generate(model="other"))).reason == "MODEL_UNKNOWN"


async def test_a_stop_string_cancels_the_run_and_is_not_part_of_the_answer():
    async with edge_mesh() as mesh:
        mesh.workers[0].pause_at = 10
        _, text, ids, finished = await read(mesh.generate(max_output_tokens=50, stop=["ef"]))
        assert (text, finished.reason, finished.stop_string) == ("abcd", FINISH_REASON_STOP, "ef")
        assert finished.usage.output_tokens == len(ids) == 6
        assert await mesh.workers[0].cancels.get() == 1


async def test_a_client_that_leaves_frees_the_gpu_and_is_charged_what_was_made():
    async with edge_mesh() as mesh:
        mesh.workers[0].pause_at = 4
        call = mesh.generate(max_output_tokens=50)
        await mesh.workers[0].paused.get()
        call.cancel()
        assert await mesh.workers[0].cancels.get() == 1
        settle = await mesh.auth.settles.get()
        assert (settle.prompt_tokens, settle.output_tokens, settle.outcome) == (2, 4, "cancelled")
        figures = await at_rest(mesh)
        assert (figures["cancels"], figures["receipts"]) == (1, 1)


async def test_a_client_that_leaves_while_it_waits_takes_its_ticket_along():
    async with edge_mesh() as mesh:
        mesh.queue.is_holding = True
        call = mesh.generate()
        ticket = await mesh.queue.held.get()
        call.cancel()
        assert await mesh.queue.withdrawn.get() == [ticket.ticket_id]
        settle = await mesh.auth.settles.get()
        assert (settle.output_tokens, settle.outcome) == (0, "cancelled")
        (peer,) = mesh.queue.peers
        peer.send(mesh.queue.lease(ticket))  # placed while the withdrawal was on its way
        assert await mesh.queue.withdrawn.get() == [ticket.ticket_id]
        assert not mesh.workers[0].starts


async def test_a_worker_that_dies_mid_answer_costs_no_token_and_repeats_none():
    async with edge_mesh(workers=2) as mesh:
        mesh.workers[0].pause_at = 5
        call = mesh.generate("hi", max_output_tokens=12, explain=True)
        before = await some_tokens(call, 5)
        mesh.workers[0].die()
        _, text, ids, finished = await read(call)
        assert before == [token_at(index) for index in range(5)]
        assert (text, ids) == (text_of(12)[5:], [token_at(index) for index in range(5, 12)])
        assert finished.usage.output_tokens == 12
        assert (finished.timeline.attempts, finished.timeline.worker_id) == (2, "w2")
        first, second = mesh.queue.tickets
        assert (second.attempt, list(second.avoid_workers)) == (2, ["w1"])
        assert (second.ticket_id, second.enqueue_unix_nano) == (first.ticket_id, first.enqueue_unix_nano)
        assert (second.prompt_tokens, second.max_output_tokens) == (7, 7)
        (start,), (again,) = mesh.workers[0].starts, mesh.workers[1].starts
        assert (list(again.token_ids[:2]), again.emitted) == (list(start.token_ids), 5)
        assert again.sampling.seed == start.sampling.seed
        await at_rest(mesh)


async def test_an_answer_goes_on_at_the_only_worker_whose_stream_was_cut():
    async with edge_mesh() as mesh:
        mesh.workers[0].pause_at = 5
        call = mesh.generate("hi", max_output_tokens=12)
        before = await some_tokens(call, 5)
        mesh.queue.sheds.append(Unavailable("no other is left", reason="NO_WORKER", retry_after=PATIENCE))
        mesh.workers[0].pause_at = None
        mesh.workers[0].die()
        assert before + (await read(call))[2] == [token_at(index) for index in range(12)]
        assert [list(each.avoid_workers) for each in mesh.queue.tickets] == [[], ["w1"], []]


async def test_a_queue_that_starts_again_gets_its_waiting_tickets_back():
    async with edge_mesh() as mesh:
        mesh.queue.is_holding = True
        reading = asyncio.create_task(read(mesh.generate(max_output_tokens=2)))
        await mesh.queue.held.get()
        mesh.queue.is_holding = False
        for peer in list(mesh.queue.peers):
            peer.close("killed")
        _, text, _, _ = await reading
        assert text == "ab"
        first, second = mesh.queue.tickets
        assert (second.attempt, second.enqueue_unix_nano) == (1, first.enqueue_unix_nano)


async def test_a_lost_shards_tickets_go_to_another_at_once():
    async with edge_mesh(shards=2) as mesh:
        while (await mesh.figures())["queue_links_up"] < 2:
            pass
        for queue in mesh.queues:
            queue.is_holding = True
        reading = asyncio.create_task(read(mesh.generate(max_output_tokens=2)))
        held = [asyncio.create_task(queue.held.get()) for queue in mesh.queues]
        await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
        home, other = mesh.queues if held[0].done() else reversed(mesh.queues)
        assert not other.tickets
        other.is_holding = False
        for peer in list(home.peers):
            peer.close("killed")
        assert (await reading)[1] == "ab"
        assert other.tickets == home.tickets
        for waiting in held:
            waiting.cancel()


async def test_a_draining_queue_is_asked_again_only_when_it_is_back():
    async with edge_mesh() as mesh:
        mesh.queue.sheds.append(Unavailable("drains", reason="DRAINING", retry_after=1.0))
        reading = asyncio.create_task(read(mesh.generate(max_output_tokens=2)))
        while not mesh.queue.tickets:
            await mesh.figures()
        for peer in list(mesh.queue.peers):
            peer.close("gone")
        assert (await reading)[1] == "ab"
        assert len(mesh.queue.tickets) == 2


async def test_an_auth_that_dies_before_it_answers_is_asked_again():
    async with edge_mesh() as mesh:
        heard = asyncio.Queue()
        answer, mesh.auth.answer = mesh.auth.answer, heard.put_nowait
        call = mesh.generate(max_output_tokens=2)
        lost = (await heard.get()).reserve
        assert (await mesh.figures())["flights_reserving"] == 1
        mesh.auth.answer = answer
        for peer in list(mesh.auth.peers):
            peer.close("killed")
        assert (await read(call))[1] == "ab"
        assert mesh.auth.reserves == [lost]


async def test_a_settlement_is_said_again_until_auth_confirms_it():
    async with edge_mesh() as mesh:
        answer = mesh.auth.answer
        mesh.auth.answer = lambda frame: None if frame.HasField("settle") else answer(frame)
        await read(mesh.generate(max_output_tokens=2))
        assert (await mesh.figures())["reservations_open"] == 1
        mesh.auth.answer = answer
        for peer in list(mesh.auth.peers):
            peer.close("killed")
        assert (await mesh.auth.settles.get()).outcome == "length"
        await at_rest(mesh)


async def test_a_client_too_far_behind_loses_its_request_and_can_resume():
    async with edge_mesh(client_buffer=64) as mesh:
        mesh.workers[0].is_bursting = True
        error = await refused(mesh.generate(max_output_tokens=40))
        assert (error.code, error.reason) == (grpc.StatusCode.ABORTED, "CLIENT_TOO_SLOW")
        assert await mesh.workers[0].cancels.get() == 1
        _, text, _, _ = await read(mesh.generate(max_output_tokens=12))
        assert text == text_of(12)


async def test_the_deadline_ends_a_waiting_request():
    async with edge_mesh() as mesh:
        mesh.queue.is_holding = True
        error = await refused(mesh.generate(timeout=timedelta(seconds=0.2)))
        assert (error.code, error.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE")
        assert await mesh.queue.withdrawn.get()
        assert 0 < mesh.queue.tickets[0].deadline_unix_nano - mesh.queue.tickets[0].enqueue_unix_nano < 2e8


async def test_an_answer_is_resumed_after_the_tokens_its_client_has():
    async with edge_mesh() as mesh:
        had = [token_at(index) for index in range(3)]
        _, text, ids, finished = await read(
            mesh.generate("hi", max_output_tokens=6, resume=Resume(token_ids=had), sampling=Sampling(seed=1))
        )
        assert (text, ids) == ("def", [token_at(index) for index in range(3, 6)])
        assert finished.usage.output_tokens == 3


async def test_logprobs_come_only_to_those_who_ask():
    async with edge_mesh() as mesh:
        for asked, expected in ((True, [-0.5, -0.5]), (False, [])):
            got = []
            async for frame in mesh.generate(max_output_tokens=2, sampling=Sampling(logprobs=asked)):
                got += frame.delta.logprobs
            assert got == expected


async def test_a_full_edge_says_so_at_once_and_when_to_come_back():
    async with edge_mesh(max_flights=1) as mesh:
        mesh.queue.is_holding = True
        first = mesh.generate()
        await mesh.queue.held.get()
        error = await refused(mesh.generate())
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "EDGE_FULL")
        assert error.retry_after > 0
        first.cancel()


async def test_all_that_a_caller_sends_counts_against_the_room_there_is():
    async with edge_mesh(max_bytes=4_000) as mesh:
        for much in (
            {"text": "x" * 4_001},
            {"text": "x", "resume": Resume(token_ids=[token_at(0)] * 200)},
            {"text": None, "chat": Chat(messages=[Message(role="r" * 60, content="")] * 70)},
        ):
            assert (await refused(mesh.generate(**much))).reason == "EDGE_FULL"
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await mesh.inference.CountTokens(CountTokensRequest(text="x" * 4_001), metadata=KEY)
        assert error_from_rpc(failure.value).reason == "EDGE_FULL"
        assert (await mesh.inference.CountTokens(CountTokensRequest(text="x" * 400), metadata=KEY)).prompt_tokens == 400
        assert (await at_rest(mesh))["held_bytes"] == 0


async def test_a_long_body_is_parsed_off_the_loop_and_a_short_one_at_once():
    with Threads(1) as threads:
        gateway = Gateway(EdgeConfig(), None, None, threads)
        assert await gateway.parsed(SMALL, threading.get_ident) == threading.get_ident()
        assert await gateway.parsed(SMALL + 1, threading.get_ident) != threading.get_ident()


async def test_a_message_above_the_cap_is_refused_before_it_is_parsed():
    async with edge_mesh() as mesh:
        error = await refused(mesh.generate("x" * limits.BODY_BYTES))
        assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(limits.BODY_BYTES) in error.message


async def test_one_trace_goes_through_the_edge_to_every_tier_behind_it(receiver):
    trace_id = "e" * 31 + "1"
    traceparent = f"00-{trace_id}-{'c' * 16}-01"
    async with edge_mesh() as mesh:
        _, _, _, finished = await read(
            mesh.generate(max_output_tokens=3, explain=True, metadata=(*KEY, ("traceparent", traceparent)))
        )
        assert finished.timeline.trace_id == trace_id
        names = ("edge.generate", "edge.tokenize", "edge.admission", "penstock.v1.Inference/Generate")
        spans = {
            span.name: span for span in await asyncio.to_thread(receiver.wait_for_spans, *names, trace_id=trace_id)
        }
        root = spans["edge.generate"]
        assert spans["penstock.v1.Inference/Generate"].parent_id == "c" * 16
        assert root.parent_id == spans["penstock.v1.Inference/Generate"].span_id
        assert spans["edge.tokenize"].parent_id == spans["edge.admission"].parent_id == root.span_id
        below = f"00-{trace_id}-{root.span_id}-01"
        assert mesh.queue.tickets[0].traceparent == mesh.workers[0].starts[0].traceparent == below
        assert mesh.auth.reserves[0].traceparent == below
        assert root.attributes["gen_ai.usage.output_tokens"] == 3
        assert root.attributes["gen_ai.response.finish_reasons"] == ["length"]
        assert root.attributes["penstock.tenant_id"] == "acme"


async def test_each_request_of_a_log_is_one_wide_line(receiver):
    with structlog.testing.capture_logs() as logs:
        async with edge_mesh() as mesh:
            accepted, *_ = await read(mesh.generate("a secret prompt", max_output_tokens=3, request_id="mine"))
            await at_rest(mesh)
    (line,) = [line for line in logs if line["event"] == "ticket_done"]
    assert (line["request_id"], line["tenant"], line["outcome"], line["worker_id"]) == ("mine", "acme", "length", "w1")
    assert (line["prompt_tokens"], line["output_tokens"], line["attempts"]) == (accepted.prompt_tokens, 3, 1)
    assert 0 < line["ttft_s"] <= line["total_s"]
    assert not any("secret" in str(value) or "good" in str(value) for entry in logs for value in entry.values())


async def test_a_drained_edge_lets_running_answers_end():
    async with edge_mesh(drain_grace=PATIENCE) as mesh:
        mesh.workers[0].pause_at = 3
        call = mesh.generate(max_output_tokens=9)
        await some_tokens(call, 3)
        draining = asyncio.create_task(mesh.drain())
        await refusing(mesh)
        mesh.workers[0].go_on(1)
        assert (await read(call))[1] == text_of(9)[3:]
        await draining
        assert (await mesh.auth.settles.get()).outcome == "length"


async def test_answers_that_outlast_the_grace_are_cancelled_down_to_the_gpu():
    async with edge_mesh() as mesh:
        mesh.workers[0].pause_at = 3
        call = mesh.generate(max_output_tokens=9)
        await some_tokens(call, 3)
        await mesh.drain()
        assert await mesh.workers[0].cancels.get() == 1
        assert (await mesh.auth.settles.get()).outcome == "cancelled"
        with pytest.raises(grpc.aio.AioRpcError):
            await read(call)
