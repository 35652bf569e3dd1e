"""One serialized xDS resource, which the core passes on without parsing it."""

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property


class ResourceType(StrEnum):
    """Type URLs in push order: a resource goes before the resources that refer to it."""

    SECRET = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"  # noqa: S105  # a type
    CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
    ENDPOINT = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
    LISTENER = "type.googleapis.com/envoy.config.listener.v3.Listener"
    ROUTE = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"


@dataclass(frozen=True, kw_only=True)
class Resource:
    type: ResourceType
    name: str
    body: bytes = field(repr=False)  # the message inside the Any; serialized once, sent to every proxy; may be a secret
    references: frozenset[tuple[ResourceType, str]] = frozenset()  # resources that this resource names

    @cached_property
    def version(self) -> str:
        """Digest of the body, equal on all replicas, so that no proxy is sent a resource again after a restart."""
        return hashlib.sha256(self.body).hexdigest()[:16]
