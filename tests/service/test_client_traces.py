"""The trace of a request of the SDK is in the metadata of its call, where proxies read it."""

import asyncio

from client_edges import ScriptedEdge, SessionEdge, client_of
from inference_server import inference_server
from penstock.client import Client

TRACEPARENT, OTHER = (f"00-{digit * 32}-{'b' * 16}-01" for digit in "ac")


async def test_the_traceparent_of_a_request_is_metadata_of_each_of_its_calls():
    edge = ScriptedEdge(script=[2])
    async with client_of(edge) as client:
        assert await client.complete("hi", traceparent=TRACEPARENT)
        assert await client.complete("hi")
    assert [each.get("traceparent") for each in edge.metadata] == [TRACEPARENT, TRACEPARENT, None]


async def test_the_traceparent_of_a_session_is_metadata_of_its_stream_and_that_of_its_requests():
    edge, opened = SessionEdge(), []

    async def open_session(request_iterator, context):
        opened.append(dict(context.invocation_metadata()).get("traceparent"))
        await edge.session(request_iterator, context)

    async with inference_server(Session=open_session) as (_, server), Client(server.address) as client:
        for traceparent in (TRACEPARENT, ""):
            async with client.session(traceparent=traceparent) as session:
                given = [await sent(session, edge), await sent(session, edge, traceparent=OTHER)]
            assert given == [traceparent, OTHER]
    assert opened == [TRACEPARENT, None]


async def sent(session, edge, **options):
    """Send a request, and return the traceparent that the edge received with it."""
    answered = asyncio.create_task(session.complete("hi", **options))
    request = await edge.next_frame("generate")
    edge.accept(request)
    edge.finish(request.handle)
    await answered
    return request.request.traceparent
