"""Connections between processes: who is refused in the handshake, by the table, and by its hello; and rotation."""

from contextlib import asynccontextmanager

import grpc
import httpx
import pytest
from structlog.testing import capture_logs

from identified_peers import Ends, echo_server, edge_hello
from mesh_identities import OUR_RPCS, Identities, Rpc, is_refused
from penstock.auth.ext_authz.http_check import serving_checks
from penstock.chassis.channels import channel
from penstock.chassis.config import ConfigError, ServiceConfig
from penstock.chassis.lifecycle import background
from penstock.chassis.security.certificates import CertificateFiles
from penstock.chassis.security.identity import TIERS
from penstock.chassis.security.permissions import PERMISSIONS, is_public
from penstock.chassis.security.process import open_security
from penstock.chassis.server.server import serving
from penstock.edge.api.http.proxy_door import is_via_proxy
from penstock.edge.api.http.server import serving_http
from penstock.mesh.v1.admission_pb2 import AdmitRequest
from penstock.mesh.v1.admission_pb2_grpc import AdmissionServiceStub

TIMEOUT_S = 20.0
OTHER_RPCS = [
    Rpc("envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources", True, True),
    Rpc("envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources", True, True),
]
ALL_RPCS = [*OUR_RPCS, *OTHER_RPCS]


@pytest.fixture
def identities(tmp_path):
    return Identities.create(tmp_path)


def answering_registration(rpcs):
    """A registration that answers each of `rpcs` with no bytes."""

    async def answer(_request, _context):
        return b""

    async def no_frames(_request, context):
        await context.send_initial_metadata(())

    def add(_servicer, server):
        for service in sorted({each.path.partition("/")[0] for each in rpcs}):
            handlers = {}
            for each in (each for each in rpcs if each.path.startswith(f"{service}/")):
                kind = (each.client_streaming, each.server_streaming)
                make = {
                    (False, False): lambda: grpc.unary_unary_rpc_method_handler(answer),
                    (True, False): lambda: grpc.stream_unary_rpc_method_handler(answer),
                    (False, True): lambda: grpc.unary_stream_rpc_method_handler(no_frames),
                    (True, True): lambda: grpc.stream_stream_rpc_method_handler(no_frames),
                }[kind]
                handlers[each.path.partition("/")[2]] = make()
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    return add, None


@asynccontextmanager
async def server_of_everything(identities):
    security = identities.security("auth")
    async with serving("127.0.0.1:0", [answering_registration(ALL_RPCS)], drain_grace=0.1, security=security) as server:
        yield server


def test_every_rpc_of_ours_has_an_entry_in_the_table_of_permissions():
    assert [each.path for each in ALL_RPCS if each.path not in PERMISSIONS] == []


def test_every_tier_of_the_table_exists():
    assert {tier for tiers in PERMISSIONS.values() for tier in tiers} <= set(TIERS)


async def test_every_rpc_refuses_callers_without_a_valid_certificate_of_the_mesh(identities):
    async with server_of_everything(identities) as server:
        wrong = []
        for rpc in ALL_RPCS:
            tier = min(PERMISSIONS[rpc.path])
            async with identities.bad_callers(server.address, "auth", tier) as callers:
                for problem, to_server in callers.items():
                    refusal = await rpc.refusal(to_server)
                    if not is_refused(problem, refusal):
                        wrong.append((rpc.path, problem, refusal))
        assert wrong == []


async def test_every_rpc_serves_the_tiers_of_its_entry_and_refuses_all_others(identities):
    async with server_of_everything(identities) as server:
        wrong = []
        for tier in TIERS:
            async with identities.channel(server.address, "auth", tier) as to_server:
                for rpc in ALL_RPCS:
                    refusal = await rpc.refusal(to_server)
                    expected = None if tier in PERMISSIONS[rpc.path] else ("PERMISSION_DENIED", "PEER_NOT_ALLOWED")
                    if refusal != expected:
                        wrong.append((tier, rpc.path, refusal))
        assert wrong == []


