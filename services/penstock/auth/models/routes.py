"""Routes: the names of models that operators point at other models. No I/O."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from penstock.chassis.errors import FailedPrecondition, NotFound
from penstock.mesh.limits.bounds import ROUTES


class Affinity(StrEnum):
    """Which requests of a route go to the same target."""

    NONE = ""
    KEY = "key"
    CONVERSATION = "conversation"


class RouteTarget(NamedTuple):
    model: str
    weight: int  # relative to the other targets of the route


class RouteHold(NamedTuple):
    """How requests wait at an edge while no target and no fallback has a worker."""

    seconds: int  # longest wait
    requests: int  # at one edge
    load_seconds: int  # from the start of a worker until it serves


@dataclass(frozen=True, slots=True)
class RouteDefinition:
    """The models that serve the requests of a route."""

    targets: tuple[RouteTarget, ...]  # at least one
    affinity: Affinity = Affinity.NONE
    fallbacks: tuple[str, ...] = ()  # models for the time in which no target has a worker, in order
    mirror: str = ""  # model that receives copies of requests; empty: none
    mirror_share: float = 0.0  # share of the requests that are copied
    hold: RouteHold | None = None  # None: requests fail at once


@dataclass(frozen=True, slots=True)
class Route:
    name: str
    tenant_id: str  # empty: all tenants
    revision: int  # from 1
    definition: RouteDefinition
    former: RouteDefinition | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.tenant_id

    def changed(self, definition: RouteDefinition) -> "Route":
        """Return the route with its next definition; the same route if nothing changes, so that a repeated change does
        not replace the former definition."""
        if definition == self.definition:
            return self
        return replace(self, revision=self.revision + 1, definition=definition, former=self.definition)


class RouteList:
    """All routes. `on_changed` is called after each change."""

    def __init__(self, routes: Iterable[Route] = ()) -> None:
        self.on_changed: Callable[[], None] = lambda: None
        self._routes = {each.key: each for each in routes}

    def __len__(self) -> int:
        return len(self._routes)

    @property
    def all(self) -> list[Route]:
        """Routes by name and tenant."""
        return [self._routes[key] for key in sorted(self._routes)]

    def find(self, name: str, tenant_id: str) -> Route:
        """Raises NotFound / ROUTE_UNKNOWN."""
        if (name, tenant_id) not in self._routes:
            of_tenant = f" of tenant {tenant_id!r}" if tenant_id else ""
            raise NotFound(f"there is no route {name!r}{of_tenant}; see `penstock models list`", reason="ROUTE_UNKNOWN")
        return self._routes[name, tenant_id]

    def next(self, name: str, tenant_id: str, definition: RouteDefinition, expected_revision: int) -> Route:
        """Return the route with its next definition. `expected_revision` 0: any.

        Raises FailedPrecondition / ROUTE_CHANGED or TOO_MANY_ROUTES.
        """
        stored = self._routes.get((name, tenant_id))
        if expected_revision and expected_revision != (stored.revision if stored else 0):
            text = f"route {name!r} has changed since revision {expected_revision}; read it again"
            raise FailedPrecondition(text, reason="ROUTE_CHANGED")
        if stored:
            return stored.changed(definition)
        if len(self._routes) >= ROUTES:
            raise FailedPrecondition(f"there are {ROUTES} routes already; delete one", reason="TOO_MANY_ROUTES")
        return Route(name, tenant_id, 1, definition)

    def rolled_back(self, name: str, tenant_id: str) -> Route:
        """Return the route with its former definition. Raises NotFound, FailedPrecondition / ROUTE_NOT_CHANGED."""
        stored = self.find(name, tenant_id)
        if stored.former is None:
            text = f"route {name!r} has had one definition only; there is none to return to"
            raise FailedPrecondition(text, reason="ROUTE_NOT_CHANGED")
        return stored.changed(stored.former)

    def put(self, route: Route) -> None:
        self._routes[route.key] = route
        self.on_changed()

    def delete(self, name: str, tenant_id: str) -> None:
        if self._routes.pop((name, tenant_id), None):
            self.on_changed()

    def delete_tenant(self, tenant_id: str) -> None:
        """Delete the routes of a tenant that is deleted."""
        self.replace([each for each in self._routes.values() if each.tenant_id != tenant_id])

    def replace(self, routes: Iterable[Route]) -> None:
        """Set all routes, and delete the others."""
        after = {each.key: each for each in routes}
        if after != self._routes:
            self._routes = after
            self.on_changed()
