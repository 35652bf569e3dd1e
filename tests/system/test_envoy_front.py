"""A real Envoy, configured by the real control plane, in front of backends that the test controls.

Requirements: streams pass unbuffered and uncut, disconnects of clients are detected, and edges change under load.
"""

import asyncio
import json
import subprocess
from contextlib import AsyncExitStack

import grpc
import pytest

from envoy_proxy import ECHO, ENVOY, Backend, EnvoyProxy
from penstock.routing.bootstrap import bootstrap


@pytest.fixture
async def up(tmp_path):
    """Starts the processes that a test names, and ends them in reverse order."""
    async with AsyncExitStack() as stack:

        async def bring(*names):
            backends = [await stack.enter_async_context(Backend(name).running()) for name in names]
            front = EnvoyProxy(tmp_path)
            front.write_edges(*(backend.edge for backend in backends))
            front.plane = await stack.enter_async_context(front.control_plane())
            await front.plane.wait_for_line('"listening"')
            front.proxy = await stack.enter_async_context(front.envoy())
            front.calls = await stack.enter_async_context(front.channel())
            return front, *backends

        yield bring


def unary(front, **how):
    return front.calls.unary_unary(f"{ECHO}Unary")(b"", **how)


def stream(front):
    return front.calls.unary_stream(f"{ECHO}Stream")(b"")


async def http(front, path, *headers):
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
    lines = [f"GET {path} HTTP/1.1", "host: front", *headers]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    return reader, writer


async def test_a_stream_passes_unbuffered_over_grpc_and_over_http(up):
    front, a = await up("a")
    call = stream(front)
    assert await call.read() == b"a first"  # the second is not made before `go`
    reader, writer = await http(front, "/v1/stream")
    assert b"200 OK" in await reader.readuntil(b"data: a first\n\n")
    a.may_continue.set()
    assert await call.read() == b"a second"
    assert await call.code() is grpc.StatusCode.OK
    await reader.readuntil(b"data: a second\n\n")
    writer.close()


async def test_a_bidirectional_stream_passes_each_response_before_the_next_request(up):
    front, _ = await up("a")
    call = front.calls.stream_stream(f"{ECHO}Chat")()
    for word in (b"one", b"two", b"three"):
        await call.write(word)
        assert await call.read() == b"a " + word
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK


async def test_the_backend_detects_a_client_that_cancels(up):
    front, a = await up("a")
    call = stream(front)
    await call.read()
    call.cancel()
    await a.client_disconnected.wait()


async def test_the_backend_detects_an_http_client_that_disconnects(up):
    front, a = await up("a")
    reader, writer = await http(front, "/v1/stream")
    await reader.readuntil(b"data: a first\n\n")
    writer.close()
    await a.client_disconnected.wait()


async def test_trace_and_request_ids_pass_through_and_the_deadline_is_left_to_the_edge(up):
    front, a = await up("a")
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    call = unary(front, metadata=(("traceparent", trace), ("x-request-id", "mine")), timeout=60)
    await call
    assert (a.metadata["traceparent"], a.metadata["x-request-id"]) == (trace, "mine")
    assert dict(await call.initial_metadata())["x-request-id"] == "mine"


async def test_two_thousand_streams_over_twenty_connections_meet_no_limit_of_the_proxy(up):
    front, a = await up("a")
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(front.channel(own=number)) for number in range(20)]
        calls = [channels[number % 20].unary_stream(f"{ECHO}Stream")(b"") for number in range(2000)]
        assert set(await asyncio.gather(*(call.read() for call in calls))) == {b"a first"}
        a.may_continue.set()
        assert set(await asyncio.gather(*(call.read() for call in calls))) == {b"a second"}