async def test_a_channel_accepts_only_the_tier_and_the_instance_that_it_names(identities):
    rpc = next(each for each in ALL_RPCS if each.path.endswith("GetModelCard"))
    async with server_of_everything(identities) as server:
        for name, is_served in [
            ("auth", True),
            ("auth-1.auth", True),
            ("queue", False),
            ("auth-2.auth", False),
            ("auth-1.queue", False),
        ]:
            async with identities.channel(server.address, name, "edge") as to_server:
                expected = None if is_served else ("UNAVAILABLE", "CONNECTION_LOST")
                assert (name, await rpc.refusal(to_server)) == (name, expected)


@pytest.mark.parametrize(
    "fields",
    [{"tier": "queue"}, {"tier": ""}, {"instance_id": "edge-2"}, {"instance_id": "edge-11"}, {"instance_id": ""}],
)
async def test_a_hello_that_differs_from_the_certificate_ends_the_stream(identities, fields):
    rpc = next(each for each in ALL_RPCS if each.path.endswith("/Admit"))
    async with echo_server(identities.security("auth")) as (echo, address):
        async with identities.channel(address, "auth", "edge") as to_auth:
            hello = AdmitRequest(hello=edge_hello(**fields)).SerializeToString()
            assert await rpc.refusal(to_auth, hello) == ("PERMISSION_DENIED", "HELLO_MISMATCH")
        assert echo.peers == []


async def test_a_hello_may_name_one_start_of_the_instance_of_the_certificate(identities):
    async with echo_server(identities.security("auth")) as (echo, address):
        dialer = identities.security("edge").dialer
        async with dialer.channel(address, "auth") as to_auth:
            ends = Ends(AdmissionServiceStub(to_auth).Admit, edge_hello(instance_id="edge-1.5f3a"))
            async with background(ends.link.run()):
                assert await ends.next() == ("up", "auth-1")
        [peer] = echo.peers
        assert (peer.trust_domain, peer.tier, peer.instance_id) == ("penstock.local", "edge", "edge-1")


async def test_a_link_leaves_a_server_whose_hello_is_of_another_process(identities):
    async with echo_server(identities.security("auth")) as (echo, address):
        echo.hello.tier = "queue"
        dialer = identities.security("edge").dialer
        with capture_logs() as logs:
            async with dialer.channel(address, "auth") as to_auth:
                ends = Ends(AdmissionServiceStub(to_auth).Admit, edge_hello(), dialer.hello_check("auth"))
                assert not await ends.link.run_once()
        assert ends.events.empty()
        assert "of tier 'queue'" in next(each["because"] for each in logs if each["event"] == "link_rejected")


async def test_a_link_tells_the_log_why_a_handshake_fails(identities, tmp_path):
    stranger = Identities.create(tmp_path / "other")
    async with echo_server(identities.security("auth")) as (_, address):
        with capture_logs() as logs:
            async with stranger.security("edge").dialer.channel(address, "auth") as to_auth:
                ends = Ends(AdmissionServiceStub(to_auth).Admit, edge_hello())
                assert not await ends.link.run_once()
        assert [each["event"] for each in logs if each["event"].startswith("link")] == ["link_rejected"]


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
async def test_plaintext_off_loopback_stops_the_start(listen):
    with pytest.raises(ConfigError, match=r"PENSTOCK_TLS_CERTIFICATE.*PENSTOCK_INSECURE"):
        async with serving(listen, []):
            pass
    for listener in (serving_http(listen, None, 0.0), serving_checks(listen, None)):
        with pytest.raises(ConfigError, match="PENSTOCK_INSECURE"):
            async with listener:
                pass


async def test_insecure_serves_plaintext_anywhere_and_warns_at_each_start():
    with capture_logs() as logs:
        security = open_security(ServiceConfig(insecure=True))
        async with (
            serving("0.0.0.0:0", [], drain_grace=0.1, security=security) as server,
            channel(server.address) as to,
        ):
            await to.channel_ready()
    assert [each["log_level"] for each in logs if each["event"] == "insecure"] == ["warning"]


