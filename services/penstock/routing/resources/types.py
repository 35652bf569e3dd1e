"""One xDS resource, already serialised: the core moves it about and never looks inside."""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class ResourceType(StrEnum):
    """Type URLs, in the order they are pushed: what is referred to goes before what refers to it."""

    CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
    ENDPOINT = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
    LISTENER = "type.googleapis.com/envoy.config.listener.v3.Listener"
    ROUTE = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"


@dataclass(frozen=True, kw_only=True)
class Resource:
    type: ResourceType
    name: str
    body: bytes  # the message inside the Any; serialised once, sent to every proxy
    references: frozenset[tuple[ResourceType, str]] = frozenset()  # what a proxy asks for because of this resource

    @cached_property
    def version(self) -> str:
        """A digest of the body: replicas agree on it, and after a restart no proxy is told what it knows already."""
        return hashlib.sha256(self.body).hexdigest()[:16]
