"""The `penstock` command line: arguments in, one coroutine run, errors as one line and an exit code."""

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click

from penstock.chassis.errors import PenstockError
from penstock.cli.options import find_processes, find_target, find_tier, json_option, mesh_options, target_options
from penstock.cli.plan import DEFAULT_MODEL, MeshOptions

TIERS = ("edge", "auth", "queue", "scheduler", "worker", "routing")
PROOFS = (
    "kill",
    "cancel",
    "drain",
    "freeze",
    "soak",
    "surge",
    "engine",
    "overload",
    "recovery",
    "fairness",
    "neighbour",
    "order",
)
PRIORITIES = ("interactive", "standard", "batch")


@click.group(context_settings={"max_content_width": 120})
@click.version_option(package_name="penstock")
def cli() -> None:
    """Serve large language models through a mesh of five gRPC tiers."""


@cli.command()
@mesh_options
@json_option
def up(options: MeshOptions, as_json: bool) -> None:
    """Run a whole mesh as processes on this machine until Ctrl-C."""
    from penstock.cli.up import up as run_up

    _run(run_up(options, as_json=as_json))


@cli.command()
@click.argument("prompt", required=False)
@mesh_options
def run(prompt: str | None, options: MeshOptions) -> None:
    """Start a mesh, answer PROMPT, show where the time went, drain. Without PROMPT: as `up`."""
    from penstock.cli.generate import run as run_once
    from penstock.cli.up import up as run_up

    _run(run_once(options, prompt) if prompt else run_up(options, as_json=False))


@cli.command()
@click.argument("prompt")
@target_options
@click.option("--model", default="", help="empty: the only one served")
@click.option("--max-tokens", type=click.IntRange(1), help="most tokens to generate")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1))
@click.option("--raw", is_flag=True, help="no chat template: continue PROMPT as it stands")
@click.option("--explain", is_flag=True, help="show where the time went, tier by tier")
@json_option
def generate(target: str, key: str, as_json: bool, **given: Any) -> None:
    """Send one request over the gRPC stub and stream the answer."""
    from penstock.cli.generate import Ask
    from penstock.cli.generate import generate as send

    _run(send(*find_target(target, key), Ask(**given), as_json=as_json))


@cli.command()
@target_options
@mesh_options
@click.option("--api", type=click.Choice(["grpc", "session", "responses", "chat"]), default="grpc", show_default=True)
@click.option("--concurrency", type=click.IntRange(1, 4096), default=8, show_default=True, help="closed loop")
@click.option("--requests", type=click.IntRange(1, 1_000_000), help="default: 64, or what --rate and --seconds make")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="requests/s, Poisson, whatever is answered")
@click.option("--seconds", type=click.FloatRange(0, 3600, min_open=True), default=30.0, show_default=True)
@click.option("--prompt-tokens", default="16:128", show_default=True, help="one length or LOW:HIGH")
@click.option("--output-tokens", default="16:64", show_default=True, help="one length or LOW:HIGH")
@click.option("--cancel-share", type=click.FloatRange(0, 1), default=0.0, help="share of clients that leave midway")
@click.option("--seed", default=0, show_default=True)
@click.option("--slo-ttft", default=1.0, show_default=True, help="s")
@click.option("--slo-tpot", default=0.1, show_default=True, help="s")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="write a picture, .png or .svg")
@click.option("--compare-batching", is_flag=True, help="the same load on continuous and on naive batching")
@json_option
def bench(options: MeshOptions, compare_batching: bool, **given: Any) -> None:
    """Offer load and report what callers saw. Without --target: the mesh running here, or one for this run."""
    from penstock.cli.bench import command

    run_bench = command.compare_batching if compare_batching else command.bench
    _run(run_bench(command.asked_for(**given, model=""), options))


# Two of each tier that there can be two of, so that any one process may go; three workers, so that two bear the load.
PROVING = {"engine": "sim", "edges": 2, "queues": 2, "schedulers": 2, "workers": 3}


