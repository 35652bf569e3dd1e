"""Hostile and slow clients on the edge's own gRPC port: what they may send, hold and keep busy."""

import asyncio
import gc
import struct
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import psutil
import pytest

from edge_calls import read_answer, wait_at_rest
from edge_mesh import KEY, TIMEOUT_S, edge_mesh, text_of
from openai_calls import wait_until
from penstock.chassis.channels import channel
from penstock.edge.callers import connections as callers
from penstock.edge.callers import messages
from penstock.edge.request import limits
from penstock.v1.inference_pb2 import GenerateRequest
from penstock.v1.inference_pb2_grpc import InferenceStub
from raw_http2_calls import raw_connection

UNAUTHENTICATED, EXHAUSTED, TOO_LATE = 16, 8, 4
METHODS = ["Generate", "CountTokens", "ListModels", "Session"]
GOOD = (("authorization", "Bearer good"),)


def unfinished(size=limits.BODY_BYTES):
    """The bytes of a message of `size` without its last ten."""
    return struct.pack(">BI", 0, size) + bytes(size - 10)


async def send_unfinished(connection, streams):
    """Send unfinished messages as far as the server lets them in. Returns the bytes that it took."""
    data, sent = unfinished(), dict.fromkeys(streams, 0)
    while True:
        before = sum(sent.values())
        for stream in streams:
            sent[stream] += connection.send(stream, data[sent[stream] :])
        try:
            async with asyncio.timeout(0.5):
                await connection.pump_once()
        except TimeoutError:
            if sum(sent.values()) == before:
                return before
        if connection.is_closed or connection.ended.issuperset(streams):
            return sum(sent.values())


@asynccontextmanager
async def silent_auth(mesh):
    """Auth does not answer about callers."""
    answer = mesh.auth.answer
    mesh.auth.answer = lambda frame: None if frame.WhichOneof("frame") == "identify" else answer(frame)
    try:
        yield
    finally:
        mesh.auth.answer = answer


@pytest.mark.parametrize("method", METHODS)
async def test_a_stranger_is_rejected_before_its_message_arrives(method):
    async with edge_mesh() as mesh, raw_connection(mesh.address) as connection:
        stream = connection.call(f"/penstock.v1.Inference/{method}")
        await connection.pump(lambda: stream in connection.ended)
        assert connection.status(stream) == UNAUTHENTICATED


async def test_unfinished_messages_of_strangers_hold_no_memory():
    """40 messages of 16 MiB less 10 bytes, while auth does not answer."""
    async with (
        edge_mesh(auth_fallback_after=60.0) as mesh,
        silent_auth(mesh),
        raw_connection(mesh.address) as connection,
    ):
        gc.collect()
        before = psutil.Process().memory_info().rss
        streams = [connection.call(metadata=[("authorization", f"Bearer {number}")]) for number in range(40)]
        assert await send_unfinished(connection, streams) <= 40 * (64 << 10)
        assert psutil.Process().memory_info().rss - before < 64 << 20


async def test_strangers_on_one_connection_may_wait_for_few_keys():
    async with (
        edge_mesh(auth_fallback_after=60.0, max_unidentified_calls=3) as mesh,
        silent_auth(mesh),
        raw_connection(mesh.address) as connection,
    ):
        for number in range(3):
            connection.call(metadata=[("authorization", f"Bearer {number}")])
        await connection.flush()
        await wait_for_figure(mesh, "callers_asked", 3)
        refused = connection.call(metadata=[("authorization", "Bearer other")])
        await connection.pump(lambda: refused in connection.ended)
        assert connection.status(refused) == EXHAUSTED
        assert (await mesh.figures())["refused_callers_unidentified"] == 1


async def wait_for_figure(mesh, name, value):
    async with asyncio.timeout(TIMEOUT_S):
        while (await mesh.figures()).get(name, 0) != value:
            pass


async def test_calls_that_wait_for_the_same_key_ask_auth_once():
    async with edge_mesh(max_unidentified_calls=3) as mesh:
        asked, answer = [], mesh.auth.answer
        mesh.auth.answer = lambda frame: asked.append(frame.WhichOneof("frame")) or answer(frame)
        answers = await asyncio.gather(*[read_answer(mesh.generate(max_output_tokens=2)) for _ in range(40)])
        assert {text for _, text, _, _ in answers} == {text_of(2)}
        assert asked.count("identify") == 1


