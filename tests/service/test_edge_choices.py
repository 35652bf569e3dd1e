"""Several choices of one call: each is a request of its own behind the edge, and the prompt is charged once."""

import asyncio

import grpc
import openai
import pytest

from edge_calls import rejected_call, wait_at_rest
from edge_mesh import TIMEOUT_S, edge_mesh, text_of
from edge_sessions import session
from free_ports import free_port
from penstock.chassis.errors import QuotaExceeded
from penstock.client import Client
from penstock.mesh.choice_seed import choice_seed
from penstock.v1.inference_pb2 import Resume, Sampling


async def read_choices(call):
    """Return accepted, and the text and the usage of each choice. Indexes of each must be contiguous."""
    accepted, texts, counts, usages = [], {}, {}, {}
    while (frame := await call.read()) is not grpc.aio.EOF:
        kind = frame.WhichOneof("frame")
        if kind == "accepted":
            accepted.append(frame.accepted)
        elif kind == "delta":
            delta = frame.delta
            assert accepted
            assert delta.choice not in usages
            assert delta.first_index == counts.setdefault(delta.choice, 0)
            counts[delta.choice] += len(delta.token_ids)
            texts[delta.choice] = texts.get(delta.choice, "") + delta.text
        else:
            usages[frame.finished.choice] = frame.finished.usage
    return accepted, texts, usages


async def test_each_choice_is_a_request_of_its_own_and_the_prompt_is_charged_once():
    async with edge_mesh() as mesh:
        accepted, texts, usages = await read_choices(
            mesh.generate("hi", n=3, max_output_tokens=5, sampling=Sampling(seed=7))
        )
        await wait_at_rest(mesh)
        assert [(each.seed, each.prompt_tokens) for each in accepted] == [(7, 2)]
        assert texts == dict.fromkeys(range(3), text_of(5))
        assert {choice: (usage.prompt_tokens, usage.output_tokens) for choice, usage in usages.items()} == {
            0: (2, 5),
            1: (0, 5),
            2: (0, 5),
        }
        starts = mesh.workers[0].starts
        assert [each.sampling.seed for each in starts] == [choice_seed(7, choice) for choice in range(3)]
        assert len({(tuple(each.token_ids), each.cache_salt) for each in starts}) == 1
        assert [each.prompt_tokens for each in mesh.queue.tickets] == [2, 2, 2]
        assert [each.prompt_tokens for each in mesh.auth.reserves] == [2, 0, 0]
        settles = [mesh.auth.settles.get_nowait() for _ in range(3)]
        assert sorted((each.prompt_tokens, each.output_tokens) for each in settles) == [(0, 5), (0, 5), (2, 5)]


async def test_choices_without_a_seed_differ_and_follow_from_the_one_returned():
    async with edge_mesh() as mesh:
        accepted, _, _ = await read_choices(mesh.generate("hi", n=2, max_output_tokens=1))
        seeds = [each.sampling.seed for each in mesh.workers[0].starts]
        assert seeds == [choice_seed(accepted[0].seed, choice) for choice in range(2)]
        assert len(set(seeds)) == 2


async def test_every_choice_resumes_by_itself_after_a_worker_is_lost():
    async with edge_mesh(workers=2) as mesh:
        mesh.workers[0].pause_at_index = 3
        reading = asyncio.create_task(read_choices(mesh.generate("hi", n=2, max_output_tokens=6)))
        async with asyncio.timeout(TIMEOUT_S):
            for _ in range(2):
                await mesh.workers[0].paused.get()
        mesh.workers[0].cut_streams()
        _, texts, usages = await reading
        assert texts == dict.fromkeys(range(2), text_of(6))
        assert [each.output_tokens for each in usages.values()] == [6, 6]
        assert [each.emitted for each in mesh.workers[1].starts] == [3, 3]
        assert {each.sampling.seed for each in mesh.workers[0].starts} == {
            each.sampling.seed for each in mesh.workers[1].starts
        }
        await wait_at_rest(mesh)


async def test_the_error_of_one_choice_ends_the_response_and_cancels_the_others():
    async with edge_mesh() as mesh:
        mesh.workers[0].pause_at_index = 2
        mesh.queue.sheds = [QuotaExceeded("enough", reason="QUOTA_EXCEEDED")]
        error = await rejected_call(mesh.generate("hi", n=3, max_output_tokens=50))
        assert error.reason == "QUOTA_EXCEEDED"
        await wait_at_rest(mesh)
        assert len(mesh.queue.tickets) == 3


