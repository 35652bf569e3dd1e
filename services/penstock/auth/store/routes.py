"""Definitions of routes as text of the store: a JSON object of all values that differ from the default."""

from typing import Any

import orjson

from penstock.auth.models.routes import Affinity, Route, RouteDefinition, RouteHold, RouteTarget
from penstock.auth.store.rows import Row

ROUTE_COLUMNS = "name, tenant_id, revision, definition, former"


def route_row(route: Route) -> Row:
    former = definition_text(route.former) if route.former else ""
    return (route.name, route.tenant_id, route.revision, definition_text(route.definition), former)


def route_of(row: Row) -> Route:
    name, tenant_id, revision, definition, former = row
    return Route(name, tenant_id, revision, definition_of(definition), definition_of(former) if former else None)


def definition_text(definition: RouteDefinition) -> str:
    found: dict[str, Any] = {
        "targets": [[each.model, each.weight] for each in definition.targets],
        "affinity": definition.affinity,
        "fallbacks": definition.fallbacks,
        "mirror": definition.mirror,
        "mirror_share": definition.mirror_share,
        "hold": definition.hold and [*definition.hold],
    }
    return orjson.dumps({name: value for name, value in found.items() if value}).decode()


def definition_of(text: str) -> RouteDefinition:
    """Return the definition of a text. Values that only a later release knows are ignored."""
    found = orjson.loads(text)
    return RouteDefinition(
        targets=tuple(RouteTarget(model, weight) for model, weight in found["targets"]),
        affinity=Affinity(found.get("affinity", "")),
        fallbacks=tuple(found.get("fallbacks", ())),
        mirror=found.get("mirror", ""),
        mirror_share=found.get("mirror_share", 0.0),
        hold=RouteHold(*found["hold"]) if "hold" in found else None,
    )
