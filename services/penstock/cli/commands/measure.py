"""Commands that measure a mesh, run proofs and simulate."""

from asyncio import run as run_async
from pathlib import Path
from typing import Any

import click

from penstock.cli.options import (
    IMAGE_SUFFIXES,
    TIERS,
    FiniteFloat,
    ModelFile,
    OutputFile,
    ScenarioFile,
    json_option,
    mesh_options,
    target_options,
)
from penstock.local_mesh.plan import DEFAULT_MODEL, MeshOptions, check_model
from penstock.proofs.regions.options import PARTS as REGION_PARTS

IMAGE_FILE = OutputFile(*IMAGE_SUFFIXES)
PROOFS = (
    "kill",
    "cancel",
    "drain",
    "freeze",
    "partition",
    "disk",
    "database",
    "quota",
    "rollout",
    "retrieval",
    "batch",
    "soak",
    "surge",
    "clocks",
    "regions",
    "hostile",
    "overhead",
    "engine",
    "overload",
    "fleet",
    "recovery",
    "bursts",
    "fairness",
    "neighbour",
    "order",
    "prefixes",
    "autoscale",
)


class RegionParts(click.ParamType[tuple[str, ...]]):
    """Parts of the proof of regions, separated by commas."""

    name = "parts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        names = tuple(value.split(","))
        if unknown := [each for each in names if each not in REGION_PARTS]:
            self.fail(f"{unknown[0]!r} is none of {', '.join(REGION_PARTS)}", param, ctx)
        return names


@click.command()
@target_options
@mesh_options
@click.option("--api", type=click.Choice(["grpc", "session", "responses", "chat"]), default="grpc", show_default=True)
@click.option(
    "--concurrency", type=click.IntRange(1, 4096), default=8, show_default=True, help="clients of the closed loop"
)
@click.option("--requests", type=click.IntRange(1, 1_000_000), help="default: 64, or --rate times --seconds")
@click.option(
    "--rate", type=FiniteFloat(0, min_open=True), help="requests/s with Poisson arrivals; without it: a closed loop"
)
@click.option("--seconds", type=FiniteFloat(0, 3600, min_open=True), default=30.0, show_default=True)
@click.option("--prompt-tokens", default="16:128", show_default=True, help="one length or LOW:HIGH")
@click.option("--output-tokens", default="16:64", show_default=True, help="one length or LOW:HIGH")
@click.option("--cancel-share", type=FiniteFloat(0, 1), default=0.0, help="share of requests that their clients cancel")
@click.option("--seed", default=0, show_default=True)
@click.option("--slo-ttft", type=FiniteFloat(0, min_open=True), default=1.0, show_default=True, help="s")
@click.option("--slo-tpot", type=FiniteFloat(0, min_open=True), default=0.1, show_default=True, help="s")
@click.option("--plot", type=IMAGE_FILE, help="write a figure, .png or .svg")
@click.option("--compare-batching", is_flag=True, help="the same load on continuous and on static batching")
@json_option
def bench(options: MeshOptions, compare_batching: bool, **given: Any) -> None:
    """Offer load and report latencies and goodput. Without --target: to the local mesh, or to a new one."""
    from penstock.cli import bench as command

    run_bench = command.compare_batching if compare_batching else command.bench
    run_async(run_bench(command.bench_options(**given), options))


# Two replicas of each tier that supports it, so that any process may fail; three workers, so that two carry the load.
SCORECARD_MESH = {"engine": "sim", "edges": 2, "queues": 2, "schedulers": 2, "workers": 3}


