"""`/tokenize` and `/detokenize` of a real edge, with the tokens that a request would have."""

from contextlib import asynccontextmanager

import httpx
import pytest

from edge_mesh import CONTEXT, KEY, TOKENIZER, edge_mesh
from free_ports import free_port
from penstock.v1.inference_pb2 import Chat, CountTokensRequest, Message
from tiny_model import EOS_ID

MODEL = "tiny"
HEADERS = {key: value for key, value in KEY if key == "authorization"}


@asynccontextmanager
async def http_edge():
    port = free_port()
    async with (
        edge_mesh(http_listen=f"127.0.0.1:{port}") as mesh,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=HEADERS) as http,
    ):
        yield mesh, http


async def post(http, path, **body):
    answer = await http.post(path, json=body)
    return answer.status_code, answer.json()


async def test_the_tokens_are_those_of_a_request_and_become_its_text_again():
    async with http_edge() as (mesh, http):
        turns = [{"role": "user", "content": "the gate"}]
        status, tokenized = await post(http, "/tokenize", messages=turns, return_token_strs=True)
        assert status == 200
        chat = Chat(messages=[Message(role="user", content="the gate")])
        counted = await mesh.inference.CountTokens(CountTokensRequest(chat=chat, include_token_ids=True), metadata=KEY)
        assert tokenized["tokens"] == list(counted.token_ids)
        assert (tokenized["count"], tokenized["max_model_len"]) == (counted.prompt_tokens, CONTEXT)
        status, detokenized = await post(http, "/detokenize", tokens=tokenized["tokens"])
        assert detokenized["prompt"] == "".join(tokenized["token_strs"])
        assert "<|im_start|>user\nthe gate<|im_end|>" in detokenized["prompt"]


async def test_a_text_survives_with_characters_of_several_tokens():
    async with http_edge() as (_, http):
        _, tokenized = await post(http, "/tokenize", prompt="größe 🙂")
        assert tokenized["token_strs"] is None
        assert tokenized["tokens"] == TOKENIZER.encode("größe 🙂").ids
        assert (await post(http, "/detokenize", tokens=tokenized["tokens"]))[1] == {"prompt": "größe 🙂"}
        assert (await post(http, "/detokenize", tokens=[EOS_ID]))[1] == {"prompt": "<|im_end|>"}


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": False}, "add_special_tokens"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": []}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, "token_ids"),
        ("/detokenize", {"tokens": [1 << 40]}, "token_ids"),
    ],
)
async def test_a_wrong_body_is_named(path, body, named):
    async with http_edge() as (_, http):
        status, answer = await post(http, path, **body)
        assert (status, answer["error"]["param"]) == (400, named)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_callers_need_a_key(path):
    async with http_edge() as (_, http):
        answer = await http.post(path, json={"prompt": "a"}, headers={"authorization": "Bearer wrong"})
        assert answer.status_code == 401
