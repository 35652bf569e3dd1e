"""Outputs with a form through a whole mesh: with the clients' own helpers, and through the death of a worker."""

import asyncio
import json
import random
import subprocess
import sys
from typing import Literal

import jsonschema
import openai
import pydantic
import pytest

from mesh import kill_busy_worker, read_answer, running_mesh, stub_client, wait_at_rest
from penstock.v1.inference_pb2 import Form, Sampling
from schemas import random_schema

STREAMS = 24
MAX_TOKENS = 400
SETTINGS = ("PENSTOCK_WORKER_THREADS=1",)


class Answer(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=12)
    inhabitants: int = pydantic.Field(ge=0, le=40_000_000)
    tags: list[Literal["coast", "capital"]] = pydantic.Field(max_length=2)
    model_config = pydantic.ConfigDict(extra="forbid")


GREETING = [{"role": "user", "content": "hi"}]


async def test_the_parsing_helpers_of_the_openai_client_work_unmodified(tiny_model):
    async with running_mesh(model=tiny_model, envoy=False, settings=SETTINGS) as mesh:
        base_url = f"http://{mesh.plan.http}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key=mesh.api_key, max_retries=0) as api:
            model = (await api.models.list()).data[0].id
            chat = await api.chat.completions.parse(model=model, messages=GREETING, response_format=Answer, seed=1)
            assert isinstance(chat.choices[0].message.parsed, Answer)
            response = await api.responses.parse(model=model, input="hi", text_format=Answer)
            assert isinstance(response.output_parsed, Answer)
            async with api.chat.completions.stream(model=model, messages=GREETING, response_format=Answer) as stream:
                assert isinstance((await stream.get_final_completion()).choices[0].message.parsed, Answer)
            async with api.responses.stream(model=model, input="hi", text_format=Answer) as stream:
                assert isinstance((await stream.get_final_response()).output_parsed, Answer)
            await an_object_and_vllm_s_forms_are_enforced(api, model)
            await an_unsupported_schema_is_named(api, model)
        the_command_line_enforces_a_form(mesh)
        await wait_at_rest(mesh)


async def an_object_and_vllm_s_forms_are_enforced(api, model):
    loose = await api.chat.completions.create(
        model=model, messages=GREETING, response_format={"type": "json_object"}, max_completion_tokens=60
    )
    assert loose.choices[0].message.content.startswith("{")
    for form, allowed in (({"choice": ["yes", "no"]}, ("yes", "no")), ({"regex": "x{3}"}, ("xxx",))):
        body = {"structured_outputs": form}
        chat = await api.chat.completions.create(model=model, messages=GREETING, extra_body=body)
        assert chat.choices[0].message.content in allowed
        completion = await api.completions.create(model=model, prompt="hi", extra_body=body)
        assert completion.choices[0].text in allowed


async def an_unsupported_schema_is_named(api, model):
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    form = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        await api.chat.completions.create(model=model, messages=GREETING, response_format=form)


def the_command_line_enforces_a_form(mesh):
    command = (sys.executable, "-m", "penstock.cli", "generate", "hi", "--target", mesh.plan.grpc)
    options = ("--key", mesh.api_key, "--regex", "[a-c]{4}", "--json")
    answer = subprocess.run((*command, *options), capture_output=True, text=True, check=True, timeout=60)
    assert set(json.loads(answer.stdout)["text"]) <= set("abc")


async def test_outputs_stay_the_same_and_valid_when_a_worker_is_killed(tiny_model):
    rng = random.Random(3)
    schemas = [random_schema(rng) for _ in range(STREAMS)]

    async with running_mesh(workers=2, model=tiny_model, settings=SETTINGS) as mesh, stub_client(mesh) as client:

        async def answers():
            calls = [client.generate(**formed_request(schema, seed)) for seed, schema in enumerate(schemas)]
            return await asyncio.gather(*map(read_answer, calls))

        calm = await answers()
        reading = asyncio.create_task(answers())
        await kill_busy_worker(mesh)
        killed = await reading
        assert [answer.token_ids for answer in killed] == [answer.token_ids for answer in calm]
        assert [answer.text for answer in killed] == [answer.text for answer in calm]
        for schema, answer in zip(schemas, killed, strict=True):
            jsonschema.Draft202012Validator(schema).validate(json.loads(answer.text))
        await wait_at_rest(mesh)


def formed_request(schema, seed):
    return {
        "text": "the gate",
        "max_output_tokens": MAX_TOKENS,
        "sampling": Sampling(temperature=1.0, seed=seed),
        "form": Form(json_schema=json.dumps(schema)),
    }
