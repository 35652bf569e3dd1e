"""Requests of a session while the queue is asked first: nothing runs yet, and each still ends once."""

import asyncio
from datetime import timedelta

import pytest

from edge_mesh import TIMEOUT_S, edge_mesh
from edge_sessions import session
from penstock.chassis.errors import Overloaded
from penstock.edge.admission.probes import MAX_CONCURRENT_PROBES
from penstock.mesh.v1.queue_pb2 import RejectionWindow
from penstock.v1.inference_pb2 import TokenIds

FULL = Overloaded("full", retry_after=TIMEOUT_S)
HANDLE = 7


@pytest.fixture
async def mesh(monkeypatch):
    """One whose queue has refused 10 output tokens, and says nothing to those that ask first."""
    monkeypatch.setattr("penstock.edge.admission.rejection_cache.PROBE_INTERVAL_S", TIMEOUT_S)
    monkeypatch.setattr("penstock.edge.admission.rejection_cache.MAX_REJECTION_TTL_S", TIMEOUT_S)
    monkeypatch.setattr("penstock.edge.admission.probes.PROBE_TIMEOUT_S", TIMEOUT_S)
    async with edge_mesh() as found:
        found.queue.sheds = [FULL]
        found.queue.shed_windows = [
            RejectionWindow(duration=timedelta(seconds=TIMEOUT_S), min_prompt_tokens=1, min_output_tokens=10)
        ]
        found.queue.holds_probes = True
        yield found


@pytest.fixture
async def client(mesh):
    async with session(mesh) as found:
        found.generate(1, max_output_tokens=10)
        assert (await found.next_frame("failed")).failure.reason == "OVERLOADED"
        yield found


async def answered(mesh, client):
    """Welcome whoever asks, as often as it does, and read the answer of `HANDLE`."""
    over = asyncio.ensure_future(client.next_frame("finished"))
    while not over.done():
        asks = asyncio.ensure_future(mesh.queue.held_probes.get())
        await asyncio.wait((over, asks), return_when=asyncio.FIRST_COMPLETED)
        if asks.done():
            mesh.queue.answer_probe(*asks.result())
        asks.cancel()
    assert over.result().handle == HANDLE


async def test_the_welcome_run_and_the_others_are_refused_without_a_reservation(mesh, client):
    reserved = len(mesh.auth.reserves)
    client.generate(HANDLE, max_output_tokens=8)
    client.generate(3, max_output_tokens=9)
    first, second = [await mesh.queue.held_probes.get() for _ in range(2)]
    mesh.queue.answer_probe(*second, FULL)
    failed = await client.next_frame("failed")
    assert (failed.handle, failed.failure.reason) == (3, "OVERLOADED")
    assert len(mesh.auth.reserves) == reserved
    mesh.queue.answer_probe(*first)
    assert (await client.next_frame("finished")).handle == HANDLE


async def test_who_is_welcome_is_not_refused_for_what_others_are_told_meanwhile(mesh, client):
    client.generate(HANDLE, None, token_ids=TokenIds(ids=[5]), max_output_tokens=9)
    first = await mesh.queue.held_probes.get()
    mesh.queue.shed_windows = [
        RejectionWindow(duration=timedelta(seconds=TIMEOUT_S), min_prompt_tokens=1, min_output_tokens=1)
    ]
    client.generate(3, max_output_tokens=8)
    mesh.queue.answer_probe(*await mesh.queue.held_probes.get(), FULL)
    await client.next_frame("failed")
    mesh.queue.answer_probe(*first)
    while (news := await client.frames.get())[0] == "accepted":
        pass
    assert news[0] == "finished"


async def test_of_many_that_come_together_few_ask_and_the_others_are_told_the_same(mesh, client):
    for handle in range(10, 10 + 3 * MAX_CONCURRENT_PROBES):
        client.generate(handle, max_output_tokens=9)
    asked = [await mesh.queue.held_probes.get() for _ in range(MAX_CONCURRENT_PROBES)]
    await mesh.figures()
    assert mesh.queue.held_probes.empty()
    mesh.queue.shed_windows = [
        RejectionWindow(duration=timedelta(seconds=TIMEOUT_S), min_prompt_tokens=1, min_output_tokens=9)
    ]
    for each in asked:
        mesh.queue.answer_probe(*each, FULL)
    told = [(await client.next_frame("failed")).failure for _ in range(3 * MAX_CONCURRENT_PROBES)]
    assert (
        sorted(each.metadata.get("rejected_by", "queue") for each in told)
        == ["edge"] * 2 * MAX_CONCURRENT_PROBES + ["queue"] * MAX_CONCURRENT_PROBES
    )
    assert (await mesh.figures())["pending_probes"] == 0


async def test_a_cancel_is_confirmed_at_once_and_its_handle_is_free(mesh, client):
    client.generate(HANDLE, max_output_tokens=9)
    first = await mesh.queue.held_probes.get()
    client.cancel(HANDLE)
    assert (await client.next_frame("cancelled")).handle == HANDLE
    client.generate(HANDLE, max_output_tokens=8)
    mesh.queue.answer_probe(*first)
    mesh.queue.answer_probe(*await mesh.queue.held_probes.get())
    assert (await client.next_frame("finished")).finished.usage.output_tokens == 8
    assert len(mesh.queue.tickets) == 2, "what was refused before, and the second"


async def test_a_cancel_that_comes_with_its_request_ends_it(mesh, client):
    client.generate(HANDLE, max_output_tokens=9)
    client.cancel(HANDLE)
    assert (await client.next_frame("cancelled")).handle == HANDLE
    client.generate(HANDLE, max_output_tokens=9)
    await answered(mesh, client)


async def test_a_handle_that_waits_for_the_queue_is_in_use(mesh, client):
    client.generate(HANDLE, max_output_tokens=9)
    client.generate(HANDLE, max_output_tokens=9)
    kind, reason = await client.frames.get()
    assert kind == "down"
    assert "is in use by a running request" in reason


async def test_who_says_that_nothing_more_comes_is_still_answered_what_it_asked(mesh, client):
    client.generate(HANDLE, max_output_tokens=9)
    client.link.end("enough")
    await answered(mesh, client)


async def test_a_session_that_is_cut_while_the_queue_is_asked_opens_nothing(mesh):
    async with session(mesh) as client:
        client.generate(1, max_output_tokens=10)
        await client.next_frame("failed")
        client.generate(HANDLE, max_output_tokens=9)
        asked = await mesh.queue.held_probes.get()
    while (await mesh.figures())["pending_probes"]:
        pass
    mesh.queue.answer_probe(*asked)
    figures = await mesh.figures()
    assert (figures["active_requests"], figures["requests_started"]) == (0, 1)
