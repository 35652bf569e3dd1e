"""The two xDS dialects on the wire: what a request asks, and how an answer is written."""

from envoy_data_plane.envoy.service.discovery import v3 as discovery
from envoy_data_plane.google.protobuf import Any

from penstock.routing.delta import DeltaAsk
from penstock.routing.resource import Resource, ResourceType
from penstock.routing.sotw import SotwAsk
from penstock.routing.subscription import Answer


def sotw_ask(request: discovery.DiscoveryRequest) -> SotwAsk:
    """Raises ValueError for a type we do not serve."""
    return SotwAsk(
        type=ResourceType(request.type_url),
        names=tuple(request.resource_names),
        nonce=request.response_nonce,
        error=None if request.error_detail is None else request.error_detail.message,
    )


def sotw_frame(answer: Answer) -> discovery.DiscoveryResponse:
    return discovery.DiscoveryResponse(
        type_url=answer.type.value,
        version_info=answer.version,
        nonce=answer.nonce,
        resources=[_packed(resource) for resource in answer.resources],
    )


def delta_ask(request: discovery.DeltaDiscoveryRequest) -> DeltaAsk:
    """Raises ValueError for a type we do not serve."""
    return DeltaAsk(
        type=ResourceType(request.type_url),
        subscribe=tuple(request.resource_names_subscribe),
        unsubscribe=tuple(request.resource_names_unsubscribe),
        initial_versions=dict(request.initial_resource_versions),
        nonce=request.response_nonce,
        error=None if request.error_detail is None else request.error_detail.message,
    )


def delta_frame(answer: Answer) -> discovery.DeltaDiscoveryResponse:
    return discovery.DeltaDiscoveryResponse(
        type_url=answer.type.value,
        system_version_info=answer.version,
        nonce=answer.nonce,
        resources=[
            discovery.Resource(name=resource.name, version=resource.version, resource=_packed(resource))
            for resource in answer.resources
        ],
        removed_resources=list(answer.removed),
    )


def _packed(resource: Resource) -> Any:
    return Any(type_url=resource.type.value, value=resource.body)