@cli.command(context_settings={"default_map": PROVING})
@click.argument("proofs", nargs=-1, type=click.Choice(PROOFS), metavar="[NAME ..]")
@mesh_options
@click.option("--streams", type=click.IntRange(1, 4096), help="clients at once; each proof has its own default")
@click.option("--tokens", type=click.IntRange(2, 4096), help="most tokens of an answer")
@click.option("--kills", type=click.IntRange(1, 10_000), help="processes to kill")
@click.option("--every", type=click.FloatRange(0.1, 600), metavar="SECONDS", help="between two kills")
@click.option("--seconds", type=click.FloatRange(1, 3600), help="of each load of surge that count")
@click.option("--cancels", type=click.IntRange(1, 1_000_000), help="clients that leave")
@click.option(
    "--requests", type=click.IntRange(32, 100_000), help="of the soak, or of mixed lengths through the engine"
)
@click.option("--crowd", type=click.IntRange(100, 10_000_000), help="requests through the engine's batch")
@click.option("--seeds", type=click.IntRange(2, 10_000), help="of each world under virtual time")
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="write engine's or overload's picture, .png or .svg"
)
@click.option("--seed", default=0, show_default=True)
@json_option
def scorecard(proofs: tuple[str, ...], options: MeshOptions, as_json: bool, **given: Any) -> None:
    """Prove promises: kill, cancel, drain, freeze, soak, surge on real processes, engine on the real engine, and
    overload, recovery, fairness, neighbour, order under virtual time; all without a NAME.

    Those on real processes start a mesh of their own, offer load, make faults and hold what clients saw against a run
    without faults. Those under virtual time run the mesh's own queue, scheduler and batch, beside what others do.
    Ends with 1 when a goal was missed and with 3 when a run was void: the fault or the load was not real.
    """
    from penstock.cli.scorecard.command import scorecard as run_scorecard

    _run(run_scorecard(proofs or PROOFS, options, as_json=as_json, **given))


@cli.command()
@click.argument("scenario", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--seed", type=click.IntRange(0), help="instead of the scenario's own")
@click.option("--law", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="every worker's step law")
@click.option("--plan", type=click.FloatRange(0, 1, min_open=True), metavar="SHARE", help="how many workers it takes")
@click.option("--beside", default="", metavar="POLICY", help="with --plot: draw what another policy makes of it")
@click.option("--calibrate", is_flag=True, help="instead: measure the real engine and write its step law")
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="with --calibrate: the model to measure")
@click.option("--threads", type=click.IntRange(0), default=0, help="with --calibrate: of the engine; 0: one per core")
@click.option("--rounds", type=click.IntRange(1, 100), default=6, show_default=True, help="with --calibrate")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="with --calibrate: the law's file")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="write a picture, .png or .svg")
@json_option
def simulate(
    scenario: Path | None, seed: int | None, law: Path | None, plot: Path | None, as_json: bool, **measuring: Any
) -> None:
    """Run the mesh's own queue, scheduler and batch under virtual time, as the TOML file SCENARIO says.

    With --plan 0.99: the fewest of its workers with which 99 % of requests are answered within its SLO.
    With --calibrate: measure how long the real engine's steps take here, for --law and for PENSTOCK_WORKER_SIM_LAW.
    """
    wanted, beside = measuring.pop("plan"), measuring.pop("beside")
    if measuring.pop("calibrate"):
        from penstock.cli.calibration.command import CalibrationOptions, calibrate

        calibrate(CalibrationOptions(plot=plot, as_json=as_json, **measuring))
        return
    from penstock.cli import capacity
    from penstock.cli.simulate import scenario_from
    from penstock.cli.simulate import simulate as run_simulation

    if scenario is None:
        message = "name a SCENARIO.toml to run, or --calibrate to measure the engine"
        raise click.UsageError(message)
    asked = scenario_from(scenario, seed, law)
    if wanted:
        capacity.show_plan(asked, wanted, plot, as_json=as_json)
    elif beside:
        if plot is None:
            message = "--beside draws a picture: say where with --plot"
            raise click.UsageError(message)
        capacity.show_beside(asked, beside, plot)
    else:
        run_simulation(asked, plot, as_json=as_json)


@cli.command()
@click.option("--seeds", type=click.IntRange(1, 10_000_000), default=500, show_default=True, help="worlds to run")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="the first of them")
@click.option("--processes", type=click.IntRange(0, 256), default=0, help="at a time; 0: one per core")
@click.option("--story", is_flag=True, help="run --seed alone and print every frame and every fault")
@json_option
def faults(seeds: int, seed: int, processes: int, story: bool, as_json: bool) -> None:
    """Run whole meshes under virtual time on a network that each seed breaks differently, and judge what came of it.

    Every token, text, charge and leftover is held against what was promised. A seed replays exactly. Ends with 1 where
    a promise was broken.
    """
    from penstock.cli import faults as command

    if story:
        command.tell(seed)
    else:
        command.run_faults(seed, seeds, processes, as_json=as_json)


@cli.group()
def keys() -> None:
    """API keys: create, list, revoke."""


@keys.command("create")
@click.option("--tenant", default="default", show_default=True)
@click.option("--name", default="", help="for people")
@click.option("--ttl", type=click.FloatRange(1), metavar="SECONDS", help="how long it works")
@click.option("--target", default="", metavar="HOST:PORT", help="an auth process")
@json_option
def create_key(tenant: str, name: str, ttl: float | None, target: str, as_json: bool) -> None:
    """Make a key and show it, once."""
    from penstock.cli import admin

    _run(admin.create_key(_admin("auth", target, as_json=as_json), tenant, name, ttl))


