"""Delayed settlements of a real edge reach auth with the next reservation, over a new stream and before its end."""

import asyncio

import pytest

from edge_calls import wait_at_rest
from edge_mesh import edge_mesh
from edge_sessions import session
from penstock.edge.upstreams import auth_streams

BURST_REQUESTS = 12


@pytest.fixture(autouse=True)
def _without_end_of_delay(monkeypatch):
    monkeypatch.setattr(auth_streams, "SETTLEMENT_DELAY_S", 3_600.0)


async def cancel_burst(mesh, client):
    """Start and cancel many requests. Their settlements are held."""
    mesh.queue.holds_tickets = True
    for handle in range(BURST_REQUESTS):
        client.generate(handle)
    for _ in range(BURST_REQUESTS):
        await mesh.queue.held_tickets.get()
    for handle in range(BURST_REQUESTS):
        client.cancel(handle)
    for _ in range(BURST_REQUESTS):
        await client.next_frame("cancelled")
    mesh.queue.holds_tickets = False
    assert len(mesh.auth.open_reservations) == BURST_REQUESTS


async def test_a_burst_of_cancels_costs_few_messages_and_frees_its_tokens_for_the_next_request():
    async with edge_mesh() as mesh, session(mesh) as client:
        await cancel_burst(mesh, client)
        answer, found_open = mesh.auth.answer, []

        def count_and_answer(frame):
            if frame.HasField("reserve"):
                found_open.append(len(mesh.auth.open_reservations))
            return answer(frame)

        mesh.auth.answer = count_and_answer
        client.generate(BURST_REQUESTS, max_output_tokens=3)
        await client.next_frame("finished")
        assert found_open == [0]
        outcomes = [(await mesh.auth.settles.get()).outcome for _ in range(BURST_REQUESTS + 1)]
        assert outcomes == ["cancelled"] * BURST_REQUESTS + ["length"]
        assert mesh.auth.settles.empty()  # each once


async def test_held_settlements_reach_auth_over_a_new_stream():
    async with edge_mesh() as mesh, session(mesh) as client:
        await cancel_burst(mesh, client)
        for peer in list(mesh.auth.peers):
            peer.close("killed")
        assert {(await mesh.auth.settles.get()).outcome for _ in range(BURST_REQUESTS)} == {"cancelled"}
        await wait_at_rest(mesh)


async def test_a_draining_edge_sends_held_settlements_first():
    async with edge_mesh() as mesh:
        async with session(mesh) as client:
            await cancel_burst(mesh, client)
        async with asyncio.timeout(30):
            await mesh.drain()
        assert not mesh.auth.open_reservations
