"""The SDK's sessions against real servers: many requests on one stream, which moves if its edge is lost."""

import asyncio

import pytest

from client_edges import (
    SEED,
    WORDS,
    SessionEdge,
    answer_request,
    next_request,
    rejection,
    session_across,
    session_of,
)
from inference_server import inference_server
from penstock.chassis.errors import (
    NotFound,
    Unavailable,
)
from penstock.client import Cancelled, Client, RetryPolicy
from penstock.v1 import inference_pb2 as pb
from penstock.v1.stream_pb2 import End


async def test_a_session_carries_many_requests_on_one_stream():
    edge = SessionEdge()
    async with session_of(edge) as session:
        reading = [asyncio.create_task(session.complete(f"prompt {number}")) for number in range(3)]
        requests = [await edge.next_frame("generate") for _ in reading]
        for each in requests:
            edge.accept(each)
        for index in range(len(WORDS)):
            edge.step(*((each.handle, index) for each in requests))
        for each in requests:
            edge.finish(each.handle)
        assert await asyncio.gather(*reading) == ["".join(WORDS)] * 3
    assert len(edge.peers) == 1
    assert sorted(each.request.text for each in requests) == ["prompt 0", "prompt 1", "prompt 2"]


async def test_a_failed_request_does_not_affect_its_session():
    edge = SessionEdge()
    async with session_of(edge) as session:
        good, bad = asyncio.create_task(session.complete("good")), asyncio.create_task(session.complete("bad"))
        requests = {
            each.request.text: each for each in [await edge.next_frame("generate"), await edge.next_frame("generate")]
        }
        failure = NotFound("no such model", reason="MODEL_UNKNOWN").failure()
        edge.send(failed=pb.SessionFailed(handle=requests["bad"].handle, failure=failure))
        with pytest.raises(NotFound) as failure:
            await bad
        assert failure.value.reason == "MODEL_UNKNOWN"
        edge.accept(requests["good"])
        for index in range(len(WORDS)):
            edge.step((requests["good"].handle, index))
        edge.finish(requests["good"].handle)
        assert await good == "".join(WORDS)


async def test_leaving_an_answer_of_a_session_cancels_it_alone():
    edge = SessionEdge()
    async with session_of(edge) as session:
        async with session.generate("Hello") as answer:
            first = asyncio.create_task(anext(aiter(answer)))
            request = await edge.next_frame("generate")
            edge.accept(request)
            edge.step((request.handle, 0))
            assert (await first).text == WORDS[0]
        assert (await edge.next_frame("cancel")).handle == request.handle
        edge.step((request.handle, 1))  # was sent before the cancel arrived
        reading = asyncio.create_task(session.complete("again"))
        again = await edge.next_frame("generate")
        assert again.handle != request.handle
        edge.accept(again)
        for index in range(len(WORDS)):
            edge.step((again.handle, index))
        edge.finish(again.handle)
        assert await reading == "".join(WORDS)


@pytest.mark.parametrize("how", ["ended", "cut"])
async def test_answers_of_a_session_resume_if_their_edge_is_lost(how):
    edge = SessionEdge()
    async with session_of(edge) as session:
        reading = asyncio.create_task(session.complete("Hello"))
        request = await edge.next_frame("generate")
        edge.accept(request)
        edge.step((request.handle, 0))
        edge.step((request.handle, 1))
        if how == "ended":
            edge.send(end=End(reason="drained"))
        else:
            await edge.peers[-1].flush()
            edge.peers[-1].close("killed")
        again = await edge.next_frame("generate")
        assert list(again.request.resume.token_ids) == [100, 101]
        assert again.request.sampling.seed == SEED
        edge.accept(again)
        for index in range(2, len(WORDS)):
            edge.step((again.handle, index))
        edge.finish(again.handle, start=2)
        assert await reading == "".join(WORDS)
    assert len(edge.peers) == 2


async def test_a_session_leaves_a_draining_edge_where_running_requests_complete():
    old, new = SessionEdge(), SessionEdge()
    async with session_across(old, new) as session:
        running = asyncio.create_task(session.complete("running"))
        first = await old.next_frame("generate")
        old.accept(first)
        answer = session.generate("next")
        reading = asyncio.create_task(answer.read())
        old.send(**rejection(await old.next_frame("generate"), "DRAINING"))
        moved = await new.next_frame("generate")
        new.accept(moved)
        await answer_request(new, moved)
        assert await reading == "".join(WORDS)
        assert answer.attempts == 1  # an edge that drains has not tried
        await answer_request(old, first)
        assert await running == "".join(WORDS)
        async with asyncio.timeout(5):
            await old.session_ended.wait()
        assert old.peers[0].has_peer_ended  # the old stream ended with `end`
    assert (len(old.peers), len(new.peers)) == (1, 1)


