"""Sampling options of the unmodified OpenAI client against a whole mesh with a real model."""

import math
from contextlib import asynccontextmanager

import openai
import pytest

from mesh import running_mesh, sum_figure, wait_at_rest
from penstock.mesh.choice_seed import choice_seed

GREETING = [{"role": "user", "content": "hi"}]
NO_END = {"extra_body": {"ignore_eos": True}}
FORCED, BANNED = 100, -100


@asynccontextmanager
async def client(mesh):
    async with openai.AsyncOpenAI(base_url=f"http://{mesh.plan.http}/v1", api_key=mesh.api_key, max_retries=0) as api:
        yield api


PROMPT = "The eight answers to this prompt share its key and value blocks while a worker computes them. " * 3
BLOCK_TOKENS = 16


@pytest.mark.parametrize("workers", [1, 2])
async def test_the_prompt_of_eight_answers_is_computed_once(tiny_model, workers):
    async with running_mesh(engine="torch", model=tiny_model, workers=workers) as mesh, client(mesh) as api:
        model = (await api.models.list()).data[0].id
        before = await sum_figure(mesh, "worker", "tokens_prefilled")
        options = {"model": model, "prompt": PROMPT, "max_tokens": 24, **NO_END}
        whole = await api.completions.create(n=8, seed=11, **options)
        computed = await sum_figure(mesh, "worker", "tokens_prefilled") - before
        prompt = whole.usage.prompt_tokens
        assert prompt > 8 * BLOCK_TOKENS
        # Each answer computes the last block by itself. So short a prompt may be computed by every worker.
        assert prompt <= computed <= workers * prompt + 7 * BLOCK_TOKENS
        assert whole.usage.completion_tokens == 8 * 24
        assert len({each.text for each in whole.choices}) == 8
        for choice in (0, 3, 7):
            alone = await api.completions.create(seed=choice_seed(11, choice), **options)
            assert alone.choices[0].text == whole.choices[choice].text
        await wait_at_rest(mesh)


async def test_sampling_options_of_the_openai_client(tiny_model):
    async with running_mesh(engine="torch", model=tiny_model) as mesh:
        async with client(mesh) as api:
            model = (await api.models.list()).data[0].id
            await log_probabilities_are_those_of_the_greedy_text(api, model)
            await streamed_log_probabilities_equal_those_of_the_whole(api, model)
            await biases_force_and_ban_tokens(api, model)
        await wait_at_rest(mesh)


async def log_probabilities_are_those_of_the_greedy_text(api, model):
    options = {"model": model, "max_completion_tokens": 8, "temperature": 0, **NO_END}
    chat = await api.chat.completions.create(messages=GREETING, logprobs=True, top_logprobs=20, **options)
    entries = chat.choices[0].logprobs.content
    assert len(entries) == chat.usage.completion_tokens == 8
    for entry in entries:
        assert len(entry.top_logprobs) == 20
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob, abs=1e-4)
        assert entry.token == entry.top_logprobs[0].token
        assert sum(math.exp(each.logprob) for each in entry.top_logprobs) <= 1 + 1e-6
    plain = await api.chat.completions.create(messages=GREETING, **options)
    assert plain.choices[0].message.content == chat.choices[0].message.content
    assert plain.choices[0].logprobs is None


async def streamed_log_probabilities_equal_those_of_the_whole(api, model):
    options = {"model": model, "prompt": "hi", "max_tokens": 6, "seed": 5, "logprobs": 3, **NO_END}
    whole = (await api.completions.create(**options)).choices[0]
    chunks = [chunk.choices[0] async for chunk in await api.completions.create(stream=True, **options)]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    for name in ("tokens", "text_offset"):
        streamed = [each for chunk in chunks if chunk.logprobs for each in getattr(chunk.logprobs, name)]
        assert streamed == getattr(whole.logprobs, name)
    assert all(3 <= len(each) <= 4 for each in whole.logprobs.top_logprobs)


async def biases_force_and_ban_tokens(api, model):
    def text(**options):
        return api.completions.create(model=model, prompt="hi", max_tokens=6, logprobs=0, **NO_END, **options)

    forced = (await text(temperature=2, logit_bias={"77": FORCED})).choices[0]
    assert len(set(forced.logprobs.tokens)) == 1
    greedy = (await text(temperature=0)).choices[0]
    first = greedy.logprobs.tokens[0]
    every_id = {str(token_id): BANNED for token_id in range(4, 304)}
    banned = (await text(temperature=0, logit_bias=every_id)).choices[0]
    assert first not in banned.logprobs.tokens
