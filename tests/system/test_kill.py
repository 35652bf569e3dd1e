"""A worker that is killed costs its clients nothing but a moment."""

import asyncio

from mesh import greedy, read_answer, running_mesh, stub_client, wait_at_rest, wait_for_figures

STREAMS = 8
TOKENS = 450  # long enough to be killed amid them


async def test_streams_of_a_killed_worker_continue_on_another_with_the_same_text(tiny_model):
    prompts = [f"stream number {number} says" for number in range(STREAMS)]
    settings = ("PENSTOCK_WORKER_THREADS=1",)
    async with running_mesh(workers=2, model=tiny_model, settings=settings) as mesh, stub_client(mesh) as client:
        calm = [await read_answer(client.generate(**greedy(prompt, TOKENS))) for prompt in prompts]
        reading = [asyncio.create_task(read_answer(client.generate(**greedy(prompt, TOKENS)))) for prompt in prompts]
        workers = [child for child in mesh.processes.children if child.spec.tier == "worker"]
        looks = {
            asyncio.create_task(wait_for_figures(each.spec.address, lambda found: found["running"] >= 1)): each
            for each in workers
        }
        [look, *_], others = await asyncio.wait(looks, return_when=asyncio.FIRST_COMPLETED)
        looks[look].process.kill()  # whichever has streams: they may all be on one
        for each in others:
            each.cancel()
        stormy = await asyncio.gather(*reading)
        assert [answer.text for answer in stormy] == [answer.text for answer in calm]
        assert [answer.token_ids for answer in stormy] == [answer.token_ids for answer in calm]
        assert all(answer.indexes == list(range(TOKENS)) for answer in stormy)
        assert all(answer.usage_tokens == TOKENS for answer in stormy)
        await wait_at_rest(mesh)