@click.command(context_settings={"default_map": SCORECARD_MESH})
@click.argument("proofs", nargs=-1, type=click.Choice(PROOFS), metavar="[NAME ..]")
@mesh_options
@click.option("--streams", type=click.IntRange(1, 4096), help="clients at once; each proof has its own default")
@click.option("--tokens", type=click.IntRange(2, 4096), help="maximum tokens of an answer")
@click.option("--kills", type=click.IntRange(1, 10_000), help="processes to kill")
@click.option("--every", type=FiniteFloat(0.1, 600), metavar="SECONDS", help="between two kills")
@click.option(
    "--seconds",
    type=FiniteFloat(1, 3600),
    help="judged duration of each load of surge, clocks, overhead and regions, of disk's, database's and batch's "
    "outages, or of an attack of hostile",
)
@click.option("--minutes", type=FiniteFloat(0, 600), help="duration of freeze's CPU stress")
@click.option(
    "--other-release",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="folder `services` of another release, which half of kill's processes run",
)
@click.option("--other-auth", is_flag=True, help="with --other-release: auth runs it as well")
@click.option("--attacks", multiple=True, metavar="NAME", help="attacks or corpora of hostile; repeat for several")
@click.option("--parts", type=RegionParts(), help="parts of regions, separated by commas: " + ", ".join(REGION_PARTS))
@click.option("--cut-seconds", type=FiniteFloat(1, 3600), help="time for which regions cuts the link")
@click.option("--region-delay", type=FiniteFloat(0, 1_000), help="ms of a round trip between the regions of regions")
@click.option("--prompts", type=click.IntRange(1, 10_000_000), help="prompts of the tenant of regions that stays")
@click.option("--lines", type=click.IntRange(1, 10_000_000), help="lines of batch's batches")
@click.option("--resets", type=click.IntRange(1, 1_000_000), help="streams that hostile's rapid-reset resets on a port")
@click.option("--cancels", type=click.IntRange(1, 1_000_000), help="requests to cancel")
@click.option("--tier", "tiers", multiple=True, type=click.Choice(TIERS), help="drain this tier alone; repeatable")
@click.option("--rounds", type=click.IntRange(1, 1_000), help="rolling restarts of drain")
@click.option("--requests", type=click.IntRange(32, 100_000), help="requests of soak, or of engine's mixed lengths")
@click.option("--stress-requests", type=click.IntRange(100, 10_000_000), help="requests through the engine's batch")
@click.option("--seeds", type=click.IntRange(2, 10_000), help="seeds of each proof under virtual time")
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="autoscale's demand, in the format of Azure's trace",
)
@click.option("--plot", type=IMAGE_FILE, help="write the figure of engine or overload, .png or .svg")
@click.option("--seed", default=0, show_default=True)
@json_option
def scorecard(proofs: tuple[str, ...], options: MeshOptions, as_json: bool, **given: Any) -> None:
    """Run proofs: kill, cancel, drain, freeze, partition, disk, database, quota, rollout, retrieval, batch, soak,
    surge, clocks, regions, hostile, overhead on real processes, engine on the real engine, and overload, fleet,
    recovery, bursts, fairness, neighbour, order, prefixes, autoscale under virtual time. Without a NAME: all of them.

    Proofs on real processes start their own mesh, offer load, inject faults and compare the answers with those of a
    run without faults. Proofs under virtual time run the mesh's own queue, scheduler and batch, and other policies for
    comparison. The exit code is 1 if a goal was missed, and 3 if a run was void: its fault or its load was not real.
    """
    from penstock.cli.scorecard import scorecard as run_scorecard

    run_async(run_scorecard(proofs or PROOFS, options, as_json=as_json, **given))


