"""A home region that sends wrong frames: its stream is cut, and the region that follows it goes on."""

import random
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from auth_server import FakeClock, edge
from frame_samples import random_frame, wrong_frames
from penstock.chassis.server.server import serving
from penstock.chassis.streams.link import accept_stream
from penstock.chassis.streams.protocol import hello_of
from penstock.local_mesh.tcp_relay import RelayEnds, TcpRelay
from penstock.mesh.partitions import PARTITIONS
from penstock.mesh.v1.admission_pb2 import Admitted, OwnedPartitions
from penstock.mesh.v1.region_quota_pb2 import AuthCatalogPart, FollowResponse
from penstock.mesh.v1.region_quota_pb2_grpc import (
    RegionQuotaServiceServicer,
    add_RegionQuotaServiceServicer_to_server,
)
from region_auths import fast, follows, spending_region, wait_until

pytestmark = pytest.mark.usefixtures("fast")
__all__ = ["fast"]
CRASHES = ("handler_crashed", "frame_failed", "unmapped_error")
SEEDS, FRAMES_PER_STREAM = range(8), 40


@dataclass(eq=False)
class WrongHome(RegionQuotaServiceServicer):
    """Owns all partitions and has no tenants."""

    peers: list = field(default_factory=list)

    async def Follow(self, request_iterator, context):
        async with accept_stream(context, FollowResponse, hello_of("auth", "eu-auth-1")) as peer:
            owned = OwnedPartitions(partitions=range(PARTITIONS), epochs=[0] * PARTITIONS)
            peer.send(FollowResponse(owned_partitions=owned))
            peer.send(FollowResponse(catalog=AuthCatalogPart(is_first=True, is_last=True)))
            self.peers.append(peer)
            async for _ in peer:
                pass

    async def next_peer(self, former=None):
        await wait_until(lambda: self.peers and self.peers[-1] is not former and not self.peers[-1].close_reason)
        return self.peers[-1]


@asynccontextmanager
async def wrong_home():
    home, clock = WrongHome(), FakeClock()
    async with serving("127.0.0.1:0", [(add_RegionQuotaServiceServicer_to_server, home)], drain_grace=0.1) as server:
        link = TcpRelay(RelayEnds("us", "eu"), server.address)
        async with link.listening(), spending_region(link, clock=clock) as [us]:
            yield home, us


async def admits(us):
    async with edge(us) as stream:
        return isinstance(await stream.reserve(request_id=f"r-{random.random()}"), Admitted)


async def test_each_field_out_of_its_range_cuts_the_stream():
    with capture_logs() as logs:
        async with wrong_home() as (home, us):
            peer = None
            for path, frame in wrong_frames(FollowResponse):
                peer = await home.next_peer(peer)
                assert peer.send(frame), path
            await home.next_peer(peer)
            await follows(us)
            assert await admits(us)
    assert [each for each in logs if each["event"] in CRASHES] == []


@pytest.mark.parametrize("is_within", [True, False], ids=["within", "beyond"])
async def test_random_frames_harm_their_stream_alone(is_within):
    with capture_logs() as logs:
        async with wrong_home() as (home, us):
            for seed in SEEDS:
                rng, peer = random.Random(seed), await home.next_peer()
                for _ in range(FRAMES_PER_STREAM):
                    peer.send(random_frame(FollowResponse, rng, is_within=is_within))
                peer.send_end("next")
                await home.next_peer(peer)
            await follows(us)
            assert await admits(us)
    assert [each for each in logs if each["event"] in CRASHES] == []


async def test_a_home_of_a_release_without_the_service_is_tried_quietly():
    clock = FakeClock()
    async with serving("127.0.0.1:0", [], drain_grace=0.1) as server:
        link = TcpRelay(RelayEnds("us", "eu"), server.address)
        with capture_logs() as logs:
            async with link.listening(), spending_region(link, clock=clock) as [us]:
                await wait_until(lambda: us.role.follower._problem)
                assert await admits(us)
                clock.now += 301
                assert us.figures["home_unfollowed"] > 300
        warned = [each["because"] for each in logs if each["event"] == "home_unreachable"]
    assert len(warned) == 1
    assert warned[0].startswith("UNIMPLEMENTED")
