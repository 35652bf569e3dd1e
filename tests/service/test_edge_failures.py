"""Lost workers, queues, auth and clients of a real edge: answers resume, tickets move, nothing is charged twice."""

import asyncio

import grpc
import pytest

from edge_calls import read_answer, read_tokens, rejected_call, wait_at_rest, wait_rejecting
from edge_mesh import TIMEOUT_S, edge_mesh, text_of, token_at
from penstock.chassis.errors import Unavailable
from penstock.v1.inference_pb2 import (
    Resume,
    Sampling,
)


async def test_a_cancel_stops_the_run_and_charges_generated_tokens():
    async with edge_mesh() as mesh:
        mesh.workers[0].pause_at_index = 4
        call = mesh.generate(max_output_tokens=50)
        await mesh.workers[0].paused.get()
        call.cancel()
        assert await mesh.workers[0].cancels.get() == 1
        settle = await mesh.auth.settles.get()
        assert (settle.prompt_tokens, settle.output_tokens, settle.outcome) == (2, 4, "cancelled")
        figures = await wait_at_rest(mesh)
        assert (figures["cancels"], figures["cancels_acknowledged"]) == (1, 1)


async def test_a_cancel_while_queued_withdraws_the_ticket():
    async with edge_mesh() as mesh:
        mesh.queue.holds_tickets = True
        call = mesh.generate()
        ticket = await mesh.queue.held_tickets.get()
        call.cancel()
        assert await mesh.queue.withdrawn.get() == [ticket.ticket_id]
        settle = await mesh.auth.settles.get()
        assert (settle.output_tokens, settle.outcome) == (0, "cancelled")
        (peer,) = mesh.queue.peers
        peer.send(mesh.queue.lease(ticket))  # placed before the withdrawal arrived
        assert await mesh.queue.withdrawn.get() == [ticket.ticket_id]
        assert not mesh.workers[0].starts


async def test_a_worker_lost_mid_answer_loses_no_token_and_repeats_none():
    async with edge_mesh(workers=2) as mesh:
        mesh.workers[0].pause_at_index = 5
        call = mesh.generate("hi", max_output_tokens=12, explain=True)
        before = await read_tokens(call, 5)
        mesh.workers[0].cut_streams()
        _, text, ids, finished = await read_answer(call)
        assert before == [token_at(index) for index in range(5)]
        assert (text, ids) == (text_of(12)[5:], [token_at(index) for index in range(5, 12)])
        assert finished.usage.output_tokens == 12
        assert (finished.timeline.attempts, finished.timeline.worker_id) == (2, "w2")
        first, second = mesh.queue.tickets
        assert (second.attempt, list(second.avoid_workers)) == (2, ["w1"])
        assert (second.ticket_id, second.age_nanos > first.age_nanos) == (first.ticket_id, True)
        assert (second.prompt_tokens, second.max_output_tokens) == (7, 7)
        (start,), (again,) = mesh.workers[0].starts, mesh.workers[1].starts
        assert (list(again.token_ids[:2]), again.emitted) == (list(start.token_ids), 5)
        assert again.sampling.seed == start.sampling.seed
        await wait_at_rest(mesh)


async def test_an_answer_resumes_at_the_only_worker_after_its_stream_is_lost():
    async with edge_mesh() as mesh:
        mesh.workers[0].pause_at_index = 5
        call = mesh.generate("hi", max_output_tokens=12)
        before = await read_tokens(call, 5)
        mesh.queue.sheds.append(Unavailable("no other is left", reason="NO_WORKER", retry_after=TIMEOUT_S))
        mesh.workers[0].pause_at_index = None
        mesh.workers[0].cut_streams()
        assert before + (await read_answer(call))[2] == [token_at(index) for index in range(12)]
        assert [list(each.avoid_workers) for each in mesh.queue.tickets] == [[], ["w1"], []]


async def test_a_restarted_queue_receives_the_waiting_tickets():
    async with edge_mesh() as mesh:
        mesh.queue.holds_tickets = True
        reading = asyncio.create_task(read_answer(mesh.generate(max_output_tokens=2)))
        await mesh.queue.held_tickets.get()
        mesh.queue.holds_tickets = False
        for peer in list(mesh.queue.peers):
            peer.close("killed")
        _, text, _, _ = await reading
        assert text == "ab"
        first, second = mesh.queue.tickets
        assert (second.attempt, second.age_nanos > first.age_nanos) == (1, True)


async def test_the_tickets_of_a_lost_shard_move_to_another_at_once():
    async with edge_mesh(shards=2) as mesh:
        while (await mesh.figures())["queue_links_up"] < 2:
            pass
        for queue in mesh.queues:
            queue.holds_tickets = True
        reading = asyncio.create_task(read_answer(mesh.generate(max_output_tokens=2)))
        held = [asyncio.create_task(queue.held_tickets.get()) for queue in mesh.queues]
        await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
        home, other = mesh.queues if held[0].done() else reversed(mesh.queues)
        assert not other.tickets
        other.holds_tickets = False
        for peer in list(home.peers):
            peer.close("killed")
        assert (await reading)[1] == "ab"
        (first,), (moved,) = home.tickets, other.tickets
        assert (moved.ticket_id, moved.attempt, moved.readmitted) == (first.ticket_id, 1, True)
        assert moved.age_nanos > first.age_nanos
        assert 0 < moved.time_left_nanos < first.time_left_nanos
        for waiting in held:
            waiting.cancel()


