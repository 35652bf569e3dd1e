"""Commands for models: list, and the routes that point names at them."""

from asyncio import run as run_async
from collections.abc import Callable
from typing import Any

import click

from penstock.cli.options import json_option, target_option

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


def definition_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the parts of a definition that it replaces; those that are not given stay."""
    for option in (
        click.option("--fallback", "fallbacks", multiple=True, help="model while no target has a worker; repeatable"),
        click.option("--no-fallback", is_flag=True, help="remove the fallbacks"),
        click.option("--mirror", type=MirrorShare(), help="model that receives a share of copies, such as MODEL=0.1"),
        click.option("--no-mirror", is_flag=True, help="copy no requests any more"),
        click.option("--sticky", "affinity", type=click.Choice(AFFINITIES), help="requests that stay on one target"),
        tenant_option,
        target_option,
        json_option,
    )[::-1]:
        command = option(command)
    return command


@click.group()
def models() -> None:
    """Models and their routes: list, route, split, promote, rollback, unroute."""


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
    change = routes.RouteChange(
        name=name, weights=tuple(weights), keeps_fallbacks=not no_fallback, keeps_mirror=not no_mirror, **options
    )
    run_async(routes.put_route(admin.auth_target(target, as_json=as_json), change))