async def test_a_caller_that_leaves_cancels_every_choice():
    async with edge_mesh() as mesh:
        mesh.workers[0].pause_at_index = 2
        call = mesh.generate("hi", n=3, max_output_tokens=50)
        async with asyncio.timeout(TIMEOUT_S):
            for _ in range(3):
                await mesh.workers[0].paused.get()
            call.cancel()
            cancelled = {await mesh.workers[0].cancels.get() for _ in range(3)}
        assert len(cancelled) == 3
        figures = await wait_at_rest(mesh)
        assert figures["cancels"] == 3


@pytest.mark.parametrize("fields", [{"n": 129}, {"n": 2, "resume": Resume(token_ids=[5])}])
async def test_wrong_numbers_of_choices_are_rejected_by_name(fields):
    async with edge_mesh() as mesh:
        error = await rejected_call(mesh.generate("hi", **fields))
        assert [each.field for each in error.field_violations] == ["n"]
        assert not mesh.queue.tickets


async def test_a_session_starts_a_request_for_each_answer():
    async with edge_mesh() as mesh, session(mesh) as client:
        client.generate(1, n=2)
        failure = (await client.next_frame("failed")).failure
        assert failure.field_violations[0].field == "n"


@pytest.fixture
async def openai_mesh():
    port = free_port()
    async with (
        edge_mesh(workers=2, http_listen=f"127.0.0.1:{port}") as mesh,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="good", max_retries=0) as api,
    ):
        yield mesh, api


async def test_the_openai_client_streams_choices_while_a_worker_is_lost(openai_mesh):
    mesh, api = openai_mesh
    mesh.workers[0].pause_at_index = 3
    stream = await api.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hi"}],
        n=2,
        seed=5,
        max_completion_tokens=6,
        stream=True,
        stream_options={"include_usage": True},
    )
    texts, usage = ["", ""], None
    async with asyncio.timeout(TIMEOUT_S):
        for _ in range(2):
            await mesh.workers[0].paused.get()
        mesh.workers[0].cut_streams()
        async for chunk in stream:
            usage = chunk.usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    assert texts == [text_of(6)] * 2
    assert usage.completion_tokens == 12
    assert usage.prompt_tokens == mesh.auth.reserves[0].prompt_tokens
    await wait_at_rest(mesh)


async def test_the_openai_client_sends_a_list_of_prompts(openai_mesh):
    mesh, api = openai_mesh
    prompts = ["a", "bcd", "a"]
    whole = await api.completions.create(model="tiny", prompt=prompts, n=2, max_tokens=3, echo=True)
    expected = [prompt + text_of(3) for prompt in prompts for _ in range(2)]
    assert [(each.index, each.text) for each in whole.choices] == list(enumerate(expected))
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 18)
    await wait_at_rest(mesh)
    assert [each.prompt_tokens for each in mesh.auth.reserves] == [1, 0, 3, 0, 1, 0]


async def test_an_http_client_that_leaves_cancels_every_choice(openai_mesh):
    mesh, api = openai_mesh
    mesh.workers[0].pause_at_index = 2
    stream = await api.completions.create(model="tiny", prompt="hi", n=3, max_tokens=50, stream=True)
    await anext(aiter(stream))
    await stream.close()
    async with asyncio.timeout(TIMEOUT_S):
        assert len({await mesh.workers[0].cancels.get() for _ in range(3)}) == 3
    await wait_at_rest(mesh)


async def test_an_early_rejection_of_a_choice_is_a_status(openai_mesh):
    mesh, api = openai_mesh
    mesh.auth.rejections = [QuotaExceeded("enough", reason="QUOTA_EXCEEDED", retry_after=1.0)]
    with pytest.raises(openai.RateLimitError):
        await api.completions.create(model="tiny", prompt="hi", n=3, max_tokens=5, stream=True)
    await wait_at_rest(mesh)


async def test_the_choices_of_the_sdk_have_the_seeds_of_those_of_the_edge():
    async with edge_mesh() as mesh, Client(mesh.address, api_key="good") as client:
        options = {"max_output_tokens": 4, "temperature": 1.0}
        texts = [await each.read() for each in client.choices("hi", 3, seed=7, **options)]
        assert texts == [text_of(4)] * 3
        assert [each.sampling.seed for each in mesh.workers[0].starts] == [
            choice_seed(7, choice) for choice in range(3)
        ]
        for each in client.choices("hi", 2, **options):
            await each.read()
        first, second = (each.sampling.seed for each in mesh.workers[0].starts[3:])
        assert second == choice_seed(first, 1)
