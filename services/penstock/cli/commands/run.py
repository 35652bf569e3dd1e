"""Commands that start a mesh or send it a request."""

from asyncio import run as run_async
from typing import Any, TextIO

import click

from penstock.cli.options import (
    LAST_BASE_PORT,
    Addresses,
    FiniteFloat,
    RegionNames,
    find_failover,
    find_target,
    json_option,
    mesh_options,
    target_options,
)
from penstock.local_mesh.plan import MeshOptions
from penstock.local_mesh.ports import PORT_SPAN
from penstock.local_mesh.regions import ROUND_TRIP_S


@click.command()
@mesh_options
@click.option(
    "--regions", type=RegionNames(), default=None, metavar="NAMES", help="run a whole mesh for each region: eu,us"
)
@click.option(
    "--region-delay",
    type=FiniteFloat(0, 1_000),
    default=ROUND_TRIP_S * 1e3,
    show_default=True,
    help="ms of a round trip between two regions",
)
@json_option
def up(options: MeshOptions, regions: tuple[str, ...] | None, region_delay: float, as_json: bool) -> None:
    """Run a whole mesh as processes on this machine until Ctrl-C."""
    from penstock.cli.up import up as run_up
    from penstock.cli.up import up_regions

    if not regions:
        run_async(run_up(options, as_json=as_json))
        return
    if options.base_port + (len(regions) - 1) * PORT_SPAN > LAST_BASE_PORT:
        message = f"the base ports of regions are {PORT_SPAN} apart: choose a lower --base-port"
        raise click.UsageError(message)
    run_async(up_regions(options, regions, round_trip_s=region_delay / 1e3, as_json=as_json))


@click.command()
@click.argument("prompt", required=False)
@mesh_options
def run(prompt: str | None, options: MeshOptions) -> None:
    """Start a mesh, answer PROMPT, show the time of each tier, drain. Without PROMPT: as `up`."""
    from penstock.cli.generate import run as run_once
    from penstock.cli.up import up as run_up

    run_async(run_once(options, prompt) if prompt else run_up(options, as_json=False))


@click.command()
@click.argument("prompt")
@target_options
@click.option(
    "--failover",
    type=Addresses(),
    default="",
    metavar="ADDRESS[,ADDRESS]",
    help="edges or regions that are asked while the target is down; running answers continue there",
)
@click.option("--model", default="", help="empty: the only served model")
@click.option("--max-tokens", type=click.IntRange(1), help="maximum number of output tokens")
@click.option("--temperature", type=FiniteFloat(0, 2), default=0.0, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1))
@click.option("--raw", is_flag=True, help="without the chat template: continue PROMPT")
@click.option(
    "--json-schema", type=click.File(lazy=True), help="file with a JSON schema that the answer obeys; - for stdin"
)
@click.option("--regex", help="regular expression that the answer matches as a whole")
@click.option("--explain", is_flag=True, help="show the time of each tier")
@json_option
def generate(
    target: str,
    key: str,
    *,
    failover: tuple[str, ...],
    as_json: bool,
    json_schema: TextIO | None,
    regex: str | None,
    **given: Any,
) -> None:
    """Send one request over the gRPC stub and stream the answer."""
    from penstock.cli.generate import GenerateOptions
    from penstock.cli.generate import generate as send
    from penstock.client import Form

    if json_schema and regex:
        raise click.UsageError("--json-schema and --regex exclude each other; give one of them")
    form = Form(json_schema=json_schema.read()) if json_schema else Form(regex=regex) if regex else None
    home, found_key = find_target(target, key)
    options = GenerateOptions(form=form, failover=find_failover(failover, home, found_key), **given)
    run_async(send(home, found_key, options, as_json=as_json))


RUN_COMMANDS = (up, run, generate)
