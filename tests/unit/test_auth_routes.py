"""Definitions of routes at auth: revisions, rollback, bounds and text of the store."""

from dataclasses import replace

import pytest

from penstock.auth.models.messages import definition_of, route_message
from penstock.auth.models.routes import Affinity, Route, RouteDefinition, RouteHold, RouteList, RouteTarget
from penstock.auth.store.routes import definition_text, route_of, route_row
from penstock.chassis.errors import FailedPrecondition, InvalidArgument, NotFound
from penstock.mesh.limits import bounds
from penstock.v1.route_pb2 import Route as RouteMessage

TO_A = RouteDefinition((RouteTarget("a", 1),))
TO_B = RouteDefinition(
    (RouteTarget("a", 95), RouteTarget("b", 5)),
    Affinity.CONVERSATION,
    ("c", "d"),
    "m",
    0.25,
    RouteHold(300, 1_000, 120),
)


def test_a_rollback_exchanges_a_definition_and_its_former_one():
    routes = RouteList()
    for definition in (TO_A, TO_B):
        routes.put(routes.next("gpt-4o", "", definition, 0))
    assert routes.find("gpt-4o", "") == Route("gpt-4o", "", 2, TO_B, TO_A)
    routes.put(routes.rolled_back("gpt-4o", ""))
    assert routes.find("gpt-4o", "") == Route("gpt-4o", "", 3, TO_A, TO_B)
    routes.put(routes.rolled_back("gpt-4o", ""))
    assert routes.find("gpt-4o", "") == Route("gpt-4o", "", 4, TO_B, TO_A)


def test_a_repeated_definition_keeps_the_former_one():
    route = Route("gpt-4o", "", 2, TO_B, TO_A)
    assert RouteList([route]).next("gpt-4o", "", TO_B, 0) == route


def test_a_change_of_an_outdated_revision_is_rejected():
    routes = RouteList([Route("gpt-4o", "", 2, TO_A)])
    assert routes.next("gpt-4o", "", TO_B, 2).revision == 3
    for name, revision in (("gpt-4o", 1), ("gpt-4o", 3), ("other", 1)):
        with pytest.raises(FailedPrecondition) as rejection:
            routes.next(name, "", TO_B, revision)
        assert rejection.value.reason == "ROUTE_CHANGED"


def test_unknown_routes_and_routes_of_one_definition_cannot_be_rolled_back():
    routes = RouteList([Route("gpt-4o", "", 1, TO_A)])
    with pytest.raises(FailedPrecondition) as rejection:
        routes.rolled_back("gpt-4o", "")
    assert rejection.value.reason == "ROUTE_NOT_CHANGED"
    with pytest.raises(NotFound):
        routes.rolled_back("gpt-4o", "acme")


def test_the_number_of_routes_is_bounded():
    routes = RouteList(Route(f"r{number}", "", 1, TO_A) for number in range(bounds.ROUTES))
    assert routes.next("r0", "", TO_B, 0).revision == 2
    with pytest.raises(FailedPrecondition) as rejection:
        routes.next("more", "", TO_A, 0)
    assert rejection.value.reason == "TOO_MANY_ROUTES"


def test_each_change_is_reported_once_and_no_change_is_not_reported():
    routes, reports = RouteList(), []
    routes.on_changed = lambda: reports.append(len(routes))
    of_acme = Route("gpt-4o", "acme", 1, TO_A)
    routes.put(Route("gpt-4o", "", 1, TO_A))
    routes.put(of_acme)
    routes.replace(routes.all)
    routes.delete("unknown", "")
    assert reports == [1, 2]
    routes.delete_tenant("acme")
    assert (routes.all, reports) == ([Route("gpt-4o", "", 1, TO_A)], [1, 2, 1])


@pytest.mark.parametrize("definition", [TO_A, TO_B])
def test_a_definition_survives_the_store_and_a_message(definition):
    route = Route("gpt-4o", "acme", 7, definition, TO_A)
    assert route_of(route_row(route)) == route
    assert definition_of(route_message(route)) == definition


def test_values_of_a_later_release_are_ignored_in_the_store():
    row = route_row(Route("gpt-4o", "", 1, TO_A))
    later = definition_text(TO_A).replace("{", '{"later": 1, ', 1)
    assert route_of((*row[:3], later, "")) == Route("gpt-4o", "", 1, TO_A)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "route.name"),
        ({"name": "x" * 257}, "route.name"),
        ({"name": "a\nb"}, "route.name"),
        ({"tenant_id": "No Tenant"}, "route.tenant_id"),
        ({"definition": replace(TO_A, targets=())}, "route.definition.targets"),
        ({"definition": replace(TO_A, targets=(RouteTarget("a", 0),))}, "route.definition.targets[0].weight"),
        ({"definition": replace(TO_A, targets=(RouteTarget("a", 1_000_001),))}, "route.definition.targets[0].weight"),
        ({"definition": replace(TO_A, targets=(RouteTarget("", 1),))}, "route.definition.targets[0].model"),
        ({"definition": replace(TO_A, targets=TO_A.targets * 2)}, "route.definition.targets[1].model"),
        (
            {"definition": replace(TO_A, targets=tuple(RouteTarget(f"m{each}", 1) for each in range(17)))},
            "route.definition.targets",
        ),
        ({"definition": replace(TO_A, hold=RouteHold(0, 1, 1))}, "route.definition.hold.seconds"),
        ({"definition": replace(TO_A, hold=RouteHold(1, 100_001, 1))}, "route.definition.hold.requests"),
        ({"definition": replace(TO_A, hold=RouteHold(1, 1, 3_601))}, "route.definition.hold.load_seconds"),
        ({"definition": replace(TO_A, mirror="m")}, "route.definition.mirror_share"),
        ({"definition": replace(TO_A, mirror="m", mirror_share=1.1)}, "route.definition.mirror_share"),
        ({"definition": replace(TO_A, mirror_share=0.5)}, "route.definition.mirror_share"),
        ({"definition": replace(TO_A, mirror="x" * 257, mirror_share=0.5)}, "route.definition.mirror"),
        ({"definition": replace(TO_A, fallbacks=("a",))}, "route.definition.fallbacks[0]"),
        ({"definition": replace(TO_A, fallbacks=tuple("bcdefghij"))}, "route.definition.fallbacks"),
    ],
)
def test_a_definition_out_of_bounds_is_rejected_with_its_field(changes, field):
    message = route_message(replace(Route("gpt-4o", "", 1, TO_A), **changes))
    with pytest.raises(InvalidArgument) as rejection:
        definition_of(message)
    assert [each.field for each in rejection.value.field_violations] == [field]


def test_an_unknown_affinity_is_rejected():
    message = RouteMessage(name="gpt-4o")
    message.definition.targets.add(model="a", weight=1)
    message.definition.affinity = 9
    with pytest.raises(InvalidArgument) as rejection:
        definition_of(message)
    assert [each.field for each in rejection.value.field_violations] == ["route.definition.affinity"]
