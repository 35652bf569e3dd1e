"""TCP relays of a local mesh: forwarding, cuts, and that every connection of a plan uses a relay."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from penstock.local_mesh.plan import MeshOptions, plan_mesh
from penstock.local_mesh.regions import LocalRegions
from penstock.local_mesh.tcp_relay import CHUNK_BYTES, LINE_BYTES, CutDirection, DelayLine, RelayEnds, TcpRelay
from penstock.proofs.testbed.faults.tcp_relays import CLIENTS, TcpRelays

TIMEOUT_S = 5.0


@asynccontextmanager
async def echo_behind_relay(delay_s=0.0):
    """A server that answers each line with itself, its count of lines, and a connection to it over a relay."""
    received = []

    async def echo(reader, writer):
        while line := await reader.readline():
            received.append(line)
            writer.write(line)
        received.append(b"")
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as far:
        host, port = far.sockets[0].getsockname()
        relay = TcpRelay(RelayEnds("clients", "edge-1"), f"{host}:{port}", delay_s=delay_s)
        async with relay.listening(), connection(relay) as ends:
            yield relay, ends, received


@asynccontextmanager
async def connection(relay):
    host, _, port = relay.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def next_line(reader):
    async with asyncio.timeout(TIMEOUT_S):
        return await reader.readline()


async def until(is_so):
    async with asyncio.timeout(TIMEOUT_S):
        while not is_so():  # noqa: ASYNC110  # the condition has no event
            await asyncio.sleep(0)


async def test_a_relay_forwards_both_directions_and_the_end():
    async with echo_behind_relay() as (relay, (reader, writer), received):
        writer.write(b"a\n")
        assert await next_line(reader) == b"a\n"
        writer.write_eof()
        assert await next_line(reader) == b""
        assert received == [b"a\n", b""]
        assert not relay.has_blocked_data


@pytest.mark.parametrize(
    ("cut", "arrives"),
    [(CutDirection.BOTH, []), (CutDirection.UPSTREAM, []), (CutDirection.DOWNSTREAM, [b"a\n"])],
    ids=["both", "there", "back"],
)
async def test_bytes_that_a_cut_delays_arrive_when_the_relay_is_restored(cut, arrives):
    async with echo_behind_relay() as (relay, (reader, writer), received):
        relay.cut(cut)
        writer.write(b"a\n")
        await until(lambda: relay.has_blocked_data)
        assert received == arrives
        assert not reader._buffer
        relay.restore()
        assert await next_line(reader) == b"a\n"


async def test_the_end_of_a_stream_does_not_pass_a_cut_relay():
    async with echo_behind_relay() as (relay, (reader, writer), received):
        writer.write(b"a\n")
        await next_line(reader)
        relay.cut(CutDirection.BOTH)
        writer.write(b"b\n")
        writer.close()
        await until(lambda: relay.has_blocked_data)
        assert received == [b"a\n"]
        relay.restore()
        await until(lambda: received == [b"a\n", b"b\n", b""])


async def test_a_connection_over_a_cut_relay_is_open_and_silent():
    async with echo_behind_relay() as (relay, (_, first), received):
        relay.cut(CutDirection.BOTH)
        async with connection(relay) as (reader, writer):
            writer.write(b"a\n")
            first.write(b"b\n")
            await until(lambda: relay.has_blocked_data)
            assert received == []
            relay.restore()
            assert await next_line(reader) == b"a\n"


async def test_a_relay_with_a_delay_forwards_every_byte_in_order_and_not_before_it_is_due():
    async with echo_behind_relay(delay_s=0.05) as (_, (reader, writer), received):
        sent_at = asyncio.get_running_loop().time()
        lines = [b"%d\n" % number for number in range(3)]
        for line in lines:
            writer.write(line)
            await asyncio.sleep(0)
        assert [await next_line(reader) for _ in lines] == lines
        assert asyncio.get_running_loop().time() - sent_at >= 0.099, "there and back"
        assert received == lines


async def test_a_process_that_dies_behind_a_relay_ends_the_connection():
    async def reset(reader, writer):
        await reader.read(1)  # unread bytes make the close a reset
        writer.transport.abort()

    async with await asyncio.start_server(reset, "127.0.0.1", 0) as far:
        host, port = far.sockets[0].getsockname()
        relay = TcpRelay(RelayEnds("clients", "edge-1"), f"{host}:{port}")
        async with relay.listening(), connection(relay) as (reader, writer):
            writer.write(b"a" * CHUNK_BYTES)
            assert await next_line(reader) == b""


def test_a_delay_line_holds_each_chunk_until_it_is_due_and_no_more_than_its_capacity():
    line = DelayLine(0.02)
    assert line.is_empty
    line.push(b"a", 1.0)
    line.push(b"bc", 1.015)
    assert (line.wait_s(1.0), line.wait_s(1.5)) == (pytest.approx(0.02), 0.0)
    assert (line.pop(), line.held_bytes, line.wait_s(1.02)) == (b"a", 2, pytest.approx(0.015))
    assert not line.is_full
    line.push(b"x" * LINE_BYTES, 1.0)
    assert line.is_full
    line.pop(), line.pop()
    assert line.is_empty
    assert not line.is_full


async def test_every_connection_of_a_mesh_uses_a_relay(tmp_path):
    options = MeshOptions(edges=2, queues=2, schedulers=2, workers=3, engine="sim", envoy=False)
    plan = plan_mesh(options, tmp_path, "pk_dev_x")
    async with AsyncExitStack() as stack:
        relays = TcpRelays(stack)
        plan_with_relays = await relays.insert_relays(plan)
        servers = {each.address for each in plan.processes}
        for spec in plan_with_relays.processes:
            others = servers - {spec.address}
            named = {part for value in spec.environment.values() for part in value.split(",")}
            assert not named & others, spec
        counts = {
            (opener, server): len(relays.between(opener, server))
            for opener, server in [
                (CLIENTS, "edge"),
                ("edge", "queue"),
                ("edge", "auth"),
                ("edge", "worker"),
                ("scheduler", "queue"),
                ("worker", "scheduler"),
            ]
        }
        assert list(counts.values()) == [2, 4, 2, 3, 4, 6]
        assert sum(counts.values()) == len(relays.all)
        assert len(relays.client_addresses) == 2


def test_the_link_of_two_regions_is_cut_both_ways_and_the_links_of_others_are_not():
    ends = [("eu", "us"), ("us", "eu"), ("eu", "ap"), ("ap", "eu")]
    regions = LocalRegions({}, {each: TcpRelay(RelayEnds(*each), "127.0.0.1:1") for each in ends})
    regions.cut("us", "eu")
    assert [each for each, relay in regions.links.items() if "cut" in repr(relay)] == ends[:2]
    regions.restore("eu", "us")
    assert not any("cut" in repr(relay) for relay in regions.links.values())
