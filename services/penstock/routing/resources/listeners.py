"""The listener resources: the door, one port for gRPC and HTTP, and a plaintext port that redirects to it."""

from collections.abc import Sequence

from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.listener import v3 as listener
from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm

from penstock.routing.edges.edge_spec import Address
from penstock.routing.resources.clusters import pack_any
from penstock.routing.resources.connection_manager import (
    HEADERS_TIMEOUT,
    IDLE_TIMEOUT,
    MAX_HEADERS,
    MAX_HEADERS_KIB,
    router_filter,
)
from penstock.routing.resources.door_tls import HANDSHAKE_TIMEOUT, SECRET_NAME, door_transport_socket
from penstock.routing.resources.endpoints import socket_address
from penstock.routing.resources.types import Resource, ResourceType

CONNECTION_BUFFER_BYTES = 256 * 1024  # buffer per connection, beyond which a slow reader slows down the edge
HTTPS_PORT = 443


def front_listener(
    name: str, address: Address, manager: hcm.HttpConnectionManager, *, routes: str, clusters: Sequence[str], tls: bool
) -> Resource:
    """The door. `routes` and `clusters` are the resources that `manager` refers to."""
    references = {(ResourceType.ROUTE, routes), *((ResourceType.CLUSTER, each) for each in clusters)}
    if tls:
        references.add((ResourceType.SECRET, SECRET_NAME))
    chain = listener.FilterChain(
        filters=[_network_filter(manager)],
        transport_socket=door_transport_socket() if tls else None,
        transport_socket_connect_timeout=HANDSHAKE_TIMEOUT if tls else None,
    )
    return Resource(
        type=ResourceType.LISTENER,
        name=name,
        body=bytes(_listener(name, address, chain)),
        references=frozenset(references),
    )


def region_listener(
    name: str,
    address: Address,
    manager: hcm.HttpConnectionManager,
    *,
    routes: str,
    clusters: Sequence[str],
    transport: core.TransportSocket | None,
) -> Resource:
    """The region door. `routes` and `clusters` are the resources that `manager` refers to."""
    chain = listener.FilterChain(
        filters=[_network_filter(manager)],
        transport_socket=transport,
        transport_socket_connect_timeout=HANDSHAKE_TIMEOUT if transport else None,
    )
    return Resource(
        type=ResourceType.LISTENER,
        name=name,
        body=bytes(_listener(name, address, chain)),
        references=frozenset({(ResourceType.ROUTE, routes), *((ResourceType.CLUSTER, each) for each in clusters)}),
    )


def redirect_listener(name: str, address: Address, *, door_port: int) -> Resource:
    """Redirect every request in plaintext to https at `door_port`, and accept no call."""
    to_https = route.RedirectAction(
        https_redirect=True,
        port_redirect=door_port if door_port != HTTPS_PORT else 0,
        response_code=route.RedirectActionRedirectResponseCode.PERMANENT_REDIRECT,
    )
    host = route.VirtualHost(
        name=name,
        domains=["*"],
        routes=[route.Route(name="https", match=route.RouteMatch(prefix="/"), redirect=to_https)],
    )
    manager = hcm.HttpConnectionManager(
        stat_prefix=name,
        codec_type=hcm.HttpConnectionManagerCodecType.AUTO,
        route_config=route.RouteConfiguration(name=name, virtual_hosts=[host]),
        http_filters=[router_filter()],
        common_http_protocol_options=core.HttpProtocolOptions(idle_timeout=IDLE_TIMEOUT, max_headers_count=MAX_HEADERS),
        max_request_headers_kb=MAX_HEADERS_KIB,
        request_headers_timeout=HEADERS_TIMEOUT,
        use_remote_address=True,
    )
    chain = listener.FilterChain(filters=[_network_filter(manager)])
    return Resource(type=ResourceType.LISTENER, name=name, body=bytes(_listener(name, address, chain)))


def _listener(name: str, address: Address, chain: listener.FilterChain) -> listener.Listener:
    return listener.Listener(
        name=name,
        address=socket_address(address),
        filter_chains=[chain],
        per_connection_buffer_limit_bytes=CONNECTION_BUFFER_BYTES,
    )


def _network_filter(manager: hcm.HttpConnectionManager) -> listener.Filter:
    return listener.Filter(name="envoy.filters.network.http_connection_manager", typed_config=pack_any(manager))
