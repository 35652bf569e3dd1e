"""Who may open the stream between regions: edges, also through the region door of proxies, and no client."""

from contextlib import asynccontextmanager

import pytest

from mesh_identities import Identities, Rpc
from penstock.chassis.channels import channel
from penstock.chassis.server.server import serving
from penstock.chassis.streams.protocol import hello_of
from penstock.edge.regions.drain import RegionDrain
from penstock.edge.regions.guests import GuestService
from penstock.mesh.v1.region_pb2 import RegionServiceRunRequest
from penstock.mesh.v1.region_pb2_grpc import add_RegionServiceServicer_to_server

RUN = Rpc("penstock.mesh.v1.RegionService/Run", True, True)
MISMATCH = ("PERMISSION_DENIED", "HELLO_MISMATCH")


def hello(tier, instance_id):
    return RegionServiceRunRequest(hello=hello_of(tier, instance_id)).SerializeToString()


@asynccontextmanager
async def doors(identities):
    guests = GuestService(None, None, None, hello_of("edge", "edge-1"), max_guests=1, drain=RegionDrain(lambda: 0.0))
    registration = (add_RegionServiceServicer_to_server, guests)
    options = {"security": identities.security("edge"), "is_door": True, "drain_grace": 0.1}
    async with serving("127.0.0.1:0", [registration], proxy_listen="127.0.0.1:0", **options) as server:
        yield server


@pytest.mark.parametrize(
    ("tier", "hello_tier", "instance_id", "refusal"),
    [
        ("envoy", "edge", "home-7", None),
        ("envoy", "envoy", "envoy-1", MISMATCH),
        ("envoy", "worker", "worker-1", MISMATCH),
        ("edge", "edge", "edge-1", None),
        ("edge", "edge", "edge-2", MISMATCH),
        ("edge", "worker", "edge-1", MISMATCH),
    ],
)
async def test_edges_open_the_stream_themselves_or_through_a_proxy(tmp_path, tier, hello_tier, instance_id, refusal):
    identities = Identities.create(tmp_path)
    async with doors(identities) as server, identities.channel(server.proxy_address, "edge", tier) as to_edge:
        assert await RUN.refusal(to_edge, hello(hello_tier, instance_id)) == refusal


@pytest.mark.parametrize("tier", ["worker", "batch", "operator"])
async def test_other_tiers_cannot_open_it(tmp_path, tier):
    identities = Identities.create(tmp_path)
    async with doors(identities) as server, identities.channel(server.proxy_address, "edge", tier) as to_edge:
        assert await RUN.refusal(to_edge) == ("PERMISSION_DENIED", "PEER_NOT_ALLOWED")


async def test_a_client_on_the_development_door_cannot_open_it(tmp_path):
    async with doors(Identities.create(tmp_path)) as server, channel(server.address) as to_edge:
        assert await RUN.refusal(to_edge) == ("PERMISSION_DENIED", "PEER_UNIDENTIFIED")
