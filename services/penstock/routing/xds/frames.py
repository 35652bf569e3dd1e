"""Conversions between the messages of both xDS variants and the core's requests and responses."""

from envoy_data_plane.envoy.service.discovery import v3 as discovery
from envoy_data_plane.google.protobuf import Any

from penstock.routing.resources.types import Resource, ResourceType
from penstock.routing.xds.delta import DeltaRequest
from penstock.routing.xds.sotw import SotwRequest
from penstock.routing.xds.subscription import XdsResponse


def sotw_request(request: discovery.DiscoveryRequest) -> SotwRequest:
    """Raises ValueError for a type we do not serve."""
    return SotwRequest(
        type=ResourceType(request.type_url),
        names=tuple(request.resource_names),
        nonce=request.response_nonce,
        error=None if request.error_detail is None else request.error_detail.message,
    )


def sotw_response(response: XdsResponse) -> discovery.DiscoveryResponse:
    return discovery.DiscoveryResponse(
        type_url=response.type.value,
        version_info=response.version,
        nonce=response.nonce,
        resources=[_pack_any(resource) for resource in response.resources],
    )


def delta_request(request: discovery.DeltaDiscoveryRequest) -> DeltaRequest:
    """Raises ValueError for a type we do not serve."""
    return DeltaRequest(
        type=ResourceType(request.type_url),
        subscribe=tuple(request.resource_names_subscribe),
        unsubscribe=tuple(request.resource_names_unsubscribe),
        initial_versions=dict(request.initial_resource_versions),
        nonce=request.response_nonce,
        error=None if request.error_detail is None else request.error_detail.message,
    )


def delta_response(response: XdsResponse) -> discovery.DeltaDiscoveryResponse:
    return discovery.DeltaDiscoveryResponse(
        type_url=response.type.value,
        system_version_info=response.version,
        nonce=response.nonce,
        resources=[
            discovery.Resource(name=resource.name, version=resource.version, resource=_pack_any(resource))
            for resource in response.resources
        ],
        removed_resources=list(response.removed),
    )


def _pack_any(resource: Resource) -> Any:
    return Any(type_url=resource.type.value, value=resource.body)
