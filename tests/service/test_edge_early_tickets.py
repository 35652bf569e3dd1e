"""A real edge enqueues the ticket of a recently admitted caller beside the reservation."""

import asyncio

import grpc
import pytest

from edge_calls import wait_at_rest
from edge_mesh import edge_mesh
from edge_sessions import session
from penstock.chassis.errors import QuotaExceeded

REJECTED_REQUESTS = 5


class WithheldAnswers:
    """Keeps the answers of auth to reservations until `release`."""

    def __init__(self, mesh):
        self._auth = mesh.auth
        self._answer, mesh.auth.answer = mesh.auth.answer, self.answer
        self.reserves = asyncio.Queue()

    def answer(self, frame):
        if not frame.HasField("reserve"):
            return self._answer(frame)
        self.reserves.put_nowait(frame)
        return None

    async def release(self):
        self._auth.answer = self._answer
        frame = await self.reserves.get()
        for peer in self._auth.peers:
            peer.send(self._answer(frame))


async def admit_caller(mesh, client):
    client.generate(0, max_output_tokens=1)
    await client.next_frame("finished")


async def test_a_ticket_reaches_the_queue_before_auth_answers_and_runs_once_it_does():
    async with edge_mesh() as mesh, session(mesh) as client:
        await admit_caller(mesh, client)
        withheld = WithheldAnswers(mesh)
        client.generate(1, max_output_tokens=3)
        while len(mesh.queue.tickets) < 2:
            await mesh.figures()
        assert len(mesh.workers[0].starts) == 1
        await withheld.release()
        await client.next_frame("finished")
        assert len(mesh.queue.tickets) == 2
        assert len(mesh.workers[0].starts) == 2
        await wait_at_rest(mesh)


async def test_the_first_request_of_a_caller_is_enqueued_after_its_reservation():
    async with edge_mesh() as mesh, session(mesh) as client:
        withheld = WithheldAnswers(mesh)
        client.generate(0, max_output_tokens=1)
        frame = await withheld.reserves.get()
        await mesh.figures()
        assert mesh.queue.tickets == []
        withheld.reserves.put_nowait(frame)
        await withheld.release()
        await client.next_frame("finished")


async def test_a_rejected_caller_costs_the_queue_one_ticket_until_it_is_admitted_again():
    async with edge_mesh() as mesh:
        await mesh.generate(max_output_tokens=1).read()
        await wait_at_rest(mesh)
        mesh.queue.holds_tickets = True
        mesh.auth.rejections = [QuotaExceeded("over the limit", retry_after=1.0) for _ in range(REJECTED_REQUESTS)]
        for _ in range(REJECTED_REQUESTS):
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await mesh.generate(max_output_tokens=1).read()
            assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        early = await mesh.queue.held_tickets.get()
        assert await mesh.queue.withdrawn.get() == [early.ticket_id]
        assert len(mesh.queue.tickets) == 2  # of the admitted request, and of the first rejected one
        assert len(mesh.workers[0].starts) == 1
