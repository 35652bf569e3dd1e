"""`penstock generate --failover`: another edge answers while the target is down."""

import json

from client_edges import WORDS, ScriptedEdge
from command import run_penstock
from inference_server import inference_server

NO_SERVER = "127.0.0.1:9"  # the port of `discard`


async def generate(*arguments):
    """Return the text of the answer."""
    code, out, err = await run_penstock("generate", "Hello", "--key", "pk_test", "--json", *arguments)
    assert code == 0, err
    return json.loads(out)["text"]


async def test_another_region_answers_while_the_target_is_down():
    edge = ScriptedEdge()
    async with inference_server(Generate=edge.generate) as (_, server):
        assert await generate("--target", NO_SERVER, "--failover", server.address) == "".join(WORDS)
    assert len(edge.requests) == 1


async def test_the_target_answers_while_it_is_up():
    home, other = ScriptedEdge(), ScriptedEdge()
    async with (
        inference_server(Generate=home.generate) as (_, near),
        inference_server(Generate=other.generate) as (_, far),
    ):
        assert await generate("--target", near.address, "--failover", f"{NO_SERVER},{far.address}") == "".join(WORDS)
    assert (len(home.requests), len(other.requests)) == (1, 0)
