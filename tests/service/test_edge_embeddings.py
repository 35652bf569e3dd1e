"""Embeddings at a real edge, between a caller and fakes of the tiers behind it."""

import asyncio

import grpc
import pytest

from edge_calls import wait_at_rest
from edge_mesh import KEY, TIMEOUT_S, TOKENIZER, FakeWorker, edge_mesh, vector_of
from penstock.chassis.errors import InvalidArgument, QuotaExceeded, error_from_rpc
from penstock.client.request import embed_request
from penstock.edge.embedder import MAX_CONCURRENT_RUNS

SIZE = 4
TEXTS = ["a", "bb", "ccc", "dddd"]
DEADLINE_S = 20 * TIMEOUT_S  # so that no deadline ends what a cancel should end


def embedding_worker(name="w1", **fields):
    return FakeWorker(name, **{"embedding_size": SIZE, **fields})


def embed(mesh, inputs, *, dimensions=None, metadata=KEY, model="tiny"):
    request = embed_request(inputs, model, dimensions)
    return mesh.inference.Embed(request, metadata=metadata, timeout=DEADLINE_S)


def vectors_of(texts):
    return [vector_of(TOKENIZER.encode(text).ids, SIZE) for text in texts]


async def rejection_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return error_from_rpc(failure.value)


async def paused_runs(worker, count):
    async with asyncio.timeout(TIMEOUT_S):
        return [await worker.paused.get() for _ in range(count)]


async def test_each_input_is_reserved_queued_run_and_settled_without_output():
    async with edge_mesh(fakes=[embedding_worker()]) as mesh:
        answer = await embed(mesh, TEXTS)
        assert [list(each.values) for each in answer.embeddings] == vectors_of(TEXTS)
        assert (answer.model, answer.model_version) == ("tiny", "d1")
        assert (answer.usage.prompt_tokens, answer.usage.output_tokens) == (10, 0)
        assert sorted(ticket.prompt_tokens for ticket in mesh.queue.tickets) == [1, 2, 3, 4]
        assert {ticket.max_output_tokens for ticket in mesh.queue.tickets} == {1}
        assert sorted(reserve.prompt_tokens for reserve in mesh.auth.reserves) == [1, 2, 3, 4]
        assert all(start.embeds and start.max_output_tokens == 1 for start in mesh.workers[0].starts)
        settles = [await mesh.auth.settles.get() for _ in TEXTS]
        assert sorted((settle.prompt_tokens, settle.output_tokens) for settle in settles) == [
            *((tokens, 0) for tokens in (1, 2, 3, 4))
        ]
        await wait_at_rest(mesh)


async def test_vectors_come_in_the_order_of_the_inputs_and_shortened():
    worker = embedding_worker(pause_at_index=0)
    async with edge_mesh(fakes=[worker]) as mesh:
        call = embed(mesh, TEXTS, dimensions=2)
        for handle in reversed(await paused_runs(worker, len(TEXTS))):
            worker.embed(handle)
        answer = await call
        for made, (first, second, *_) in zip(answer.embeddings, vectors_of(TEXTS), strict=True):
            length = (first**2 + second**2) ** 0.5
            assert list(made.values) == pytest.approx([first / length, second / length])


async def test_a_long_list_runs_a_bounded_number_of_inputs_at_a_time():
    worker = embedding_worker(pause_at_index=0)
    texts = ["x" * (1 + number % 9) for number in range(MAX_CONCURRENT_RUNS + 40)]
    async with edge_mesh(fakes=[worker]) as mesh:
        call = embed(mesh, texts)
        for handle in await paused_runs(worker, MAX_CONCURRENT_RUNS):
            assert len(worker.runs) <= MAX_CONCURRENT_RUNS
            worker.embed(handle)
        for handle in await paused_runs(worker, 40):
            assert len(worker.runs) <= MAX_CONCURRENT_RUNS
            worker.embed(handle)
        assert [list(each.values) for each in (await call).embeddings] == vectors_of(texts)
        assert len(worker.starts) == len(texts)


async def test_the_first_error_ends_the_call_and_cancels_the_other_inputs():
    worker = embedding_worker(pause_at_index=0)
    async with edge_mesh(fakes=[worker]) as mesh:
        mesh.auth.rejections.append(QuotaExceeded("no tokens left", retry_after=1.0))
        error = await rejection_of(embed(mesh, TEXTS))
        assert isinstance(error, QuotaExceeded)
        await wait_at_rest(mesh)
        assert not worker.runs
        assert len(worker.starts) < len(TEXTS)


async def test_a_cancelled_call_cancels_all_its_inputs():
    worker = embedding_worker(pause_at_index=0)
    async with edge_mesh(fakes=[worker]) as mesh:
        call = embed(mesh, TEXTS)
        handles = await paused_runs(worker, len(TEXTS))
        call.cancel()
        async with asyncio.timeout(TIMEOUT_S):
            assert sorted([await worker.cancels.get() for _ in TEXTS]) == sorted(handles)
        await wait_at_rest(mesh)


async def test_all_vectors_of_a_call_are_of_one_version():
    fakes = [embedding_worker("old", digest="old"), embedding_worker("new", digest="new", bos_token_id=1)]
    async with edge_mesh(fakes=fakes) as mesh:
        answers = [await embed(mesh, ["a"] * 6) for _ in range(4)]
        assert {answer.model_version for answer in answers} == {"old", "new"}
        for answer in answers:
            assert len({tuple(each.values) for each in answer.embeddings}) == 1


async def test_a_vector_of_another_size_is_computed_again_by_another_worker():
    fakes = [embedding_worker("w1", cuts_embeddings=True), embedding_worker("w2")]
    async with edge_mesh(fakes=fakes) as mesh:
        answer = await embed(mesh, TEXTS)
        assert [list(each.values) for each in answer.embeddings] == vectors_of(TEXTS)
        assert len(mesh.workers[1].starts) == len(TEXTS)


@pytest.mark.parametrize(
    ("size", "inputs", "dimensions", "reason"),
    [
        (0, TEXTS, None, "EMBEDDING_UNSUPPORTED"),
        (SIZE, TEXTS, SIZE + 1, "INVALID_ARGUMENT"),
        (4_096, ["a"] * 1_000, None, "INVALID_ARGUMENT"),  # more numbers than a message may have
    ],
)
async def test_a_call_that_cannot_be_answered_is_rejected_before_it_costs_anything(size, inputs, dimensions, reason):
    async with edge_mesh(fakes=[FakeWorker("w1", embedding_size=size)]) as mesh:
        error = await rejection_of(embed(mesh, inputs, dimensions=dimensions))
        assert isinstance(error, InvalidArgument)
        assert error.reason == reason
        assert not mesh.auth.reserves
        assert not mesh.queue.tickets
