"""Commands for the regions that proxies send calls to."""

from asyncio import run as run_async

import click

from penstock.cli.options import FiniteFloat, json_option

target_option = click.option(
    "--target",
    default="",
    metavar="ADDRESS",
    help="admin_listen of a routing process: unix:PATH or HOST:PORT; or the region of a mesh here",
)


@click.group()
def regions() -> None:
    """Regions: list, drain, restore, weight. They act on the proxies of one region, by its routing."""


@regions.command("list")
@target_option
@json_option
def list_regions(target: str, as_json: bool) -> None:
    """List the own region and the others, with their health and open calls."""
    from penstock.cli import regions as commands

    run_async(commands.list_regions(commands.routing_target(target, as_json=as_json)))


@regions.command("drain")
@click.argument("region")
@click.option("--wait/--no-wait", default=True, show_default=True, help="until no call is open there")
@click.option("--timeout", type=FiniteFloat(0), metavar="SECONDS", help="longest wait; without it, no limit")
@target_option
@json_option
def drain_region(region: str, wait: bool, timeout: float | None, target: str, as_json: bool) -> None:
    """Send new calls to other regions instead of REGION. Open calls go on."""
    from penstock.cli import regions as commands

    routing = commands.routing_target(target, as_json=as_json)
    run_async(commands.drain_region(routing, region, wait=wait, timeout_s=timeout))


@regions.command("restore")
@click.argument("region")
@target_option
@json_option
def restore_region(region: str, target: str, as_json: bool) -> None:
    """End the drain of REGION, which gets its calls back in steps."""
    from penstock.cli import regions as commands

    run_async(commands.restore_region(commands.routing_target(target, as_json=as_json), region))


@regions.command("weight")
@click.argument("region")
@click.argument("percent", type=click.IntRange(0, 100))
@target_option
@json_option
def weight_region(region: str, percent: int, target: str, as_json: bool) -> None:
    """Send PERCENT of the new calls that may leave to REGION first; 0 ends it."""
    from penstock.cli import regions as commands

    run_async(commands.weight_region(commands.routing_target(target, as_json=as_json), region, percent))
