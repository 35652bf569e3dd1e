"""Conversion of routes to messages, and validation of the requests that define them."""

import re

from penstock.auth.identity.tenant import TENANT_ID_FORMAT
from penstock.auth.models.routes import Affinity, Route, RouteDefinition, RouteHold, RouteTarget
from penstock.chassis.errors import InvalidArgument
from penstock.mesh.limits import bounds
from penstock.v1 import route_pb2 as pb
from penstock.v1.failure_pb2 import FieldViolation

_MODEL_NAME = re.compile(rf"[^\x00-\x1f\x7f]{{1,{bounds.MODEL_NAME_CHARS}}}")
_AFFINITIES = {
    pb.ROUTE_AFFINITY_UNSPECIFIED: Affinity.NONE,
    pb.ROUTE_AFFINITY_KEY: Affinity.KEY,
    pb.ROUTE_AFFINITY_CONVERSATION: Affinity.CONVERSATION,
}
_AFFINITY_VALUES = {affinity: value for value, affinity in _AFFINITIES.items()}
_NAME_RULE = f"must have 1 to {bounds.MODEL_NAME_CHARS} characters, without control characters"


def definition_of(message: pb.Route) -> RouteDefinition:
    """Return the definition of a route. Raises InvalidArgument, which names every invalid field."""
    given, errors = message.definition, {}
    if not _MODEL_NAME.fullmatch(message.name):
        errors["route.name"] = _NAME_RULE
    if message.tenant_id and not TENANT_ID_FORMAT.fullmatch(message.tenant_id):
        errors["route.tenant_id"] = "must be 1 to 63 lower-case letters, digits and hyphens, or empty"
    if not 1 <= len(given.targets) <= bounds.ROUTE_TARGETS:
        errors["route.definition.targets"] = f"must have 1 to {bounds.ROUTE_TARGETS} entries"
    if len(given.fallbacks) > bounds.ROUTE_FALLBACKS:
        errors["route.definition.fallbacks"] = f"must have at most {bounds.ROUTE_FALLBACKS} entries"
    if given.mirror and not _MODEL_NAME.fullmatch(given.mirror):
        errors["route.definition.mirror"] = _NAME_RULE
    if not (0 < given.mirror_share <= 1 if given.mirror else given.mirror_share == 0):
        errors["route.definition.mirror_share"] = "must be above 0 and at most 1 with a mirror, else 0"
    if given.affinity not in _AFFINITIES:
        errors["route.definition.affinity"] = "must be an affinity of this release"
    if given.HasField("hold"):
        errors |= _hold_errors(given.hold)
    models: set[str] = set()
    named = [(f"targets[{place}].model", each.model) for place, each in enumerate(given.targets)]
    named += [(f"fallbacks[{place}]", each) for place, each in enumerate(given.fallbacks)]
    for path, model in named:
        if not _MODEL_NAME.fullmatch(model):
            errors[f"route.definition.{path}"] = _NAME_RULE
        elif model in models:
            errors[f"route.definition.{path}"] = "must be named once"
        models.add(model)
    for place, each in enumerate(given.targets):
        if not 1 <= each.weight <= bounds.ROUTE_WEIGHT:
            errors[f"route.definition.targets[{place}].weight"] = f"must be 1 to {bounds.ROUTE_WEIGHT}"
    if errors:
        violations = [FieldViolation(field=name, description=text) for name, text in errors.items()]
        text = "; ".join(f"{name} {error}" for name, error in errors.items())
        raise InvalidArgument(text, field_violations=violations)
    return RouteDefinition(
        targets=tuple(RouteTarget(each.model, each.weight) for each in given.targets),
        affinity=_AFFINITIES[given.affinity],
        fallbacks=tuple(given.fallbacks),
        mirror=given.mirror,
        mirror_share=given.mirror_share,
        hold=RouteHold(given.hold.seconds, given.hold.requests, given.hold.load_seconds)
        if given.HasField("hold")
        else None,
    )


def _hold_errors(hold: pb.RouteHold) -> dict[str, str]:
    limits = {"seconds": bounds.HOLD_SECONDS, "requests": bounds.HELD_REQUESTS, "load_seconds": bounds.HOLD_SECONDS}
    return {
        f"route.definition.hold.{name}": f"must be 1 to {limit}"
        for name, limit in limits.items()
        if not 1 <= getattr(hold, name) <= limit
    }


def route_message(route: Route) -> pb.Route:
    return pb.Route(
        name=route.name,
        tenant_id=route.tenant_id,
        definition=_definition_message(route.definition),
        revision=route.revision,
        former=_definition_message(route.former) if route.former else None,
    )


def _definition_message(definition: RouteDefinition) -> pb.RouteDefinition:
    return pb.RouteDefinition(
        targets=[pb.RouteTarget(**each._asdict()) for each in definition.targets],
        affinity=_AFFINITY_VALUES[definition.affinity],
        fallbacks=definition.fallbacks,
        mirror=definition.mirror,
        mirror_share=definition.mirror_share,
        hold=pb.RouteHold(**definition.hold._asdict()) if definition.hold else None,
    )
