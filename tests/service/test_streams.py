"""The two ends of a multiplexed stream, over a real server and channel."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from structlog.testing import capture_logs

from free_ports import free_port
from penstock.chassis.channels import channel
from penstock.chassis.errors import FailedPrecondition
from penstock.chassis.server.server import serving
from penstock.chassis.streams import endpoint, ticks
from penstock.chassis.streams import link as link_module
from penstock.chassis.streams.endpoint import StreamEndpoint
from penstock.chassis.streams.link import Link, accept_stream
from penstock.chassis.streams.outbox import MAX_BUNDLE_BYTES, MAX_BUNDLE_FRAMES, Outbox
from penstock.chassis.streams.protocol import HIGHEST_VERSION
from penstock.mesh.v1.admission_pb2 import AdmitRequest, AdmitResponse, Identify, Settled
from penstock.mesh.v1.admission_pb2_grpc import (
    AdmissionServiceServicer,
    AdmissionServiceStub,
    add_AdmissionServiceServicer_to_server,
)
from penstock.v1.stream_pb2 import End, Hello


class Echo(AdmissionServiceServicer):
    """Answers each `identify` with a `settled` of the same id, and reports the ends of its streams to tests."""

    def __init__(self):
        self.peers = asyncio.Queue()
        self.left = asyncio.Queue()

    async def Admit(self, request_iterator, context):
        hello = Hello(protocol=HIGHEST_VERSION, instance_id="echo", tier="auth")
        async with accept_stream(context, AdmitResponse, hello) as peer:
            self.peers.put_nowait(peer)
            try:
                async for frame in peer:
                    peer.send(AdmitResponse(settled=Settled(reservation_id=frame.identify.request_id)))
            finally:
                self.left.put_nowait(peer.has_peer_ended)


@asynccontextmanager
async def echo_server(port=0):
    echo = Echo()
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    add_AdmissionServiceServicer_to_server(echo, server)
    port = server.add_insecure_port(f"127.0.0.1:{port or free_port()}")
    await server.start()
    try:
        yield echo, f"127.0.0.1:{port}", server
    finally:
        await server.stop(0)


@asynccontextmanager
async def link_to(address, **options):
    events = asyncio.Queue()
    async with channel(address) as open_channel:
        link = Link(
            "echo",
            lambda: AdmissionServiceStub(open_channel).Admit(),
            AdmitRequest,
            Hello(protocol=options.pop("protocol", HIGHEST_VERSION), instance_id="me", tier="edge"),
            on_frame=lambda frame: events.put_nowait(("frame", frame)),
            on_up=lambda hello: events.put_nowait(("up", hello.instance_id)),
            on_down=lambda reason: events.put_nowait(("down", reason)),
            **options,
        )
        running = asyncio.create_task(link.run())
        try:
            yield link, events
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def identify_frame(request_id):
    return AdmitRequest(identify=Identify(request_id=request_id))


async def test_frames_arrive_in_order_after_both_hellos():
    async with echo_server() as (_, address, _), link_to(address) as (link, events):
        assert await events.get() == ("up", "echo")
        assert all(link.send(identify_frame(str(number))) for number in range(100))
        answers = [(await events.get())[1].settled.reservation_id for _ in range(100)]
        assert answers == [str(number) for number in range(100)]


@asynccontextmanager
async def raw_call(address, **hello):
    """A peer that the test controls, after its handshake."""
    async with channel(address) as open_channel:
        call = AdmissionServiceStub(open_channel).Admit()
        greeting = Hello(protocol=HIGHEST_VERSION, instance_id="raw", tier="edge", **hello)
        await call.write(AdmitRequest(hello=greeting))
        answer = await call.read()
        assert (answer.WhichOneof("frame"), answer.hello.bundles, list(answer.more)) == ("hello", True, [])
        yield call


def ids_in(message):
    frames = message.more or [message]
    return [each.settled.reservation_id for each in frames if each.WhichOneof("frame") == "settled"]


async def test_frames_that_are_ready_together_are_bundled_for_a_peer_that_accepts_bundles():
    numbers = [str(number) for number in range(3 * MAX_BUNDLE_FRAMES)]
    async with echo_server() as (echo, address, _), raw_call(address, bundles=True) as call:
        peer = await echo.peers.get()
        for number in numbers:
            peer.send(AdmitResponse(settled=Settled(reservation_id=number)))
        received = []
        messages = 0
        while len(received) < len(numbers):
            message = await call.read()
            assert len(message.more) <= MAX_BUNDLE_FRAMES
            received += ids_in(message)
            messages += bool(ids_in(message))
        assert received == numbers
        assert messages <= 4


async def test_a_peer_without_bundles_gets_each_frame_in_a_message():
    numbers = [str(number) for number in range(100)]
    async with echo_server() as (echo, address, _), raw_call(address) as call:
        peer = await echo.peers.get()
        for number in numbers:
            peer.send(AdmitResponse(settled=Settled(reservation_id=number)))
        received = []
        while len(received) < len(numbers):
            message = await call.read()
            assert not message.more
            received += ids_in(message)
        assert received == numbers


async def test_bundled_frames_are_passed_on_one_by_one_and_none_after_the_end():
    async with echo_server() as (echo, address, _), raw_call(address) as call:
        end = AdmitRequest(end=End(reason="done"))
        await call.write(
            AdmitRequest(more=[identify_frame("a"), identify_frame("b"), AdmitRequest(), end, identify_frame("c")])
        )
        assert [ids_in(await call.read()) for _ in range(2)] == [["a"], ["b"]]
        assert await echo.left.get()
        assert await call.read() is grpc.aio.EOF


async def test_a_frame_of_the_maximum_size_is_sent_alone():
    outbox, written = Outbox(10), asyncio.Queue()
    frames = [
        identify_frame("hello"),
        identify_frame("before"),
        identify_frame("x" * MAX_BUNDLE_BYTES),
        identify_frame("after"),
        identify_frame("last"),
    ]
    for frame in frames:
        outbox.put(frame)
    writing = asyncio.create_task(outbox.write_all(written.put, can_bundle=lambda: True))
    messages = [await written.get() for _ in range(4)]
    writing.cancel()
    assert messages[:3] == frames[:3]
    assert list(messages[3].more) == frames[3:]


async def test_bundling_changes_no_frame_and_bounds_the_size_of_a_message():
    outboxes = [Outbox(10), Outbox(10)]
    frames = [
        identify_frame("hello"),
        *(identify_frame(str(number) + "x" * (MAX_BUNDLE_BYTES // 2 - 100)) for number in range(5)),
    ]
    before = [frame.SerializeToString() for frame in frames]
    for outbox in outboxes:
        written = asyncio.Queue()
        for frame in frames:
            outbox.put(frame)
        writing = asyncio.create_task(outbox.write_all(written.put, can_bundle=lambda: True))
        messages = [await written.get() for _ in range(4)]
        writing.cancel()
        assert messages[0] == frames[0]
        assert [len(message.more) for message in messages[1:]] == [2, 2, 0]
        assert [each for message in messages[1:] for each in message.more or [message]] == frames[1:]
    assert [frame.SerializeToString() for frame in frames] == before


async def test_a_link_that_is_down_rejects_frames():
    async with link_to("127.0.0.1:1") as (link, events):
        assert not link.is_up
        assert not link.send(identify_frame("a"))
        assert events.empty()


async def test_a_cut_stream_is_reported_once_and_connected_again():
    async with echo_server() as (echo, address, _), link_to(address) as (link, events):
        assert await events.get() == ("up", "echo")
        (await echo.peers.get()).close("cut by the test")
        assert (await events.get())[0] == "down"
        assert await events.get() == ("up", "echo")
        assert link.is_up


async def test_an_end_is_distinguished_from_a_cut():
    async with echo_server() as (echo, address, _):
        async with link_to(address) as (link, events):
            await events.get()
            link.end("drained")
            assert await echo.left.get()
        async with link_to(address) as (link, events):
            await events.get()
        assert not await echo.left.get()


async def test_a_closed_link_sends_nothing_more_and_does_not_reconnect():
    async with echo_server() as (echo, address, _), link_to(address) as (link, events):
        await events.get()
        link.close("drained")
        assert not link.send(identify_frame("late"))
        await link.flush()
        assert await echo.left.get()
        assert await events.get() == ("down", "ended")
        await link.run()  # a second run of an ended link returns at once
        assert echo.peers.qsize() == 1


async def test_a_server_that_is_stopped_between_two_frames_ends_its_streams_without_a_fault():
    class ServerStopped(grpc.aio.BaseError):
        """The error that grpc raises on a stopped server; grpc does not export its class."""

    class Context:
        async def read(self):
            raise ServerStopped

    peer = link_module.Peer(Context(), AdmitResponse, Hello(), capacity=8)
    assert [frame async for frame in peer] == []


async def test_a_flush_does_not_wait_for_frames_that_can_no_longer_be_written(monkeypatch):
    monkeypatch.setattr(endpoint, "FLUSH_TIMEOUT_S", 3_600.0)
    end = StreamEndpoint(AdmitRequest, Hello(), capacity=8)

    async def fail(_):
        raise asyncio.InvalidStateError

    flushing = asyncio.create_task(end.flush())
    await end.write(fail)
    await flushing
    assert end.close_reason == "write failed: InvalidStateError"


async def test_a_silent_stream_is_closed(monkeypatch):
    monkeypatch.setattr(ticks, "TICK_S", 0.02)
    async with echo_server() as (echo, address, _), link_to(address) as (_link, events):
        await events.get()
        peer = await echo.peers.get()
        peer.ticks.stop()  # from now on it sends no heartbeat
        peer._outbox.put = lambda frame: True  # and no other frame
        assert await events.get() == ("down", "peer is silent")


async def test_heartbeats_keep_a_quiet_stream_alive(monkeypatch):
    monkeypatch.setattr(ticks, "TICK_S", 0.01)
    async with echo_server() as (echo, address, _), link_to(address) as (_link, events):
        await events.get()
        peer = await echo.peers.get()
        received = 0
        original = peer.on_frame

        def count(frame):
            nonlocal received
            received += frame.WhichOneof("frame") == "heartbeat"
            if received == 3 * endpoint.MAX_SILENT_TICKS:
                peer.send(AdmitResponse(settled=Settled(reservation_id="quiet")))
            return original(frame)

        peer.on_frame = count
        assert (await events.get())[1].settled.reservation_id == "quiet"


async def test_a_peer_that_does_not_read_loses_its_stream_without_a_wait():
    async with echo_server() as (_, address, _), link_to(address, capacity=8) as (link, events):
        await events.get()
        sent = 0
        while link.send(identify_frame("x" * 1000)):  # without an await, no frame can be written
            sent += 1
        assert sent <= 8
        assert await events.get() == ("down", "peer does not read")


async def test_a_stream_must_begin_with_hello():
    async with echo_server() as (_, address, _), channel(address) as open_channel:
        call = AdmissionServiceStub(open_channel).Admit()
        await call.write(identify_frame("too early"))
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()


def supporting(lowest, highest, instance_id="me", **fields):
    return Hello(min_protocol=lowest, protocol=highest, instance_id=instance_id, tier="edge", **fields)


def endpoint_after(frame, own=None):
    endpoint = StreamEndpoint(AdmitRequest, own or supporting(1, 1), 8)
    endpoint.accept_hello(frame)
    return endpoint


@pytest.mark.parametrize("frame", [grpc.aio.EOF, identify_frame("a"), AdmitRequest()])
async def test_a_first_frame_that_is_no_hello_is_rejected_with_its_reason(frame):
    with pytest.raises(FailedPrecondition) as failure:
        endpoint_after(frame)
    assert failure.value.reason == "HELLO_MISSING"


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [((1, 1), (1, 1), 1), ((1, 2), (1, 1), 1), ((1, 2), (2, 3), 2), ((2, 4), (1, 3), 3), ((1, 3), (0, 2), 2)],
)
async def test_peers_agree_on_the_highest_protocol_that_both_support(ours, theirs, agreed):
    for one, other in ((ours, theirs), (theirs, ours)):
        assert endpoint_after(AdmitRequest(hello=supporting(*one)), supporting(*other)).protocol == agreed


@pytest.mark.parametrize("theirs", [(2, 3), (0, 2), (0, 0), (3, 1)])
async def test_a_peer_without_a_common_protocol_is_rejected_with_both_ranges(theirs):
    lowest, highest = theirs
    text = f"protocols 1 to 1, the peer {lowest or highest} to {highest} .release 9.9.; upgrade the older one"
    with pytest.raises(FailedPrecondition, match=text) as failure:
        endpoint_after(AdmitRequest(hello=supporting(*theirs, release="9.9")))
    assert failure.value.reason == "PROTOCOL_UNSUPPORTED"


async def test_releases_roll_while_their_ranges_overlap():
    async with echo_server() as (echo, address, _), channel(address) as open_channel:
        call = AdmissionServiceStub(open_channel).Admit()
        await call.write(AdmitRequest(hello=supporting(1, HIGHEST_VERSION + 1)))
        assert (await call.read()).hello.protocol == HIGHEST_VERSION
        assert (await echo.peers.get()).protocol == HIGHEST_VERSION


async def test_a_client_logs_once_why_its_stream_is_rejected():
    registration = add_AdmissionServiceServicer_to_server, Echo()
    async with (
        serving("127.0.0.1:0", [registration], drain_grace=0.5) as server,
        channel(server.address) as open_channel,
    ):
        link = Link(
            "echo",
            lambda: AdmissionServiceStub(open_channel).Admit(),
            AdmitRequest,
            supporting(7, 8),
            on_frame=print,
        )
        with capture_logs() as logs:
            for _ in range(2):
                assert not await link.run_once()
    [rejected] = [each for each in logs if each["event"] == "link_rejected"]
    assert "protocols 1 to 1, the peer 7 to 8" in rejected["because"]
