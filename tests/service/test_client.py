"""The SDK against real servers with scripted edges that fail, reject, end or stall."""

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest

from client_edges import (
    FAST_RETRIES,
    SEED,
    WORDS,
    ScriptedEdge,
    accepted_of,
    client_of,
    delta_of,
    finished_of,
)
from inference_server import inference_server
from penstock.chassis.errors import (
    InvalidArgument,
    NotFound,
    Overloaded,
    QuotaExceeded,
    Unauthenticated,
    Unavailable,
)
from penstock.client import Client, IndexGap, RetryPolicy
from penstock.v1 import inference_pb2 as pb
from penstock.v1.inference_pb2 import GenerateResponse


async def test_an_answer_streams_chunk_by_chunk():
    edge = ScriptedEdge()
    async with client_of(edge) as client:
        async with client.generate("Hello", model="m", max_output_tokens=6, temperature=0.0) as answer:
            chunks = [chunk async for chunk in answer]
        assert [chunk.text for chunk in chunks] == WORDS
        assert [chunk.first_index for chunk in chunks] == list(range(6))
        assert answer.text == "".join(WORDS)
        assert answer.accepted.request_id == "r-1"
        assert answer.finished.usage.output_tokens == 6
    [request] = edge.requests
    assert (request.text, request.model, request.max_output_tokens) == ("Hello", "m", 6)
    assert edge.metadata[0]["authorization"] == "Bearer pk_test"


async def test_an_answer_can_be_read_without_a_block_or_whole():
    async with client_of(ScriptedEdge()) as client:
        assert [chunk.text async for chunk in client.generate("Hello")] == WORDS
        assert await client.complete("Hello") == "".join(WORDS)


async def test_no_request_is_sent_before_the_answer_is_read():
    edge = ScriptedEdge()
    async with client_of(edge) as client, client.generate("Hello") as answer:
        with pytest.raises(RuntimeError, match="read the answer"):
            answer.accepted
        with pytest.raises(RuntimeError, match="not finished"):
            answer.finished
    assert edge.requests == []


async def test_leaving_the_block_cancels_on_the_edge():
    edge = ScriptedEdge()

    async def endless(request, context):
        yield GenerateResponse(accepted=accepted_of(request))
        yield GenerateResponse(delta=delta_of(0))
        try:
            await asyncio.Event().wait()
        finally:
            edge.cancelled.set()

    async with client_of(endless) as client:
        async with client.generate("Hello") as answer:
            async for _ in answer:
                break
        async with asyncio.timeout(5):
            await edge.cancelled.wait()
        assert answer.token_ids == [100]


async def test_cancelling_the_reader_cancels_on_the_edge():
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(request, context):
        yield GenerateResponse(accepted=accepted_of(request))
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with client_of(endless) as client:
        reading = asyncio.create_task(client.complete("Hello"))
        await started.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        async with asyncio.timeout(5):
            await cancelled.wait()


async def test_a_lost_answer_resumes_at_its_index_with_the_same_seed():
    edge = ScriptedEdge(script=[2, 3])
    async with client_of(edge) as client, client.generate("Hello") as answer:
        assert [chunk.text async for chunk in answer] == WORDS
        assert answer.attempts == 3
        assert answer.attempted_at == sorted(answer.attempted_at)
    _, second, third = edge.requests
    assert list(second.resume.token_ids) == [100, 101]
    assert list(third.resume.token_ids) == [100, 101, 102, 103, 104]
    for later in (second, third):
        assert (later.sampling.seed, later.max_output_tokens, later.model) == (SEED, 6, "m")
        assert later.request_id == "r-1"


async def test_attempts_without_accepted_name_one_answer_with_one_seed():
    edge = ScriptedEdge()

    async def lost_before_accepted(request, context):
        edge.requests.append(request)
        if len(edge.requests) < 3:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection was lost")
        yield GenerateResponse(accepted=accepted_of(request))
        yield GenerateResponse(finished=finished_of(0))

    async with client_of(lost_before_accepted) as client:
        await client.complete("Hello")
        await client.complete("Hello")
    *attempts, another = edge.requests
    names = {(each.answer_id, each.sampling.seed) for each in attempts}
    assert len(attempts) == 3
    assert len(names) == 1
    assert attempts[0].answer_id
    assert not any(each.HasField("resume") for each in attempts)
    assert another.answer_id not in {"", attempts[0].answer_id}


