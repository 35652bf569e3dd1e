"""One aggregated stream of one proxy: a subscription per resource type, with responses in push order."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from penstock.routing.resources.types import ResourceType
from penstock.routing.snapshot import Snapshot
from penstock.routing.xds.subscription import RequestKind, XdsResponse


class XdsRequest(Protocol):
    @property
    def type(self) -> ResourceType: ...


XdsRequestT = TypeVar("XdsRequestT", bound=XdsRequest)
XdsRequestT_contra = TypeVar("XdsRequestT_contra", bound=XdsRequest, contravariant=True)


class Subscription(Protocol[XdsRequestT_contra]):
    def receive(self, request: XdsRequestT_contra) -> RequestKind: ...

    def due(self, snapshot: Snapshot) -> XdsResponse | None: ...


@dataclass(slots=True)
class XdsStream(Generic[XdsRequestT]):
    """The subscriptions of one stream, of either xDS variant. Knows no message class and no network."""

    open_subscription: Callable[[ResourceType], Subscription[XdsRequestT]]
    subscriptions: dict[ResourceType, Subscription[XdsRequestT]] = field(default_factory=dict)

    def receive(self, request: XdsRequestT) -> RequestKind:
        if request.type not in self.subscriptions:
            self.subscriptions[request.type] = self.open_subscription(request.type)
        return self.subscriptions[request.type].receive(request)

    def due(self, snapshot: Snapshot) -> Iterator[XdsResponse]:
        """Yield the responses that are due: clusters and endpoints before the listeners and routes that name them."""
        for kind in ResourceType:
            if (subscription := self.subscriptions.get(kind)) and (response := subscription.due(snapshot)):
                yield response
