"""Routes: names of models whose requests other models serve, and the choice of the model. Pure."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from penstock.edge.models.holds import HoldLimits
from penstock.mesh.v1.admission_pb2 import Routes
from penstock.v1.route_pb2 import Route as RouteMessage
from penstock.v1.route_pb2 import RouteAffinity, RouteHold, RouteTarget

_HASHES = 2**64


@dataclass(frozen=True, slots=True)
class Route:
    """The present definition of a route, and the models that may have begun answers under the former one."""

    name: str
    tenant_id: str  # empty: all tenants
    weights: tuple[tuple[str, int], ...]  # of the targets, all above 0
    affinity: RouteAffinity.ValueType
    fallbacks: tuple[str, ...]  # in order
    former: tuple[str, ...]
    mirror: str = ""  # empty: no request is copied
    mirror_share: float = 0.0
    hold: HoldLimits | None = None  # None: a request fails if no target and no fallback has a worker

    @property
    def models(self) -> Iterator[str]:
        """Every model that may have begun an answer, the most probable ones first."""
        yield from (model for model, _ in self.weights)
        yield from self.fallbacks
        yield from self.former


def choose(route: Route, value: str, is_available: Callable[[str], bool]) -> str:
    """Return the model for a request. Requests of one `value` have the same model while the route is the same.

    The available targets divide the requests by their weights. If no target is available, the first available fallback
    serves them; if none is, the result is the target that the request would have with all of them.

    Weighted rendezvous hashing: each target has an exponential random number of the rate `weight` for each value, and
    the smallest one wins. A change of weights moves only the share that the weights move, and a target that is not
    available moves only its own requests.
    """
    targets = [each for each in route.weights if is_available(each[0])]
    if not targets:
        if fallback := next(filter(is_available, route.fallbacks), ""):
            return fallback
        targets = list(route.weights)
    if len(targets) == 1:
        return targets[0][0]
    return min(targets, key=lambda each: (_arrival(route.name, each[0], value) / each[1], each[0]))[0]


def is_mirrored(route: Route, request_id: str) -> bool:
    """Whether a request is copied to the mirror of its route."""
    return bool(route.mirror) and _uniform("mirror", route.name, route.mirror, request_id) <= route.mirror_share


def _arrival(name: str, model: str, value: str) -> float:
    """Return an exponential random number of rate 1, which the arguments determine."""
    return -math.log(_uniform(name, model, value))


def _uniform(*parts: str) -> float:
    """Return a random number above 0 and below 1, which the arguments determine."""
    text = "\0".join(parts).encode(errors="surrogatepass")
    return (int.from_bytes(blake2b(text, digest_size=8).digest()) + 1) / (_HASHES + 2)


class RouteTable:
    """The routes of the latest frame of auth. They stay while auth is unreachable."""

    def __init__(self) -> None:
        self._routes: dict[tuple[str, str], Route] = {}  # by name and tenant
        self._names: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self._routes)

    def __contains__(self, name: str) -> bool:
        """Whether the name is a route of any tenant."""
        return name in self._names

    def on_routes(self, frame: Routes) -> None:
        """Replace all routes. A route without a usable target is ignored."""
        routes = [route_of(each) for each in frame.routes]
        self._routes = {(each.name, each.tenant_id): each for each in routes if each.weights}
        self._names = frozenset(name for name, _ in self._routes)

    def find(self, name: str, tenant_id: str) -> Route | None:
        """Return the route of a name for a tenant: its own one, or that of all tenants."""
        return self._routes.get((name, tenant_id)) or self._routes.get((name, ""))

    def of_tenant(self, tenant_id: str) -> list[Route]:
        """Return the routes that a tenant can use, by name."""
        return [found for name in sorted(self._names) if (found := self.find(name, tenant_id))]


def route_of(message: RouteMessage) -> Route:
    definition = message.definition
    return Route(
        name=message.name,
        tenant_id=message.tenant_id,
        weights=tuple((each.model, each.weight) for each in definition.targets if each.weight),
        affinity=definition.affinity,
        fallbacks=tuple(definition.fallbacks),
        former=(*(each.model for each in message.former.targets), *message.former.fallbacks),
        mirror=definition.mirror,
        mirror_share=definition.mirror_share,
        hold=_hold_of(definition.hold) if definition.HasField("hold") else None,
    )


def _hold_of(hold: RouteHold) -> HoldLimits:
    return HoldLimits(float(hold.seconds), hold.requests, float(hold.load_seconds))


def target_messages(weights: Iterable[tuple[str, int]]) -> list[RouteTarget]:
    return [RouteTarget(model=model, weight=weight) for model, weight in weights]
