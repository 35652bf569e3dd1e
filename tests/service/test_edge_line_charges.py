"""Lines of batches between real edges and a real auth: whoever runs a line again, it is charged once."""

import orjson
import pytest

from edge_auth_mesh import KEY, edge_auth_mesh
from edge_mesh import text_of
from line_streams import line_client
from penstock.mesh.v1 import batch_pb2 as pb
from penstock.mesh.v1.admission_pb2 import Credential

TOKENS = 5
COMPLETION = ("/v1/completions", {"model": "tiny", "prompt": "hi", "max_tokens": TOKENS})
CHOICES = ("/v1/completions", {"model": "tiny", "prompt": ["hi", "ho"], "n": 2, "max_tokens": TOKENS})
EMBEDDINGS = ("/v1/embeddings", {"model": "tiny", "input": ["hi", "ho"]})


def delegation_of(mesh) -> bytes:
    caller = Credential(bearer=KEY, loopback=True)
    return mesh.auth.authorizer.delegate(caller, mesh.auth.now, edge_id="edge-1")[1]


async def answer_at(mesh, number, endpoint, body, delegation) -> pb.LineEnded:
    """Run the same line at an edge."""
    async with line_client(mesh.addresses[number]) as lines:
        lines.start(1, body, endpoint=endpoint, delegation=delegation, may_have_run=number > 0)
        return await lines.end_of(1)


@pytest.mark.parametrize(("endpoint", "body"), [COMPLETION, CHOICES, EMBEDDINGS], ids=["one", "choices", "embeddings"])
async def test_a_line_whose_answer_was_lost_after_its_charge_runs_again_and_is_charged_once(tmp_path, endpoint, body):
    async with edge_auth_mesh(tmp_path, edges=2) as mesh:
        delegation = delegation_of(mesh)
        first = await answer_at(mesh, 0, endpoint, body, delegation)
        balance = mesh.auth.authorizer.reservations.quota("default").balance
        again = await answer_at(mesh, 1, endpoint, body, delegation)
        assert first.verdict == again.verdict == pb.LINE_VERDICT_ANSWERED
        assert _without_times(first) == _without_times(again)
        charged = mesh.auth.authorizer.reservations.quota("default").balance
        assert (balance.prompt_tokens, balance.output_tokens) == (first.input_tokens, first.output_tokens)
        assert (charged.prompt_tokens, charged.output_tokens) == (first.input_tokens, first.output_tokens)
        assert charged.requests == 2 * balance.requests


async def test_a_line_is_answered_without_the_key_and_stops_its_batch_once_the_key_is_revoked(tmp_path):
    async with edge_auth_mesh(tmp_path) as mesh:
        delegation = delegation_of(mesh)
        ended = await answer_at(mesh, 0, *COMPLETION, delegation)
        assert orjson.loads(ended.body)["choices"][0]["text"] == text_of(TOKENS)
        mesh.auth.authorizer.keys.revoke("dev", mesh.auth.now)
        stopped = await answer_at(mesh, 0, *COMPLETION, delegation)
        assert (stopped.verdict, stopped.failure.reason) == (pb.LINE_VERDICT_STOP, "KEY_REVOKED")


def _without_times(ended: pb.LineEnded) -> dict:
    answer = orjson.loads(ended.body)
    answer.pop("created", None)
    return answer