@click.command()
@click.argument("scenario", required=False, type=ScenarioFile())
@click.option("--seed", type=click.IntRange(0), help="overrides the scenario's seed")
@click.option(
    "--step-time", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="step times of every worker"
)
@click.option("--plan", type=FiniteFloat(0, 1, min_open=True), metavar="SHARE", help="find the number of workers")
@click.option("--compare", default="", metavar="POLICY", help="with --plot: plot another policy as well")
@click.option("--calibrate", is_flag=True, help="measure the real engine and write its step times")
@click.option(
    "--model", type=ModelFile(), default=DEFAULT_MODEL, show_default=True, help="with --calibrate: the model to measure"
)
@click.option(
    "--threads", type=click.IntRange(0), default=0, help="with --calibrate: threads of the engine; 0: one per core"
)
@click.option("--rounds", type=click.IntRange(1, 100), default=6, show_default=True, help="with --calibrate")
@click.option("--out", type=OutputFile(), help="with --calibrate: file of the step times")
@click.option("--plot", type=IMAGE_FILE, help="write a figure, .png or .svg")
@json_option
def simulate(
    scenario: Path | None, seed: int | None, step_time: Path | None, plot: Path | None, as_json: bool, **given: Any
) -> None:
    """Run SCENARIO, a TOML file or an example, with the mesh's own queue, scheduler and batch under virtual time.

    With --plan 0.99: find the smallest number of workers that answers 99 % of the requests within the SLO.
    With --calibrate: measure the durations of the real engine's steps on this machine, for --step-time and for
    PENSTOCK_WORKER_SIM_STEP_TIME_FILE.
    """
    target_share, compared = given.pop("plan"), given.pop("compare")
    _check_exclusive(("a SCENARIO", scenario), ("--calibrate", given["calibrate"]))
    _check_exclusive(("--plan", target_share), ("--compare", compared))
    if given.pop("calibrate"):
        from penstock.cli.planning.calibrate import CalibrationOptions, calibrate

        check_model(given["model"])
        calibrate(CalibrationOptions(plot=plot, as_json=as_json, **given))
        return
    from penstock.cli.planning import capacity_plan
    from penstock.cli.planning.simulate import load_scenario
    from penstock.cli.planning.simulate import simulate as run_simulation
    from penstock.cli.planning.simulate_regions import simulate_regions
    from penstock.simulator.regions.scenario import RegionsScenario

    if scenario is None:
        message = "name a SCENARIO.toml to run, or --calibrate to measure the engine"
        raise click.UsageError(message)
    loaded = load_scenario(scenario, seed, step_time)
    if isinstance(loaded, RegionsScenario):
        _check_exclusive(("a scenario of several regions", scenario), ("--plan", target_share), ("--compare", compared))
        simulate_regions(loaded, plot, as_json=as_json)
    elif target_share:
        capacity_plan.show_plan(loaded, target_share, plot, as_json=as_json)
    elif compared:
        if plot is None:
            message = "--compare writes a figure: name its file with --plot"
            raise click.UsageError(message)
        capacity_plan.show_comparison(loaded, compared, plot)
    else:
        run_simulation(loaded, plot, as_json=as_json)


def _check_exclusive(*options: tuple[str, Any]) -> None:
    """Raises UsageError if several of the options are given, because one of them would be ignored."""
    given = [name for name, value in options if value]
    if len(given) > 1:
        message = f"{' and '.join(given)} exclude each other: give one of them"
        raise click.UsageError(message)


@click.command()
@click.option("--seeds", type=click.IntRange(1, 10_000_000), default=500, show_default=True, help="worlds to run")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="the first of them")
@click.option("--processes", type=click.IntRange(0, 256), default=0, help="at a time; 0: one per core")
@click.option("--poison", is_flag=True, help="make one request of every world crash the engines that run it")
@click.option("--rollout", is_flag=True, help="replace workers of every world by workers of another model version")
@click.option("--auth-replicas", is_flag=True, help="run several processes of auth on one database in every world")
@click.option("--responses", is_flag=True, help="store responses in every world, and retrieve them at other edges")
@click.option("--batches", is_flag=True, help="run batches in every world, on two replicas of the batch tier")
@click.option("--regions", is_flag=True, help="run two or three regions in every world; excludes the other kinds")
@click.option(
    "--longest-freeze",
    type=click.FloatRange(5, 600, min_open=True),
    metavar="SECONDS",
    help="freeze a process of every world for more than 5 s, up to this time",
)
@click.option("--frame-log", is_flag=True, help="run --seed alone and print every frame and every fault")
@json_option
def faults(*, seeds: int, seed: int, processes: int, frame_log: bool, as_json: bool, **overriding: Any) -> None:
    """Run whole meshes under virtual time, with faults that each seed decides, and check the guarantees.

    The checks cover every token, text, charge and leak. A seed replays exactly. Exits with status 1 if a guarantee was
    violated.
    """
    from penstock.cli import faults as command
    from penstock.faults.plan import PlanOverrides

    overrides = PlanOverrides(
        has_poison=overriding["poison"],
        has_rollout=overriding["rollout"],
        max_freeze_s=overriding["longest_freeze"] or 0.0,
        has_auth_replicas=overriding["auth_replicas"],
        has_responses=overriding["responses"],
        has_batches=overriding["batches"],
        has_regions=overriding["regions"],
    )
    if overrides.has_regions and overrides != PlanOverrides(has_regions=True):
        message = "--regions excludes the options for other kinds of worlds"
        raise click.UsageError(message)
    if frame_log:
        command.show_replay(seed, overrides)
    else:
        command.run_faults(range(seed, seed + seeds), processes, overrides=overrides, as_json=as_json)


MEASURE_COMMANDS = (bench, scorecard, simulate, faults)
