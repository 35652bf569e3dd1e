"""Clients of a killed worker lose time and no token."""

import asyncio

from mesh import greedy, kill_busy_worker, read_answer, running_mesh, stub_client, wait_at_rest

STREAM_COUNT = 8
OUTPUT_TOKENS = 450  # long enough for a kill in the middle


async def test_streams_of_a_killed_worker_continue_on_another_with_the_same_text(tiny_model):
    prompts = [f"stream number {number} says" for number in range(STREAM_COUNT)]
    settings = ("PENSTOCK_WORKER_THREADS=1",)
    async with running_mesh(workers=2, model=tiny_model, settings=settings) as mesh, stub_client(mesh) as client:
        baseline = [await read_answer(client.generate(**greedy(prompt, OUTPUT_TOKENS))) for prompt in prompts]
        reading = [
            asyncio.create_task(read_answer(client.generate(**greedy(prompt, OUTPUT_TOKENS)))) for prompt in prompts
        ]
        await kill_busy_worker(mesh)
        interrupted = await asyncio.gather(*reading)
        assert [answer.text for answer in interrupted] == [answer.text for answer in baseline]
        assert [answer.token_ids for answer in interrupted] == [answer.token_ids for answer in baseline]
        assert all(answer.indexes == list(range(OUTPUT_TOKENS)) for answer in interrupted)
        assert all(answer.usage_tokens == OUTPUT_TOKENS for answer in interrupted)
        await wait_at_rest(mesh)
