"""Many cancels at once at a real edge: their settlements reach auth in few messages and in time."""

import asyncio

import pytest

from edge_calls import wait_at_rest
from edge_mesh import edge_mesh
from edge_sessions import session
from penstock.edge.upstreams import settlements

CROWD = settlements.MAX_IMMEDIATE_FRAMES + 4
HELD = CROWD - settlements.MAX_IMMEDIATE_FRAMES


@pytest.fixture(autouse=True)
def _held_for_good(monkeypatch):
    monkeypatch.setattr(settlements, "COALESCE_WINDOW_S", 3_600.0)


async def leave(mesh, client):
    """Start and cancel many requests; the first few settlements are received."""
    mesh.queue.holds_tickets = True
    for handle in range(CROWD):
        client.generate(handle)
    for _ in range(CROWD):
        await mesh.queue.held_tickets.get()
    for handle in range(CROWD):
        client.cancel(handle)
    for _ in range(CROWD):
        await client.next_frame("cancelled")
    mesh.queue.holds_tickets = False
    assert {(await mesh.auth.settles.get()).outcome for _ in range(settlements.MAX_IMMEDIATE_FRAMES)} == {"cancelled"}
    assert len(mesh.auth.open_reservations) == HELD


async def test_a_burst_of_cancels_costs_few_messages_and_frees_its_tokens_for_the_next_request():
    async with edge_mesh() as mesh, session(mesh) as client:
        await leave(mesh, client)
        answer, found_open = mesh.auth.answer, []

        def count_and_answer(frame):
            if frame.HasField("reserve"):
                found_open.append(len(mesh.auth.open_reservations))
            return answer(frame)

        mesh.auth.answer = count_and_answer
        client.generate(CROWD, max_output_tokens=3)
        await client.next_frame("finished")
        assert found_open == [0]
        await wait_at_rest(mesh)
        assert mesh.auth.settles.qsize() == HELD + 1  # each once


async def test_held_settlements_reach_auth_over_a_new_stream():
    async with edge_mesh() as mesh, session(mesh) as client:
        await leave(mesh, client)
        for peer in list(mesh.auth.peers):
            peer.close("killed")
        assert {(await mesh.auth.settles.get()).outcome for _ in range(HELD)} == {"cancelled"}
        await wait_at_rest(mesh)


async def test_a_draining_edge_sends_held_settlements_first():
    async with edge_mesh() as mesh:
        async with session(mesh) as client:
            await leave(mesh, client)
        async with asyncio.timeout(30):
            await mesh.drain()
        assert not mesh.auth.open_reservations
