"""Embeddings through a whole mesh, with the unmodified OpenAI client, and through the death of a worker."""

import asyncio
import base64

import numpy as np
import openai
import pytest
import torch

from mesh import running_mesh, wait_at_rest, wait_for_figures
from naive_loop import naive_states
from penstock.client import Client
from penstock.worker.engine.loaders import load

LEAST_COSINE = 0.9999
SETTINGS = ("PENSTOCK_WORKER_THREADS=1", "PENSTOCK_WORKER_DTYPE=float32")
TEXTS = ["the gate", "water flows through the turbine", "token", "größe 🙂 " * 20]


def naive_embedding(model, ids):
    with torch.inference_mode():
        state = naive_states(model, ids)[-1].numpy()
    return state / np.linalg.norm(state)


async def test_the_openai_client_gets_the_embeddings_of_a_plain_forward_pass(tiny_model):
    reference = load(tiny_model, torch.float32, torch.device("cpu"))[0]
    async with running_mesh(model=tiny_model, envoy=False, settings=SETTINGS) as mesh:
        base_url = f"http://{mesh.plan.http}/v1"
        async with (
            openai.AsyncOpenAI(base_url=base_url, api_key=mesh.api_key, max_retries=0) as api,
            Client(mesh.plan.grpc, api_key=mesh.api_key) as client,
        ):
            model = (await api.models.list()).data[0].id
            counted = [await client.count_tokens(text, include_token_ids=True) for text in TEXTS]
            expected = [naive_embedding(reference, list(each.token_ids)) for each in counted]

            listed = await api.embeddings.create(model=model, input=TEXTS)  # as base64
            assert [each.index for each in listed.data] == list(range(len(TEXTS)))
            assert listed.usage.prompt_tokens == sum(each.prompt_tokens for each in counted)
            assert listed.usage.total_tokens == listed.usage.prompt_tokens
            as_floats = await api.embeddings.create(model=model, input=TEXTS, encoding_format="float", user="someone")
            by_ids = await api.embeddings.create(model=model, input=[list(each.token_ids) for each in counted])
            by_grpc = await client.embed(TEXTS, model=model)
            for index, vector in enumerate(expected):
                for made in (listed, as_floats, by_ids):
                    assert np.array(made.data[index].embedding, dtype=np.float32) @ vector >= LEAST_COSINE
                assert np.array(by_grpc.embeddings[index].values, dtype=np.float32) @ vector >= LEAST_COSINE
            one = await api.embeddings.create(model=model, input=TEXTS[1])
            assert np.array(one.data[0].embedding) @ expected[1] >= LEAST_COSINE
            await vectors_are_shortened(api, model, expected)
            await wrong_calls_are_rejected(api, model)
        await wait_at_rest(mesh)


async def vectors_are_shortened(api, model, expected):
    short = await api.embeddings.with_raw_response.create(
        model=model, input=TEXTS, dimensions=8, encoding_format="base64"
    )
    for item, vector in zip(short.http_response.json()["data"], expected, strict=True):
        numbers = np.frombuffer(base64.b64decode(item["embedding"]), dtype="<f4")
        assert numbers.shape == (8,)
        assert np.linalg.norm(numbers) == pytest.approx(1.0, abs=1e-5)
        assert numbers @ vector[:8] / np.linalg.norm(vector[:8]) >= LEAST_COSINE


async def wrong_calls_are_rejected(api, model):
    for fields, param in (
        ({"input": TEXTS, "dimensions": 65}, "dimensions"),
        ({"input": TEXTS, "dimensions": 0}, "dimensions"),
        ({"input": []}, "input[0]"),
        ({"input": ["a"] * 2_049}, "input"),
        ({"input": ["a", "b" * 20_000]}, "input"),
        ({"input": [[1, 2], [100_000]]}, "token_ids"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await api.embeddings.create(model=model, **fields)
        assert caught.value.param == param


async def test_embeddings_are_complete_when_a_worker_is_killed(tiny_model):
    texts = [f"{number} water flows through the gate" for number in range(600)]
    # Small steps keep many inputs on each worker.
    settings = (*SETTINGS, "PENSTOCK_WORKER_TOKEN_BUDGET=16")
    async with running_mesh(workers=2, model=tiny_model, settings=settings) as mesh:
        base_url = f"http://{mesh.plan.http}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key=mesh.api_key, max_retries=0) as api:
            model = (await api.models.list()).data[0].id
            calm = await api.embeddings.create(model=model, input=texts)
            reading = asyncio.create_task(api.embeddings.create(model=model, input=texts))
            workers = [child for child in mesh.processes.children if child.spec.tier == "worker"]
            looks = {
                asyncio.create_task(
                    wait_for_figures(each.spec.admin_address, lambda found: found["running"] >= 1)
                ): each
                for each in workers
            }
            [look, *_], others = await asyncio.wait(looks, return_when=asyncio.FIRST_COMPLETED)
            looks[look].process.kill()
            for each in others:
                each.cancel()
            killed = await reading
        for before, after in zip(calm.data, killed.data, strict=True):
            np.testing.assert_allclose(after.embedding, before.embedding, atol=1e-5)
        assert killed.usage == calm.usage
        await wait_at_rest(mesh)


async def test_an_engine_without_hidden_states_is_named_at_once():
    async with (
        running_mesh(envoy=False, settings=("PENSTOCK_WORKER_ENGINE=sim",)) as mesh,
        openai.AsyncOpenAI(base_url=f"http://{mesh.plan.http}/v1", api_key=mesh.api_key, max_retries=0) as api,
    ):
        model = (await api.models.list()).data[0].id
        with pytest.raises(openai.BadRequestError) as caught:
            await api.embeddings.create(model=model, input="hi")
        assert caught.value.code == "embedding_unsupported"
