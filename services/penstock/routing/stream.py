"""One aggregated stream of one proxy: a subscription per type, answered in push order."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from penstock.routing.resource import ResourceType
from penstock.routing.snapshot import Snapshot
from penstock.routing.subscription import Answer, Verdict


class Ask(Protocol):
    @property
    def type(self) -> ResourceType: ...


AskT = TypeVar("AskT", bound=Ask)
AskT_contra = TypeVar("AskT_contra", bound=Ask, contravariant=True)


class Subscription(Protocol[AskT_contra]):
    def receive(self, ask: AskT_contra) -> Verdict: ...

    def due(self, snapshot: Snapshot) -> Answer | None: ...


@dataclass(slots=True)
class XdsStream(Generic[AskT]):
    """Knows no message class and no network: SotW or delta is the kind of subscription it opens."""

    open_subscription: Callable[[ResourceType], Subscription[AskT]]
    subscriptions: dict[ResourceType, Subscription[AskT]] = field(default_factory=dict)

    def receive(self, ask: AskT) -> Verdict:
        if ask.type not in self.subscriptions:
            self.subscriptions[ask.type] = self.open_subscription(ask.type)
        return self.subscriptions[ask.type].receive(ask)

    def due(self, snapshot: Snapshot) -> Iterator[Answer]:
        """Answers owed now; clusters and endpoints before the listeners and routes that name them."""
        for kind in ResourceType:
            if (subscription := self.subscriptions.get(kind)) and (answer := subscription.due(snapshot)):
                yield answer
