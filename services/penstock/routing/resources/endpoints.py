"""Endpoint resources: the edges behind one cluster, by priority and locality."""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Final

from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.endpoint import v3 as endpoint

from penstock.routing.edges.edge_spec import Address, Edge, Locality
from penstock.routing.resources.types import Resource, ResourceType

# By default a share of the calls moves to the next priority as soon as less than 72 % of the hosts are healthy.
ONE_HOST_SUFFICES: Final = endpoint.ClusterLoadAssignmentPolicy(overprovisioning_factor=100 * 100)  # percent


def endpoints(
    cluster: str, edges: Iterable[Edge], port: Callable[[Edge], Address], *, has_other_regions: bool = False
) -> Resource:
    """One endpoint per edge; independent of the order of `edges`.

    `has_other_regions`: a priority keeps all of its calls while one of 100 edges is healthy, so that no call leaves a
    region that can serve it.
    """
    groups = groupby(sorted(set(edges), key=lambda edge: (_locality_key(edge), port(edge))), key=_locality_key)
    assignment = endpoint.ClusterLoadAssignment(
        cluster_name=cluster,
        policy=ONE_HOST_SUFFICES if has_other_regions else None,
        endpoints=[
            endpoint.LocalityLbEndpoints(
                locality=core.Locality(region=locality.region, zone=locality.zone),
                priority=priority,
                lb_endpoints=[_endpoint(port(edge), is_draining=edge.is_draining) for edge in members],
            )
            for (priority, locality), members in groups
        ],
    )
    return Resource(type=ResourceType.ENDPOINT, name=cluster, body=bytes(assignment))


def socket_address(address: Address) -> core.Address:
    return core.Address(socket_address=core.SocketAddress(address=address.host, port_value=address.port))


def _locality_key(edge: Edge) -> tuple[int, Locality]:
    return edge.priority, edge.locality


def _endpoint(address: Address, *, is_draining: bool) -> endpoint.LbEndpoint:
    return endpoint.LbEndpoint(
        endpoint=endpoint.Endpoint(address=socket_address(address)),
        health_status=core.HealthStatus.DRAINING if is_draining else core.HealthStatus.UNKNOWN,
    )
