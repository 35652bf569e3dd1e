"""The SDK and edges that are far away, as those of another continent are."""

from contextlib import asynccontextmanager

import grpc
import pytest

from client_edges import WORDS, ScriptedEdge
from door_certificates import CertificateAuthority
from inference_server import scripted_servicer
from penstock.client import Client, RetryPolicy
from penstock.local_mesh.tcp_relay import RelayEnds, TcpRelay
from penstock.v1.inference_pb2_grpc import add_InferenceServicer_to_server

ROUND_TRIP_S = 0.3
CONNECT_TIMEOUT_S = 30.0


@asynccontextmanager
async def far_edge(authority):
    """The address of an edge behind a relay, with TLS if there is an authority for its certificate."""
    server = grpc.aio.server()
    add_InferenceServicer_to_server(scripted_servicer(Generate=ScriptedEdge().generate), server)
    if authority:
        chain, key = authority.issue()
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, chain)]))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    relay = TcpRelay(RelayEnds("clients", "edge"), f"127.0.0.1:{port}", delay_s=ROUND_TRIP_S / 2)
    try:
        async with relay.listening():
            yield relay.address
    finally:
        await server.stop(None)


@pytest.mark.parametrize("edges", [1, 2])
@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plaintext", "tls"])
async def test_an_edge_300_ms_away_is_reached(edges, is_encrypted):
    authority = CertificateAuthority() if is_encrypted else None
    credentials = grpc.ssl_channel_credentials(authority.pem) if authority else None
    retries = RetryPolicy(max_attempts=1, connect_timeout=CONNECT_TIMEOUT_S)
    async with (
        far_edge(authority) as first,
        far_edge(authority) as second,
        Client(*(first, second)[:edges], credentials=credentials, retries=retries) as client,
        client.generate("Hello") as generation,
    ):
        assert await generation.read() == "".join(WORDS)
        assert generation.attempts == 1
