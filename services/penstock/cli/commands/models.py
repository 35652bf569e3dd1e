"""Commands for models: list, the declaration of models without workers, and the routes that point names at them."""

from asyncio import run as run_async
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options import json_option, target_option

if TYPE_CHECKING:
    from penstock.v1.route_pb2 import RouteHold

AFFINITIES = ("none", "key", "conversation")
MAX_WEIGHT = 1_000_000

tenant_option = click.option("--tenant", "tenant_id", default="", help="a route for this tenant only; default: for all")


class WeightedModel(click.ParamType[tuple[str, int]]):
    """MODEL=WEIGHT; the weight follows the last equals sign."""

    name = "MODEL=WEIGHT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        model, _, weight = str(value).rpartition("=")
        if not model or not weight.isdecimal() or not 1 <= int(weight) <= MAX_WEIGHT:
            self.fail(f"{value!r} must be MODEL=WEIGHT with a weight of 1 to {MAX_WEIGHT}", param, ctx)
        return model, int(weight)


class MirrorShare(click.ParamType[tuple[str, float]]):
    """MODEL=SHARE; the share follows the last equals sign."""

    name = "MODEL=SHARE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        model, _, text = str(value).rpartition("=")
        try:
            share = float(text)
        except ValueError:
            share = 0.0
        if not model or not 0 < share <= 1:
            self.fail(f"{value!r} must be MODEL=SHARE with a share above 0 and at most 1", param, ctx)
        return model, share


MAX_HOLD_S = 3_600
HOLD_PARAMETERS = ("declares", "hold", "hold_requests", "load_time", "no_hold")
HOLD_OPTIONS = (
    click.option(
        "--hold", type=click.IntRange(1, MAX_HOLD_S), metavar="SECONDS", help="wait for a worker, at most this long"
    ),
    click.option("--hold-requests", type=click.IntRange(1, 100_000), help="requests that wait at one edge"),
    click.option(
        "--load-time",
        type=click.IntRange(1, MAX_HOLD_S),
        metavar="SECONDS",
        help="from the start of a worker until it serves, to predict waits",
    ),
    click.option("--no-hold", is_flag=True, help="fail at once without a worker"),
)


def definition_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the parts of a definition that it replaces; those that are not given stay."""
    for option in (
        click.option("--fallback", "fallbacks", multiple=True, help="model while no target has a worker; repeatable"),
        click.option("--no-fallback", is_flag=True, help="remove the fallbacks"),
        click.option("--mirror", type=MirrorShare(), help="model that receives a share of copies, such as MODEL=0.1"),
        click.option("--no-mirror", is_flag=True, help="copy no requests any more"),
        click.option("--sticky", "affinity", type=click.Choice(AFFINITIES), help="requests that stay on one target"),
        *HOLD_OPTIONS,
        tenant_option,
        target_option,
        json_option,
    )[::-1]:
        command = option(command)
    return command


@click.group()
def models() -> None:
    """Models and their routes: list, declare, route, split, promote, rollback, unroute."""


@models.command("list")
@target_option
@json_option
def list_routes(target: str, as_json: bool) -> None:
    """List the routes. `GET /v1/models` lists what a caller can name."""
    from penstock.cli import admin, routes

    run_async(routes.list_routes(admin.auth_target(target, as_json=as_json)))


@models.command("route")
@click.argument("name")
@click.option("--to", "model", required=True, help="model that serves the requests")
@definition_options
def route(name: str, model: str, **options: Any) -> None:
    """Serve all requests of NAME by one model."""
    _put(name, [(model, 1)], **options)


@models.command("declare")
@click.argument("name")
@definition_options
def declare(name: str, **options: Any) -> None:
    """Let requests of the model NAME wait for its first worker, so that it can run without any meanwhile."""
    _put(name, [(name, 1)], declares=True, **options)


@models.command("split")
@click.argument("name")
@click.argument("weights", nargs=-1, required=True, type=WeightedModel())
@definition_options
def split(name: str, weights: tuple[tuple[str, int], ...], **options: Any) -> None:
    """Divide the requests of NAME between models, such as `split chat old=95 new=5`."""
    _put(name, weights, **options)


@models.command("promote")
@click.argument("name")
@click.argument("model")
@tenant_option
@target_option
@json_option
def promote(name: str, model: str, tenant_id: str, target: str, as_json: bool) -> None:
    """Give all requests of the route NAME to MODEL, one of its targets."""
    from penstock.cli import admin, routes

    run_async(routes.promote(admin.auth_target(target, as_json=as_json), name, tenant_id, model))


@models.command("rollback")
@click.argument("name")
@tenant_option
@target_option
@json_option
def roll_back(name: str, tenant_id: str, target: str, as_json: bool) -> None:
    """Return to the definition of the route NAME before its last change."""
    from penstock.cli import admin, routes

    run_async(routes.roll_back(admin.auth_target(target, as_json=as_json), name, tenant_id))


@models.command("unroute")
@click.argument("name")
@tenant_option
@target_option
@json_option
def unroute(name: str, tenant_id: str, target: str, as_json: bool) -> None:
    """Delete the route NAME."""
    from penstock.cli import admin, routes

    run_async(routes.delete_route(admin.auth_target(target, as_json=as_json), name, tenant_id))


def _put(
    name: str, weights: Any, *, target: str, as_json: bool, no_fallback: bool, no_mirror: bool, **options: Any
) -> None:
    from penstock.cli import admin, routes

    if no_fallback and options["fallbacks"]:
        raise click.UsageError("--fallback and --no-fallback exclude each other")
    if no_mirror and options["mirror"]:
        raise click.UsageError("--mirror and --no-mirror exclude each other")
    hold, keeps_hold = _hold_of(**{each: options.pop(each, False) for each in HOLD_PARAMETERS})
    change = routes.RouteChange(
        name=name,
        weights=tuple(weights),
        keeps_fallbacks=not no_fallback,
        keeps_mirror=not no_mirror,
        hold=hold,
        keeps_hold=keeps_hold,
        **options,
    )
    run_async(routes.put_route(admin.auth_target(target, as_json=as_json), change))


def _hold_of(
    *, declares: bool, hold: int | None, hold_requests: int | None, load_time: int | None, no_hold: bool
) -> tuple["RouteHold | None", bool]:
    """Return the given parts of a hold, and whether the other parts stay."""
    from penstock.v1.route_pb2 import RouteHold

    is_given = declares or bool(hold or hold_requests or load_time)
    if no_hold and is_given:
        raise click.UsageError("--no-hold excludes `declare` and the other options of holds")
    parts = RouteHold(seconds=hold or 0, requests=hold_requests or 0, load_seconds=load_time or 0)
    return parts if is_given else None, not no_hold
