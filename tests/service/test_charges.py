"""Charges of an answer whose edge was lost or drained: the SDK, two real edges, a real auth and its ledger."""

import pytest

from edge_auth_mesh import KEY, edge_auth_mesh
from edge_mesh import text_of, token_at
from penstock.client import Client
from penstock.client.retries import RetryPolicy
from penstock.edge import runner

FAST_RETRIES = RetryPolicy(backoff=(0.001, 0.002))
PROMPT, TOKENS, CLIENT_TOKENS = 2, 9, 4  # tokens; the edge is lost after CLIENT_TOKENS
LOST_CHARGE = (0, 0, "lost")


@pytest.fixture(autouse=True)
def _short_settlement_timeout(monkeypatch):
    monkeypatch.setattr(runner, "SETTLEMENT_TIMEOUT_S", 0.2)


async def interrupted(mesh, interrupt, kind):
    """Read an answer whose first edge is lost after CLIENT_TOKENS. Returns its text and the number of attempts."""
    worker = mesh.workers[0]
    worker.pause_at_index = CLIENT_TOKENS
    async with Client(*mesh.addresses, api_key=KEY, retries=FAST_RETRIES) as client:
        if kind == "call":
            return await read(client.generate("hi", max_output_tokens=TOKENS), worker, interrupt)
        async with client.session() as session:
            return await read(session.generate("hi", max_output_tokens=TOKENS), worker, interrupt)


async def read(answer, worker, interrupt):
    async with answer:
        async for _ in answer:
            if len(answer.token_ids) == CLIENT_TOKENS and worker.pause_at_index:
                worker.pause_at_index = None
                await interrupt()
        return answer.text, answer.attempts


@pytest.mark.parametrize("kind", ["call", "session"])
async def test_an_answer_of_a_lost_edge_is_charged_once_at_the_edge_that_finished_it(tmp_path, kind):
    async with edge_auth_mesh(tmp_path, edges=2) as mesh:
        disconnected = mesh.auth.service.disconnected_edges

        async def lose_edge():
            lost_edge = mesh.holding_edge
            disconnected.add(f"edge-{lost_edge + 1}")
            await mesh.edge_stacks[lost_edge].aclose()

        assert await interrupted(mesh, lose_edge, kind) == (text_of(TOKENS), 2)
        mesh.auth.expire_edge(disconnected.pop())
        assert await mesh.wait_settled() == [(PROMPT, TOKENS, "length"), LOST_CHARGE]


async def test_an_edge_lost_after_the_answer_resumed_changes_no_charge(tmp_path):
    async with edge_auth_mesh(tmp_path, edges=2) as mesh:

        async def lose_edge_after_silence():
            lost_edge = mesh.holding_edge
            mesh.auth.service.disconnected_edges.add(f"edge-{lost_edge + 1}")
            mesh.auth.expire_edge(f"edge-{lost_edge + 1}")
            await mesh.edge_stacks[lost_edge].aclose()

        await interrupted(mesh, lose_edge_after_silence, "call")
        assert await mesh.wait_settled() == [(PROMPT, TOKENS, "length"), LOST_CHARGE]


@pytest.mark.parametrize("kind", ["call", "session"])
async def test_the_prompt_of_an_answer_of_a_drained_edge_is_charged_once(tmp_path, kind):
    async with edge_auth_mesh(tmp_path, edges=2) as mesh:

        async def drain():
            await mesh.edge_stacks[mesh.holding_edge].aclose()

        assert await interrupted(mesh, drain, kind) == (text_of(TOKENS), 2)
        assert await mesh.wait_settled() == [
            (PROMPT, CLIENT_TOKENS, "cancelled"),
            (0, TOKENS - CLIENT_TOKENS, "length"),
        ]


async def test_the_charges_of_an_answer_survive_a_crash_of_auth(tmp_path):
    async with edge_auth_mesh(tmp_path, edges=2) as mesh:

        async def drain_and_kill_auth():
            await mesh.edge_stacks[mesh.holding_edge].aclose()
            await mesh.auth.stop()
            await mesh.auth.start()

        await interrupted(mesh, drain_and_kill_auth, "call")
        assert await mesh.wait_settled() == [
            (PROMPT, CLIENT_TOKENS, "cancelled"),
            (0, TOKENS - CLIENT_TOKENS, "length"),
        ]


async def test_resuming_an_unknown_answer_is_charged_with_all_reported_tokens(tmp_path):
    async with edge_auth_mesh(tmp_path) as mesh, Client(*mesh.addresses, api_key=KEY) as client:
        answer = client.generate("hi", max_output_tokens=TOKENS)
        request = answer._progress._request  # the SDK names only answers whose ID it has received
        request.resume.answer_id = "made-up"
        request.resume.token_ids[:] = [token_at(index) for index in range(CLIENT_TOKENS)]
        await answer.read()
        assert await mesh.wait_settled() == [(PROMPT, TOKENS, "length")]
