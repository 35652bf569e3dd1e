"""Routes on the command line: options as changes of a route."""

import pytest
from click.testing import CliRunner

from penstock.cli.__main__ import cli
from penstock.cli.routes import DEFAULT_HOLD, RouteChange, targets_text
from penstock.v1.route_pb2 import ROUTE_AFFINITY_KEY, Route, RouteDefinition, RouteHold, RouteTarget


def definition(weights, **more):
    return RouteDefinition(targets=[RouteTarget(model=model, weight=weight) for model, weight in weights], **more)


STORED = Route(
    name="chat",
    tenant_id="acme",
    revision=3,
    definition=definition(
        [("old", 1)], affinity=ROUTE_AFFINITY_KEY, fallbacks=["new", "other"], mirror="m", mirror_share=0.5
    ),
    former=definition([("x", 1)]),
)


def change(*weights, **more):
    return RouteChange(name="chat", tenant_id="acme", weights=weights, **more)


def test_a_new_route_has_what_the_options_say():
    made = change(("old", 95), ("new", 5), fallbacks=("other",), affinity="key", mirror=("m", 0.1)).applied_to(None)
    parts = {"fallbacks": ["other"], "mirror": "m", "mirror_share": 0.1}
    expected = definition([("old", 95), ("new", 5)], affinity=ROUTE_AFFINITY_KEY, **parts)
    assert made == Route(name="chat", tenant_id="acme", definition=expected)


def test_a_change_keeps_the_other_parts_and_names_the_revision_that_it_read():
    made = change(("old", 95), ("new", 5)).applied_to(STORED)
    parts = {"fallbacks": ["other"], "mirror": "m", "mirror_share": 0.5}
    kept = definition([("old", 95), ("new", 5)], affinity=ROUTE_AFFINITY_KEY, **parts)
    assert made == Route(name="chat", tenant_id="acme", revision=3, definition=kept)


def test_the_other_parts_can_be_removed():
    made = change(("old", 1), keeps_fallbacks=False, keeps_mirror=False, affinity="none").applied_to(STORED)
    assert made.definition == definition([("old", 1)])


def test_a_declared_model_holds_its_requests_with_the_default_bounds():
    assert change(("chat", 1), hold=RouteHold()).applied_to(None).definition.hold == DEFAULT_HOLD


def test_a_hold_keeps_the_parts_that_are_not_given_and_can_be_removed():
    held = change(("chat", 1), hold=RouteHold(seconds=60)).applied_to(None)
    kept = change(("other", 1)).applied_to(held)
    assert kept.definition.hold.seconds == 60
    changed = change(("other", 1), hold=RouteHold(load_seconds=30)).applied_to(kept)
    assert (changed.definition.hold.seconds, changed.definition.hold.load_seconds) == (60, 30)
    assert not change(("other", 1), keeps_hold=False).applied_to(changed).definition.HasField("hold")


@pytest.mark.parametrize(
    ("weights", "text"),
    [([("a", 7)], "a"), ([("a", 95), ("b", 5)], "a 95.000%, b 5.000%"), ([], "")],
)
def test_targets_are_shown_with_their_shares(weights, text):
    assert targets_text(definition(weights)) == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["split", "chat", "a"], "must be MODEL=WEIGHT"),
        (["declare", "chat", "--no-hold"], "--no-hold excludes"),
        (["declare", "chat", "--hold", "0"], "1<=x<=3600"),
        (["split", "chat", "a=0"], "must be MODEL=WEIGHT"),
        (["split", "chat", "a=1000001"], "must be MODEL=WEIGHT"),
        (["split", "chat"], "Missing argument"),
        (["route", "chat"], "Missing option '--to'"),
        (["route", "chat", "--to", "a", "--sticky", "ip"], "is not one of"),
        (["route", "chat", "--to", "a", "--mirror", "m"], "must be MODEL=SHARE"),
        (["route", "chat", "--to", "a", "--mirror", "m=1.5"], "must be MODEL=SHARE"),
        (["route", "chat", "--to", "a", "--mirror", "m=1", "--no-mirror"], "exclude each other"),
        (["route", "chat", "--to", "a", "--fallback", "b", "--no-fallback"], "exclude each other"),
    ],
)
def test_an_invalid_option_is_rejected_before_a_call(arguments, message):
    result = CliRunner().invoke(cli, ["models", *arguments])
    assert result.exit_code == 2
    assert message in result.output