async def test_a_draining_queue_receives_no_ticket_until_it_reconnects():
    async with edge_mesh() as mesh:
        mesh.queue.sheds.append(Unavailable("drains", reason="DRAINING", retry_after=1.0))
        reading = asyncio.create_task(read_answer(mesh.generate(max_output_tokens=2)))
        while not mesh.queue.tickets:
            await mesh.figures()
        for peer in list(mesh.queue.peers):
            peer.close("gone")
        assert (await reading)[1] == "ab"
        assert len(mesh.queue.tickets) == 2


async def test_a_reservation_is_resent_if_auth_is_lost_before_it_answers():
    async with edge_mesh() as mesh:
        frames = asyncio.Queue()
        answer = mesh.auth.answer
        mesh.auth.answer = lambda frame: answer(frame) if frame.HasField("identify") else frames.put_nowait(frame)
        call = mesh.generate(max_output_tokens=2)
        lost = (await frames.get()).reserve
        assert (await mesh.figures())["requests_reserving"] == 1
        mesh.auth.answer = answer
        for peer in list(mesh.auth.peers):
            peer.close("killed")
        assert (await read_answer(call))[1] == "ab"
        assert mesh.auth.reserves == [lost]


async def test_a_settlement_is_resent_until_auth_confirms_it():
    async with edge_mesh() as mesh:
        answer = mesh.auth.answer
        mesh.auth.answer = lambda frame: None if frame.HasField("settle") else answer(frame)
        await read_answer(mesh.generate(max_output_tokens=2))
        assert (await mesh.figures())["reservations_open"] == 1
        mesh.auth.answer = answer
        for peer in list(mesh.auth.peers):
            peer.close("killed")
        assert (await mesh.auth.settles.get()).outcome == "length"
        await wait_at_rest(mesh)


async def test_a_client_that_does_not_read_loses_its_request_and_can_resume():
    async with edge_mesh(response_buffer_bytes=64) as mesh:
        mesh.workers[0].sends_one_frame = True
        error = await rejected_call(mesh.generate(max_output_tokens=40))
        assert (error.code, error.reason) == (grpc.StatusCode.ABORTED, "CLIENT_TOO_SLOW")
        assert await mesh.workers[0].cancels.get() == 1
        _, text, _, _ = await read_answer(mesh.generate(max_output_tokens=12))
        assert text == text_of(12)


async def test_an_answer_is_resumed_after_the_tokens_its_client_has():
    async with edge_mesh() as mesh:
        had = [token_at(index) for index in range(3)]
        _, text, ids, finished = await read_answer(
            mesh.generate("hi", max_output_tokens=6, resume=Resume(token_ids=had), sampling=Sampling(seed=1))
        )
        assert (text, ids) == ("def", [token_at(index) for index in range(3, 6)])
        assert finished.usage.output_tokens == 3


@pytest.mark.parametrize("known", [{"answer_id": "0" * 32}, {"token_ids": [token_at(0)]}], ids=["by name", "by tokens"])
async def test_the_ticket_of_a_resumed_answer_is_marked_as_possibly_run_before(known):
    async with edge_mesh() as mesh:
        await read_answer(mesh.generate("hi", max_output_tokens=6))
        await read_answer(mesh.generate("hi", max_output_tokens=6, resume=Resume(**known), sampling=Sampling(seed=1)))
        assert [each.may_have_run for each in mesh.queue.tickets] == [False, True]


async def test_a_drained_edge_lets_running_answers_end():
    async with edge_mesh(drain_grace=TIMEOUT_S) as mesh:
        mesh.workers[0].pause_at_index = 3
        call = mesh.generate(max_output_tokens=9)
        await read_tokens(call, 3)
        draining = asyncio.create_task(mesh.drain())
        await wait_rejecting(mesh)
        mesh.workers[0].send_tokens(1)
        assert (await read_answer(call))[1] == text_of(9)[3:]
        await draining
        assert (await mesh.auth.settles.get()).outcome == "length"


async def test_answers_that_outlast_the_grace_period_are_cancelled_on_the_worker():
    async with edge_mesh() as mesh:
        mesh.workers[0].pause_at_index = 3
        call = mesh.generate(max_output_tokens=9)
        await read_tokens(call, 3)
        await mesh.drain()
        assert await mesh.workers[0].cancels.get() == 1
        assert (await mesh.auth.settles.get()).outcome == "cancelled"
        with pytest.raises(grpc.aio.AioRpcError):
            await read_answer(call)