async def test_a_session_with_one_edge_waits_for_its_replacement():
    edge = SessionEdge()
    async with session_across(edge) as session:
        answer = session.generate("Hello")
        reading = asyncio.create_task(answer.read())
        for _ in range(7):  # more than the maximum of attempts
            edge.send(**rejection(await next_request(edge), "DRAINING", retry_after=0.001))
        request = await next_request(edge)
        edge.accept(request)
        await answer_request(edge, request)
        assert await reading == "".join(WORDS)
        assert answer.attempts == 1


async def test_a_session_fails_if_all_edges_drain_until_its_timeout():
    edge = SessionEdge()
    async with inference_server(Session=edge.session) as (_, server):
        policy = RetryPolicy(max_attempts=1, connect_timeout=0.2)
        async with Client(server.address, retries=policy) as client, client.session() as session:
            reading = asyncio.create_task(session.complete("Hello"))
            while not reading.done():
                pending = asyncio.create_task(next_request(edge))
                await asyncio.wait([pending, reading], return_when=asyncio.FIRST_COMPLETED)
                if pending.done():
                    edge.send(**rejection(pending.result(), "DRAINING", retry_after=0.01))
                pending.cancel()
            with pytest.raises(Unavailable) as failure:
                await reading
    assert failure.value.reason in ("DRAINING", "CONNECTION_LOST")


@pytest.mark.parametrize("reason", ["AUTH_LOST", "QUEUE_LOST"])
async def test_a_session_leaves_an_edge_that_lost_an_upstream_if_there_is_another(reason):
    cut_off, healthy = SessionEdge(), SessionEdge()
    async with session_across(cut_off, healthy) as session:
        reading = asyncio.create_task(session.complete("Hello"))
        cut_off.send(**rejection(await cut_off.next_frame("generate"), reason))
        request = await healthy.next_frame("generate")
        healthy.accept(request)
        await answer_request(healthy, request)
        assert await reading == "".join(WORDS)


async def test_a_session_stays_with_an_edge_that_lost_an_upstream_if_there_is_no_other():
    edge = SessionEdge()
    async with session_across(edge) as session:
        reading = asyncio.create_task(session.complete("Hello"))
        edge.send(**rejection(await edge.next_frame("generate"), "AUTH_LOST"))
        request = await edge.next_frame("generate")
        edge.accept(request)
        await answer_request(edge, request)
        assert await reading == "".join(WORDS)
    assert len(edge.peers) == 1


async def test_a_request_that_crosses_the_end_of_its_stream_is_not_an_attempt():
    old, new = SessionEdge(), SessionEdge()
    async with session_across(old, new) as session:
        answer = session.generate("Hello")
        reading = asyncio.create_task(answer.read())
        await old.next_frame("generate")
        old.send(end=End(reason="draining"))
        request = await new.next_frame("generate")
        new.accept(request)
        await answer_request(new, request)
        assert await reading == "".join(WORDS)
        assert answer.attempts == 1


async def test_an_unrequested_cancel_of_an_edge_is_resumed_at_another():
    old, new = SessionEdge(), SessionEdge()
    async with session_across(old, new) as session:
        reading = asyncio.create_task(session.complete("Hello"))
        request = await old.next_frame("generate")
        old.accept(request)
        old.step((request.handle, 0))
        old.send(cancelled=pb.SessionCancelled(handle=request.handle))
        old.send(end=End(reason="draining"))
        again = await new.next_frame("generate")
        assert list(again.request.resume.token_ids) == [100]
        new.accept(again)
        await answer_request(new, again, start=1)
        assert await reading == "".join(WORDS)


async def test_closing_a_session_sends_end_and_cancels_running_requests():
    edge = SessionEdge()
    async with session_of(edge) as session:
        reading = asyncio.create_task(session.complete("Hello"))
        await edge.next_frame("generate")
    assert edge.peers[-1].has_peer_ended
    with pytest.raises(Cancelled, match="closed"):
        await reading


async def test_a_request_after_the_end_of_its_session_is_rejected_at_once():
    async with session_of(SessionEdge()) as session:
        pass
    with pytest.raises(Cancelled, match="closed"):
        await session.complete("Hello")


async def test_errors_of_a_session_block_are_raised_unchanged():
    with pytest.raises(KeyError, match="mine"):
        async with session_of(SessionEdge()):
            raise KeyError("mine")