@keys.command("list")
@click.option("--tenant", default="", help="only this tenant's")
@click.option("--target", default="", metavar="HOST:PORT", help="an auth process")
@json_option
def list_keys(tenant: str, target: str, as_json: bool) -> None:
    """List keys without their secrets."""
    from penstock.cli import admin

    _run(admin.list_keys(_admin("auth", target, as_json=as_json), tenant))


@keys.command("revoke")
@click.argument("key_id")
@click.option("--target", default="", metavar="HOST:PORT", help="an auth process")
@json_option
def revoke_key(key_id: str, target: str, as_json: bool) -> None:
    """End a key at once."""
    from penstock.cli import admin

    _run(admin.revoke_key(_admin("auth", target, as_json=as_json), key_id))


@cli.group()
def tenants() -> None:
    """Tenants and their limits: put, list."""


@tenants.command("put")
@click.argument("tenant_id")
@click.option("--class", "priority", type=click.Choice(PRIORITIES), default="standard", show_default=True)
@click.option("--weight", type=click.FloatRange(0.01, 1000), default=1.0, show_default=True)
@click.option("--requests-per-minute", type=click.IntRange(0), default=0, help="0: no limit")
@click.option("--tokens-per-minute", type=click.IntRange(0), default=0, help="0: no limit")
@click.option("--concurrent-requests", type=click.IntRange(0), default=0, help="0: no limit")
@click.option("--target", default="", metavar="HOST:PORT", help="an auth process")
@json_option
def put_tenant(target: str, as_json: bool, priority: str, **limits: Any) -> None:
    """Create a tenant or replace its limits."""
    from penstock.cli import admin
    from penstock.v1.admin_pb2 import Tenant
    from penstock.v1.inference_pb2 import Priority

    tenant = Tenant(priority=Priority.Value(f"PRIORITY_{priority.upper()}"), **limits)
    _run(admin.put_tenant(_admin("auth", target, as_json=as_json), tenant))


@tenants.command("list")
@click.option("--target", default="", metavar="HOST:PORT", help="an auth process")
@json_option
def list_tenants(target: str, as_json: bool) -> None:
    """List tenants with their limits and use."""
    from penstock.cli import admin

    _run(admin.list_tenants(_admin("auth", target, as_json=as_json)))


@cli.command()
@click.argument("process")
@click.option("--grace", type=click.FloatRange(0), metavar="SECONDS", help="longest time for running work")
@click.option("--target", default="", metavar="HOST:PORT", help="its address, when no mesh runs here")
def drain(process: str, grace: float | None, target: str) -> None:
    """Let PROCESS (worker-2, or a tier) finish its work and end."""
    from penstock.cli import admin

    _run(admin.drain(_admin(process, target, as_json=False), grace))


@cli.command()
@click.argument("process")
@click.option("--target", default="", metavar="HOST:PORT", help="its address, when no mesh runs here")
@json_option
def snapshot(process: str, target: str, as_json: bool) -> None:
    """Show the figures of PROCESS (worker-2, or a tier) now."""
    from penstock.cli import admin

    _run(admin.snapshot(_admin(process, target, as_json=as_json)))


@cli.command()
@click.option(
    "--target", "targets", multiple=True, metavar="HOST:PORT", help="a process, or dns:///NAME:PORT; repeatable"
)
@click.option("--interval", type=click.FloatRange(0.1, 60), default=1.0, show_default=True, help="s between two looks")
@click.option("--once", is_flag=True, help="print one frame, of one interval, and exit")
@json_option
def top(targets: tuple[str, ...], interval: float, once: bool, as_json: bool) -> None:
    """Watch a mesh: what waits for whom, what runs where, who was shed and how well waits were predicted."""
    from penstock.cli.top.command import top as watch

    names = {} if targets else find_processes()
    _run(watch(names, targets, interval=interval, once=once, as_json=as_json))


@cli.command()
@click.argument("tier", type=click.Choice(TIERS))
@json_option
def config(tier: str, as_json: bool) -> None:
    """Show the configuration TIER would start with here; refuse unknown or bad settings."""
    from penstock.cli import admin

    admin.show_config(tier, as_json=as_json)


def _admin(process: str, target: str, *, as_json: bool) -> Any:
    from penstock.cli.admin import AdminCall

    return AdminCall(target=find_tier(process, target), as_json=as_json)


def _run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def main() -> None:
    """Entry point: a failure is one line that says what to do, and exit code 1 (2 for wrong usage)."""
    from penstock.chassis.config import ConfigError
    from penstock.chassis.logs import configure_logs
    from penstock.cli.processes import ChildFailedError

    configure_logs("error")  # a person reads what commands print; the tiers' logs are files
    try:
        cli()
    except PenstockError as error:
        retry = f" (retry in {error.retry_after:.1f} s)" if error.retry_after is not None else ""
        sys.exit(f"penstock: {error.code.name} / {error.reason}: {error}{retry}")
    except (ConfigError, ChildFailedError, TimeoutError, OSError) as error:
        sys.exit(f"penstock: {error or type(error).__name__}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