async def test_an_answer_resumes_at_another_edge():
    other, served = ScriptedEdge(), asyncio.Event()

    async def lost_midway(request, context):
        yield GenerateResponse(accepted=accepted_of(request))
        yield GenerateResponse(delta=delta_of(0))
        served.set()
        await asyncio.Event().wait()

    async with AsyncExitStack() as stack:
        lost_server = await stack.enter_async_context(AsyncExitStack())
        _, first = await lost_server.enter_async_context(inference_server(Generate=lost_midway))
        _, second = await stack.enter_async_context(inference_server(Generate=other.generate))
        client = await stack.enter_async_context(Client(first.address, second.address, retries=FAST_RETRIES))
        async with client.generate("Hello") as answer:
            texts = []
            async for chunk in answer:
                texts.append(chunk.text)
                if not other.requests:
                    await served.wait()
                    await first.grpc_server.stop(None)
        assert texts == WORDS
    assert list(other.requests[0].resume.token_ids) == [100]


async def test_duplicate_tokens_are_dropped():
    attempts = []

    async def forgetful(request, context):
        attempts.append(request)
        yield GenerateResponse(accepted=accepted_of(request))
        for index in range(3 if len(attempts) == 1 else len(WORDS)):
            yield GenerateResponse(delta=delta_of(index))
        if len(attempts) == 1:
            raise Unavailable("this edge drains", reason="DRAINING", retry_after=0.001)
        yield GenerateResponse(finished=finished_of(3))

    async with client_of(forgetful) as client:
        assert await client.complete("Hello") == "".join(WORDS)
    assert len(attempts) == 2


async def test_missing_tokens_are_an_error():
    cancelled = asyncio.Event()

    async def skipping_token(request, context):
        try:
            yield GenerateResponse(accepted=accepted_of(request))
            yield GenerateResponse(delta=delta_of(0))
            yield GenerateResponse(delta=delta_of(2))
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with client_of(skipping_token) as client:
        with pytest.raises(IndexGap, match="token 2 where 1 was next"):
            await client.complete("Hello")
        async with asyncio.timeout(5):
            await cancelled.wait()


async def test_an_answer_without_finished_is_an_error():
    attempts = []

    async def unfinished(request, context):
        attempts.append(request)
        yield GenerateResponse(accepted=accepted_of(request))

    async with client_of(unfinished, retries=RetryPolicy(max_attempts=3, backoff=(0.001, 0.002))) as client:
        with pytest.raises(Unavailable, match="without finishing"):
            await client.complete("Hello")
    assert len(attempts) == 3


async def test_a_rejected_request_is_retried_after_retry_after():
    edge = ScriptedEdge(script=[Overloaded("full", reason="QUEUE_FULL", retry_after=0.05)])
    async with client_of(edge) as client, client.generate("Hello") as answer:
        loop = asyncio.get_running_loop()
        started = loop.time()
        assert await answer.read() == "".join(WORDS)
        assert loop.time() - started >= 0.05
        assert answer.attempts == 2


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Unauthenticated("no", reason="KEY_UNKNOWN"), Unauthenticated),
        (InvalidArgument("too long", field="input", reason="PROMPT_TOO_LONG"), InvalidArgument),
        (NotFound("no such model", reason="MODEL_UNKNOWN"), NotFound),
        (QuotaExceeded("limit", retry_after=60.0), QuotaExceeded),
        (Overloaded("full", reason="QUEUE_FULL", retry_after=30.0), Overloaded),
    ],
)
async def test_errors_are_typed_with_reason_and_retry_after(error, kind):
    edge = ScriptedEdge(script=[error])
    async with client_of(edge) as client:
        with pytest.raises(kind) as failure:
            await client.complete("Hello")
    assert (failure.value.reason, failure.value.retry_after) == (error.reason, error.retry_after)
    assert len(edge.requests) == 1


async def test_retries_do_not_sustain_an_overload():
    """Twenty requests of one client against an edge that sheds them all cost four retries, not eighty."""
    edge = ScriptedEdge(script=[Overloaded("full", retry_after=0.001)] * 100)
    async with client_of(edge) as client:
        answers = await asyncio.gather(*(client.complete("Hello") for _ in range(20)), return_exceptions=True)
    assert all(isinstance(each, Overloaded) for each in answers)
    assert len(edge.requests) == 24


@pytest.mark.parametrize("way", ["complete", "count_tokens"])
async def test_successes_restore_the_retry_budget(way):
    edge = ScriptedEdge(script=[Overloaded("full", retry_after=0.001)] * 20)

    async def count(request, context):
        return pb.CountTokensResponse()

    async with client_of(edge, CountTokens=count) as client:
        await asyncio.gather(*(client.complete("Hello") for _ in range(20)), return_exceptions=True)
        edge.script = [Overloaded("full", retry_after=0.001)]
        with pytest.raises(Overloaded):
            await client.complete("Hello")
        for _ in range(70):
            await getattr(client, way)("Hello")
        edge.script = [Overloaded("full", retry_after=0.001)]
        assert await client.complete("Hello") == "".join(WORDS)