async def test_a_call_whose_question_to_auth_is_cancelled_leaves_others_their_own():
    async with edge_mesh() as mesh:
        async with silent_auth(mesh):
            first = mesh.generate(max_output_tokens=2)
            await wait_for_figure(mesh, "callers_asked", 1)
            second = mesh.generate(max_output_tokens=2)
            await wait_for_figure(mesh, "calls", 2)
        first.cancel()
        assert (await read_answer(second))[1] == text_of(2)


async def test_a_rejected_key_is_rejected_again_without_asking():
    async with edge_mesh() as mesh:
        for _ in range(5):
            with pytest.raises(grpc.aio.AioRpcError):
                await read_answer(mesh.generate(metadata=(("authorization", "Bearer bad"),)))
        figures = await mesh.figures()
        assert (figures["callers_asked"], figures["callers_rejected"]) == (1, 5)


async def test_a_connection_has_at_most_100_streams():
    async with edge_mesh() as mesh, raw_connection(mesh.address) as connection:
        assert connection.streams_allowed == 100


async def test_a_connection_of_nothing_but_failures_is_closed_and_no_other():
    async with edge_mesh(max_failed_calls=20) as mesh, AsyncExitStack() as stack:
        mesh.workers[0].pause_at_index = 2
        running = mesh.generate(max_output_tokens=4)
        handle = await mesh.workers[0].paused.get()
        for number in range(3):
            connection = await stack.enter_async_context(raw_connection(mesh.address))
            for _ in range(40 if number == 0 else callers.FAILURES_PER_CLOSE):
                connection.call()
            await connection.pump(lambda connection=connection: connection.is_closed)
        mesh.workers[0].send_tokens(handle)
        assert (await read_answer(running))[1] == text_of(4)
        assert (await mesh.figures())["refused_connection_closed"] >= 3


async def test_reset_streams_close_their_connection():
    async with edge_mesh(max_failed_calls=20) as mesh, raw_connection(mesh.address) as connection:
        async with asyncio.timeout(TIMEOUT_S):
            while not connection.is_closed:
                for _ in range(10):
                    connection.h2.reset_stream(connection.call())
                await connection.flush()
                try:
                    async with asyncio.timeout(0.01):
                        await connection.pump_once()
                except TimeoutError:
                    continue
        assert (await read_answer(mesh.generate(max_output_tokens=2)))[1] == text_of(2)


async def test_connections_are_bounded_in_total():
    async with edge_mesh(max_connections=3) as mesh, AsyncExitStack() as stack:
        assert (await read_answer(mesh.generate(max_output_tokens=2)))[1] == text_of(2)
        taken = [await stack.enter_async_context(raw_connection(mesh.address)) for _ in range(3)]
        await wait_until(lambda: True)
        assert sum(not each.is_closed for each in taken) == 2  # the first connection is that of the harness
        assert (await read_answer(mesh.generate(max_output_tokens=2)))[1] == text_of(2)


@pytest.mark.parametrize("is_late", [True, False])
async def test_unfinished_messages_of_known_callers_are_bounded(monkeypatch, is_late):
    monkeypatch.setattr(messages, "SLOW_AFTER_S", 0.05)
    settings = {"message_timeout": 0.1} if is_late else {"max_unfinished_messages": 2}
    async with edge_mesh(**settings) as mesh, raw_connection(mesh.address) as connection:
        streams = [connection.call(metadata=GOOD) for _ in range(2)]
        for stream in streams:
            connection.send(stream, unfinished()[:1_000])
        await connection.pump(lambda: connection.ended)
        (refused, *others) = sorted(connection.ended)
        assert connection.status(refused) == (TOO_LATE if is_late else EXHAUSTED)
        assert is_late or not others
        if not is_late:
            assert refused == streams[1]  # the newer one
            assert (await read_answer(mesh.generate(max_output_tokens=2)))[1] == text_of(2)


async def test_a_call_without_a_message_is_told_so():
    async with edge_mesh() as mesh, raw_connection(mesh.address) as connection:
        stream = connection.call(metadata=GOOD)
        connection.h2.end_stream(stream)
        await connection.pump(lambda: stream in connection.ended)
        assert connection.status(stream) == 3
        await wait_at_rest(mesh)


async def test_more_calls_than_streams_wait_for_their_turn():
    async with edge_mesh() as mesh, channel(mesh.address) as to_edge:
        await to_edge.channel_ready()
        calls = [
            InferenceStub(to_edge).Generate(GenerateRequest(text="hi", max_output_tokens=2), metadata=KEY)
            for _ in range(1_000)
        ]
        assert {text for _, text, _, _ in await asyncio.gather(*map(read_answer, calls))} == {text_of(2)}
