"""The choice of the model of a route: shares, affinity, fallbacks."""

from collections import Counter
from dataclasses import replace

import pytest

from penstock.edge.models.routes import Route, RouteTable, choose, is_mirrored
from penstock.edge.request.session_names import session_of
from penstock.mesh.v1.admission_pb2 import Routes
from penstock.v1.route_pb2 import ROUTE_AFFINITY_KEY, RouteDefinition, RouteTarget
from penstock.v1.route_pb2 import Route as RouteMessage

REQUESTS = 20_000
VALUES = [f"request-{number}" for number in range(REQUESTS)]


def route(weights, fallbacks=(), name="gpt-4o"):
    return Route(name, "", tuple(weights.items()), ROUTE_AFFINITY_KEY, tuple(fallbacks), ())


def everything(_):
    return True


def choices(given, is_available=everything):
    return [choose(given, value, is_available) for value in VALUES]


@pytest.mark.parametrize("weights", [{"a": 95, "b": 5}, {"a": 1, "b": 1}, {"a": 5, "b": 3, "c": 2}, {"a": 999, "b": 1}])
def test_targets_receive_their_shares_within_half_a_point(weights):
    counts = Counter(choices(route(weights)))
    for model, weight in weights.items():
        assert abs(counts[model] / REQUESTS - weight / sum(weights.values())) < 0.005


def test_a_value_has_the_same_target_each_time():
    given = route({"a": 95, "b": 5})
    assert choices(given) == choices(given)


def test_a_change_of_weights_moves_the_share_that_the_weights_move_and_no_other():
    before, after = choices(route({"a": 95, "b": 5})), choices(route({"a": 80, "b": 20}))
    moved = Counter((one, other) for one, other in zip(before, after, strict=True) if one != other)
    assert moved.keys() == {("a", "b")}
    assert abs(moved["a", "b"] / REQUESTS - 0.15) < 0.01


def test_the_order_of_targets_does_not_matter():
    assert choices(route({"a": 95, "b": 5})) == choices(route({"b": 5, "a": 95}))


def test_different_routes_divide_the_same_callers_independently():
    one, other = (choices(route({"a": 1, "b": 1}, name=name)) for name in ("gpt-4o", "gpt-4o-mini"))
    same = sum(first == second for first, second in zip(one, other, strict=True))
    assert abs(same / REQUESTS - 0.5) < 0.02


def test_a_target_without_a_worker_moves_only_its_own_requests():
    given = route({"a": 5, "b": 3, "c": 2}, ["d"])
    before, after = choices(given), choices(given, lambda model: model != "c")
    assert all(second == first for first, second in zip(before, after, strict=True) if first != "c")
    assert set(after) == {"a", "b"}


@pytest.mark.parametrize(
    ("available", "chosen"),
    [("abcd", {"a", "b"}), ("bcd", {"b"}), ("cd", {"c"}), ("d", {"d"}), ("", {"a", "b"})],
)
def test_fallbacks_serve_in_order_while_no_target_has_a_worker(available, chosen):
    given = route({"a": 1, "b": 1}, ["c", "d"])
    assert set(choices(given, lambda model: model in available)) == chosen


def test_a_mirror_receives_its_share_of_the_requests_of_each_target():
    given = replace(route({"a": 1, "b": 1}), mirror="m", mirror_share=0.1)
    copied = Counter(choose(given, value, everything) for value in VALUES if is_mirrored(given, value))
    assert abs(copied["a"] / REQUESTS - 0.05) < 0.005
    assert abs(copied["b"] / REQUESTS - 0.05) < 0.005
    assert all(is_mirrored(replace(given, mirror_share=1.0), value) for value in VALUES)
    assert not any(is_mirrored(replace(given, mirror=""), value) for value in VALUES)


def message(name, *targets, tenant_id="", **former):
    definition = RouteDefinition(targets=[RouteTarget(model=model, weight=weight) for model, weight in targets])
    return RouteMessage(name=name, tenant_id=tenant_id, definition=definition, **former)


def test_the_route_of_a_tenant_precedes_that_of_all_tenants():
    table = RouteTable()
    table.on_routes(
        Routes(routes=[message("x", ("a", 1)), message("x", ("b", 1), tenant_id="acme"), message("y", ("c", 1))])
    )
    assert [each.weights for each in table.of_tenant("acme")] == [(("b", 1),), (("c", 1),)]
    assert [each.weights for each in table.of_tenant("other")] == [(("a", 1),), (("c", 1),)]
    table.on_routes(Routes(routes=[message("x", ("b", 1), tenant_id="acme")]))
    assert ("x" in table, "y" in table, table.find("x", "other")) == (True, False, None)


def test_a_target_without_weight_and_a_route_without_targets_are_ignored():
    table = RouteTable()
    table.on_routes(Routes(routes=[message("x", ("a", 0), ("b", 1)), message("y", ("a", 0)), message("z")]))
    assert [each.weights for each in table.of_tenant("")] == [(("b", 1),)]


def test_the_former_definition_names_models_that_may_have_begun_answers():
    table = RouteTable()
    former = RouteDefinition(targets=[RouteTarget(model="b", weight=1)], fallbacks=["c"])
    table.on_routes(Routes(routes=[message("x", ("a", 1), former=former)]))
    assert list(table.find("x", "").models) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("headers", "fields", "name"),
    [
        ((), {}, ""),
        ([("x-session-id", "one"), ("x-session-affinity", "two")], {"user": "three"}, "two"),
        ([("x-session-affinity", ""), ("x-session-id", "one")], {}, "one"),
        ((), {"user": "one", "prompt_cache_key": "two"}, "two"),
        ((), {"conversation": {"id": "one"}, "user": "two"}, "one"),
        ((), {"conversation": "one"}, "one"),
        ((), {"safety_identifier": 5, "user": "two"}, "two"),
        ([("authorization", "x")], {"user": None}, ""),
    ],
)
def test_a_conversation_is_named_by_headers_before_fields(headers, fields, name):
    assert session_of(headers, fields) == name