async def test_the_development_door_of_an_edge_is_plaintext_on_loopback_alone(identities):
    security = identities.security("edge")
    rpc = next(each for each in ALL_RPCS if each.path.endswith("ListModels"))
    registration = answering_registration(ALL_RPCS)
    options = {"security": security, "is_door": True, "drain_grace": 0.1}
    async with serving("127.0.0.1:0", [registration], proxy_listen="127.0.0.1:0", **options) as server:
        async with channel(server.address) as to_edge:
            assert await rpc.refusal(to_edge) is None
            for each in ALL_RPCS:
                expected = None if is_public(each.path) else ("PERMISSION_DENIED", "PEER_UNIDENTIFIED")
                assert (each.path, await each.refusal(to_edge)) == (each.path, expected)
        async with channel(server.proxy_address) as to_edge:
            assert await rpc.refusal(to_edge) == ("UNAVAILABLE", "CONNECTION_LOST")
        async with identities.channel(server.proxy_address, "edge", "envoy") as to_edge:
            assert await rpc.refusal(to_edge) is None
        async with identities.channel(server.proxy_address, "edge", "edge") as to_edge:
            assert await rpc.refusal(to_edge) == ("PERMISSION_DENIED", "PEER_NOT_ALLOWED")
    async with serving("0.0.0.0:0", [registration], **options) as server, channel(server.address) as to_edge:
        assert await rpc.refusal(to_edge) == ("UNAVAILABLE", "CONNECTION_LOST")


class EchoApp:
    """Answers whether the connection is of a proxy."""

    async def __call__(self, scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": str(is_via_proxy(scope)).encode()})

    def abort(self):
        return 0


def http_door(security):
    return serving_http("127.0.0.1:0", EchoApp(), 1.0, security=security, is_development=False)


def check_listener(security):
    return serving_checks("127.0.0.1:0", None, security)


@pytest.mark.parametrize("port", [(http_door, "edge"), (check_listener, "auth")], ids=["edge", "auth"])
@pytest.mark.parametrize(
    ("tier", "domain", "is_served"),
    [("envoy", "penstock.local", True), ("edge", "penstock.local", False), ("envoy", "other.example", False)],
)
async def test_http_ports_of_proxies_serve_envoys_alone(identities, port, tier, domain, is_served):
    listener, tier_of_listener = port
    async with listener(identities.security(tier_of_listener)) as address:
        authority = Identities(identities.folder, identities.authority).authority
        object.__setattr__(authority, "trust_domain", domain)
        paths = identities.issue(tier, "caller", authority=authority)
        context = CertificateFiles(paths).current().client_context
        async with httpx.AsyncClient(verify=context, base_url=f"https://{address}") as http:
            if is_served:
                assert (await http.get("/health")).status_code == 200
            else:
                with pytest.raises(httpx.TransportError):
                    await http.get("/health")
        async with httpx.AsyncClient(base_url=f"http://{address}") as http:
            with pytest.raises(httpx.TransportError):
                await http.get("/health")
        async with httpx.AsyncClient(verify=False, base_url=f"https://{address}") as http:
            with pytest.raises(httpx.TransportError):
                await http.get("/health")


async def test_a_request_knows_whether_it_came_through_a_proxy(identities):
    context = CertificateFiles(identities.issue("envoy", "caller")).current().client_context
    async with (
        http_door(identities.security("edge")) as address,
        httpx.AsyncClient(verify=context, base_url=f"https://{address}") as http,
    ):
        assert (await http.get("/")).text == "True"


async def test_the_http_door_of_clients_is_plaintext_on_loopback(identities):
    async with (
        serving_http("127.0.0.1:0", EchoApp(), 1.0, security=identities.security("edge")) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as http,
    ):
        assert (await http.get("/")).text == "False"
