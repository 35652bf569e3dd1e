"""The SDK and regions that refuse its tenant: another region is asked once, the same one never again."""

import asyncio

import pytest

from client_edges import WORDS, ScriptedEdge, SessionEdge, answer_request, client_of, session_across
from inference_server import inference_server
from penstock.chassis.errors import PermissionDenied
from penstock.client import Client
from penstock.v1 import inference_pb2 as pb

REFUSAL = PermissionDenied("tenant acme allows the regions us", reason="REGION_NOT_ALLOWED")
ANSWER = "".join(WORDS)


class RefusingEdge(ScriptedEdge):
    """An edge of a region that the tenant does not allow."""

    def next_step(self):
        return REFUSAL


class RefusingSessions(SessionEdge):
    """An edge of a region that the tenant does not allow, for sessions."""

    async def session(self, request_iterator, context):
        raise REFUSAL


async def test_a_refused_request_goes_on_in_another_region_as_one_attempt():
    refusing, allowed = RefusingEdge(), ScriptedEdge()
    async with client_of(refusing, allowed) as client:
        for _ in range(3):
            async with client.generate("Hello") as generation:
                assert (await generation.read(), generation.attempts) == (ANSWER, 1)
    assert (len(refusing.requests), len(allowed.requests)) == (1, 3)


@pytest.mark.parametrize("targets", [1, 3])
async def test_a_request_that_all_regions_refuse_asks_each_of_them_once(targets):
    edges = [RefusingEdge() for _ in range(targets)]
    async with client_of(*edges) as client:
        with pytest.raises(PermissionDenied) as failure:
            await client.complete("Hello")
    assert failure.value.reason == "REGION_NOT_ALLOWED"
    assert [len(each.requests) for each in edges] == [1] * targets


async def test_another_refusal_is_not_repeated_elsewhere():
    edges = [ScriptedEdge(script=[PermissionDenied("no", reason="MODEL_FORBIDDEN")]) for _ in range(2)]
    async with client_of(*edges) as client:
        with pytest.raises(PermissionDenied):
            await client.complete("Hello")
    assert sum(len(each.requests) for each in edges) == 1


async def test_a_unary_call_goes_on_in_another_region():
    asked = []

    async def count(request, context):
        asked.append(request)
        if len(asked) == 1:
            raise REFUSAL
        return pb.CountTokensResponse(prompt_tokens=7)

    async with client_of(ScriptedEdge(), ScriptedEdge(), CountTokens=count) as client:
        assert (await client.count_tokens("Hello")).prompt_tokens == 7
    assert len(asked) == 2


async def test_a_session_leaves_a_region_that_refuses_a_request():
    refusing, allowed = SessionEdge(), SessionEdge()
    async with session_across(refusing, allowed) as session:
        reading = asyncio.create_task(session.complete("Hello"))
        request = await refusing.next_frame("generate")
        refusing.send(failed=pb.SessionFailed(handle=request.handle, failure=REFUSAL.failure()))
        request = await allowed.next_frame("generate")
        allowed.accept(request)
        await answer_request(allowed, request)
        assert await reading == ANSWER


async def test_a_session_that_a_region_refuses_as_a_whole_opens_in_another_one():
    allowed = SessionEdge()
    async with session_across(RefusingSessions(), allowed) as session:
        reading = asyncio.create_task(session.complete("Hello"))
        request = await allowed.next_frame("generate")
        allowed.accept(request)
        await answer_request(allowed, request)
        assert await reading == ANSWER


async def test_a_session_stays_at_a_failover_target_while_its_home_region_refuses_it():
    allowed = SessionEdge()
    async with (
        inference_server(Session=RefusingSessions().session) as (_, home),
        inference_server(Session=allowed.session) as (_, away),
        Client(home.address, failover=[away.address]) as client,
        client.session() as session,
    ):
        for _ in range(3):
            reading = asyncio.create_task(session.complete("Hello"))
            request = await allowed.next_frame("generate")
            allowed.accept(request)
            await answer_request(allowed, request)
            assert await reading == ANSWER
    assert len(allowed.peers) == 1
