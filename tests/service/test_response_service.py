"""The streams of edges to the store of responses."""

import asyncio

import grpc
import pytest

from auth_server import auth_process, edge
from penstock.chassis.errors import NotFound, error_from_rpc
from penstock.mesh.limits import bounds
from penstock.mesh.v1 import responses_pb2 as pb
from penstock.v1 import admin_pb2 as admin
from penstock.v1.stream_pb2 import Hello
from response_calls import (
    COMPLETED,
    HELD,
    LOST,
    chain,
    claim,
    create,
    extend,
    finish,
    key,
    part,
    progress,
    read,
    response_stream,
    wait_longer,
)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    wait_longer(monkeypatch)


async def test_an_edge_stores_a_response_that_another_edge_reads():
    async with auth_process() as found, response_stream(found.responses) as first:
        await first(create(request=b"question"))
        await first(finish(tokens=part(0, 3), output=b"answer"))
        async with response_stream(found.responses, "edge-2") as second:
            (stored,) = await second(read())
            assert (stored.status, stored.request, stored.output) == (COMPLETED, b"question", b"answer")


async def test_each_call_has_one_result():
    async with auth_process() as found, response_stream(found.responses) as stream:
        ids = [await stream.send(create(f"r{number}")) for number in range(50)]
        ids.append(await stream.send(read("unknown")))
        assert [await stream.receive(each) for each in ids[:50]] == [1] * 50
        with pytest.raises(NotFound):
            await stream.receive(ids[50])
        assert not stream.results


async def test_a_response_outlives_the_stream_that_stored_it():
    async with auth_process() as found:
        async with response_stream(found.responses) as first:
            await first(create(background=True, lease_s=1))
        found.clock.now += 1
        async with response_stream(found.responses, "edge-2") as second:
            (claimed,) = await second(claim())
            assert claimed.epoch == 2
            async with response_stream(found.responses) as first:
                assert await first(extend(progress(epoch=1))) == [LOST]
            assert await second(extend(progress(epoch=2))) == [HELD]


async def test_a_chain_that_exceeds_a_frame_bundle_arrives_whole():
    async with auth_process() as found, response_stream(found.responses) as stream:
        for number in range(8):
            previous = f"r{number - 1}" if number else ""
            await stream(create(f"r{number}", request=b"x" * (3 << 20), previous_response_id=previous))
        assert [len(each.request) for each in await stream(chain("r7"))] == [3 << 20] * 8


async def test_a_drain_answers_open_calls_before_it_ends_the_stream():
    async with auth_process() as found, response_stream(found.responses) as stream:
        ids = [await stream.send(create(f"r{number}")) for number in range(20)]
        assert await stream.receive(ids[0]) == 1
        draining = asyncio.create_task(found.response_service.drain())
        assert [await stream.receive(each) for each in ids[1:]] == [1] * 19
        assert await stream.receive_end() == "draining"
        await draining


async def test_a_frame_out_of_its_range_ends_its_stream_alone():
    async with auth_process() as found, response_stream(found.responses) as other:
        async with response_stream(found.responses, "edge-2") as stream:
            wrong = pb.ReadStored(key=key("r" * (bounds.ID_CHARS + 1)))
            await stream.send({"read": wrong})
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stream.receive_end()
            assert error_from_rpc(error.value).reason == "FRAME_OUT_OF_RANGE"
        assert await other(create()) == 1


async def test_a_stream_begins_with_a_hello():
    async with auth_process() as found:
        call = found.responses.Keep()
        await call.write(pb.KeepRequest(call=pb.StoreCall(**create())))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call.read()
        assert error_from_rpc(error.value).reason == "HELLO_MISSING"
        call = found.responses.Keep()
        await call.write(pb.KeepRequest(hello=Hello(protocol=1, instance_id="edge-1", tier="edge")))
        assert (await call.read()).hello.tier == "auth"
        call.cancel()


async def test_the_figures_show_streams_and_calls():
    async with auth_process() as found, response_stream(found.responses) as stream:
        await stream(create())
        figures = found.response_service.figures
        assert (figures["response_streams"], figures["response_calls_pending"]) == (1, 0)


async def test_deleting_a_tenant_deletes_its_responses():
    async with auth_process() as found, response_stream(found.responses) as stream, edge(found):
        await found.admin.PutTenant(admin.PutTenantRequest(tenant=admin.Tenant(tenant_id="acme")))
        await stream(create())
        await stream(create("r1", tenant_id="other"))
        await found.admin.DeleteTenant(admin.DeleteTenantRequest(tenant_id="acme"))
        with pytest.raises(NotFound):
            await stream(read())
        await stream(read("r1", tenant_id="other"))


async def test_a_tenant_whose_deletion_is_refused_keeps_its_responses():
    async with auth_process() as found, response_stream(found.responses) as stream:
        await stream(create("r1", tenant_id="default"))
        with pytest.raises(grpc.aio.AioRpcError):
            await found.admin.DeleteTenant(admin.DeleteTenantRequest(tenant_id="default"))
        await stream(read("r1", tenant_id="default"))