async def test_six_hundred_early_cancels_cost_the_other_streams_nothing(up):
    front, a = await up("a")
    steady = stream(front)
    await steady.read()
    for _ in range(600):
        early = front.calls.unary_stream(f"{ECHO}Silent")(b"")
        await a.silent_calls.acquire()  # admitted, and without a response so far
        early.cancel()
    await unary(front)  # on the same connection, after all of them
    a.may_continue.set()
    assert await steady.read() == b"a second"


async def test_an_added_edge_is_used_and_a_removed_one_ends_its_streams_itself(up):
    front, a, b = await up("a", "b")
    front.write_edges(a.edge)
    await front.plane.wait_for_line('"edges_changed"')
    await front.plane.wait_for_line('"xds_ack"', "ENDPOINT")
    running = stream(front)
    assert await running.read() == b"a first"
    front.write_edges(a.edge, b.edge)
    await front.plane.wait_for_line('"edges_changed"')
    await answers_come_from(front, b"b")
    front.write_edges(b.edge)
    await front.plane.wait_for_line('"edges_changed"')
    await front.plane.wait_for_line('"xds_ack"', "ENDPOINT")
    assert {await unary(front) for _ in range(20)} == {b"b"}
    a.may_continue.set()
    assert await running.read() == b"a second"
    assert await running.code() is grpc.StatusCode.OK


async def answers_come_from(front, name):
    while await unary(front) != name:
        pass


async def test_a_draining_edge_gets_no_new_call_and_keeps_its_streams(up):
    front, a, b = await up("a", "b")
    running = [stream(front) for _ in range(8)]
    assert {await call.read() for call in running} == {b"a first", b"b first"}
    front.write_edges(f"{a.edge};draining", b.edge)
    await front.plane.wait_for_line('"edges_changed"')
    await front.plane.wait_for_line('"xds_ack"', "ENDPOINT")
    assert {await unary(front) for _ in range(20)} == {b"b"}
    a.may_continue.set(), b.may_continue.set()
    assert {await call.read() for call in running} == {b"a second", b"b second"}


async def test_the_next_region_serves_only_if_the_first_is_gone(up):
    front, a, b = await up("a", "b")
    front.write_edges(f"{a.edge}@eu", f"{b.edge}@us;1")
    await front.plane.wait_for_line('"edges_changed"')
    await front.plane.wait_for_line('"xds_ack"', "ENDPOINT")
    assert {await unary(front) for _ in range(20)} == {b"a"}
    await a.stop()
    assert {await unary(front) for _ in range(20)} == {b"b"}


async def test_the_death_of_the_control_plane_disturbs_nothing(up):
    front, a = await up("a")
    running = stream(front)
    await running.read()
    front.plane.child.kill()
    await front.plane.child.wait()
    assert await unary(front) == b"a"
    async with front.control_plane() as plane:
        await plane.wait_for_line('"listening"')
        front.write_edges(a.edge, "127.0.0.1:1/127.0.0.1:1")
        await plane.wait_for_line('"edges_changed"')
        await plane.wait_for_line('"xds_ack"', "ENDPOINT")  # it has reconnected and accepted the change
        a.may_continue.set()
        assert await running.read() == b"a second"


async def test_without_any_edge_the_proxy_fails_at_once_in_the_format_of_each_protocol(up):
    front, a = await up("a")
    await a.stop()
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        while True:
            await unary(front)
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    reader, writer = await http(front, "/v1/models", "connection: close")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert b"content-type: application/json" in head
    assert json.loads(body)["error"]["type"] == "server_error"
    writer.close()


@pytest.mark.parametrize("how", [{}, {"ready_address": "127.0.0.1:9902"}, {"max_heap_bytes": 2**29}])
def test_envoy_accepts_the_bootstrap(tmp_path, how):
    file = tmp_path / "envoy.json"
    file.write_text(json.dumps(bootstrap("127.0.0.1:7006", "127.0.0.1:9901", "front-1", **how)))
    validation = subprocess.run([ENVOY, "--mode", "validate", "-c", file], capture_output=True, text=True, check=False)
    assert validation.returncode == 0, validation.stderr
