"""Measure, prove and simulate."""

from asyncio import run as run_async
from pathlib import Path
from typing import Any

import click

from penstock.cli.options import json_option, mesh_options, target_options
from penstock.cli.param_types import IMAGE_SUFFIXES, FiniteFloat, ModelFile, OutputFile, ScenarioFile
from penstock.local_mesh.plan import DEFAULT_MODEL, MeshOptions, check_model

IMAGE_FILE = OutputFile(*IMAGE_SUFFIXES)
PROOFS = (
    "kill",
    "cancel",
    "drain",
    "freeze",
    "partition",
    "soak",
    "surge",
    "engine",
    "overload",
    "recovery",
    "bursts",
    "fairness",
    "neighbour",
    "order",
)


@click.command()
@target_options
@mesh_options
@click.option("--api", type=click.Choice(["grpc", "session", "responses", "chat"]), default="grpc", show_default=True)
@click.option("--concurrency", type=click.IntRange(1, 4096), default=8, show_default=True, help="closed loop")
@click.option("--requests", type=click.IntRange(1, 1_000_000), help="default: 64, or what --rate and --seconds make")
@click.option("--rate", type=FiniteFloat(0, min_open=True), help="requests/s, Poisson, whatever is answered")
@click.option("--seconds", type=FiniteFloat(0, 3600, min_open=True), default=30.0, show_default=True)
@click.option("--prompt-tokens", default="16:128", show_default=True, help="one length or LOW:HIGH")
@click.option("--output-tokens", default="16:64", show_default=True, help="one length or LOW:HIGH")
@click.option("--cancel-share", type=FiniteFloat(0, 1), default=0.0, help="share of clients that leave midway")
@click.option("--seed", default=0, show_default=True)
@click.option("--slo-ttft", type=FiniteFloat(0, min_open=True), default=1.0, show_default=True, help="s")
@click.option("--slo-tpot", type=FiniteFloat(0, min_open=True), default=0.1, show_default=True, help="s")
@click.option("--plot", type=IMAGE_FILE, help="write a picture, .png or .svg")
@click.option("--compare-batching", is_flag=True, help="the same load on continuous and on static batching")
@json_option
def bench(options: MeshOptions, compare_batching: bool, **given: Any) -> None:
    """Offer load and report what callers saw. Without --target: the mesh running here, or one for this run."""
    from penstock.cli import bench as command

    run_bench = command.compare_batching if compare_batching else command.bench
    run_async(run_bench(command.bench_options(**given, model=""), options))


# Two of each tier that there can be two of, so that any one process may go; three workers, so that two bear the load.
SCORECARD_MESH = {"engine": "sim", "edges": 2, "queues": 2, "schedulers": 2, "workers": 3}


@click.command(context_settings={"default_map": SCORECARD_MESH})
@click.argument("proofs", nargs=-1, type=click.Choice(PROOFS), metavar="[NAME ..]")
@mesh_options
@click.option("--streams", type=click.IntRange(1, 4096), help="clients at once; each proof has its own default")
@click.option("--tokens", type=click.IntRange(2, 4096), help="most tokens of an answer")
@click.option("--kills", type=click.IntRange(1, 10_000), help="processes to kill")
@click.option("--every", type=FiniteFloat(0.1, 600), metavar="SECONDS", help="between two kills")
@click.option("--seconds", type=FiniteFloat(1, 3600), help="of each load of surge that count")
@click.option("--minutes", type=FiniteFloat(0, 600), help="of freeze with every core busy and nothing frozen")
@click.option("--cancels", type=click.IntRange(1, 1_000_000), help="clients that leave")
@click.option(
    "--requests", type=click.IntRange(32, 100_000), help="of the soak, or of mixed lengths through the engine"
)
@click.option("--crowd", type=click.IntRange(100, 10_000_000), help="requests through the engine's batch")
@click.option("--seeds", type=click.IntRange(2, 10_000), help="of each world under virtual time")
@click.option("--plot", type=IMAGE_FILE, help="write engine's or overload's picture, .png or .svg")
@click.option("--seed", default=0, show_default=True)
@json_option
def scorecard(proofs: tuple[str, ...], options: MeshOptions, as_json: bool, **given: Any) -> None:
    """Prove promises: kill, cancel, drain, freeze, partition, soak, surge on real processes, engine on the real
    engine, and overload, recovery, bursts, fairness, neighbour, order under virtual time; all without a NAME.

    Those on real processes start a mesh of their own, offer load, make faults and hold what clients saw against a run
    without faults. Those under virtual time run the mesh's own queue, scheduler and batch, beside what others do.
    Ends with 1 when a goal was missed and with 3 when a run was void: the fault or the load was not real.
    """
    from penstock.cli.scorecard import scorecard as run_scorecard

    run_async(run_scorecard(proofs or PROOFS, options, as_json=as_json, **given))


@click.command()
@click.argument("scenario", required=False, type=ScenarioFile())
@click.option("--seed", type=click.IntRange(0), help="instead of the scenario's own")
@click.option("--law", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="every worker's step law")
@click.option("--plan", type=FiniteFloat(0, 1, min_open=True), metavar="SHARE", help="how many workers it takes")
@click.option("--beside", default="", metavar="POLICY", help="with --plot: draw what another policy makes of it")
@click.option("--calibrate", is_flag=True, help="instead: measure the real engine and write its step law")
@click.option(
    "--model", type=ModelFile(), default=DEFAULT_MODEL, show_default=True, help="with --calibrate: the model to measure"
)
@click.option("--threads", type=click.IntRange(0), default=0, help="with --calibrate: of the engine; 0: one per core")
@click.option("--rounds", type=click.IntRange(1, 100), default=6, show_default=True, help="with --calibrate")
@click.option("--out", type=OutputFile(), help="with --calibrate: the law's file")
@click.option("--plot", type=IMAGE_FILE, help="write a picture, .png or .svg")
@json_option
def simulate(
    scenario: Path | None, seed: int | None, law: Path | None, plot: Path | None, as_json: bool, **measuring: Any
) -> None:
    """Run the mesh's own queue, scheduler and batch under virtual time, as SCENARIO says: a TOML file or an example.

    With --plan 0.99: the fewest of its workers with which 99 % of requests are answered within its SLO.
    With --calibrate: measure how long the steps of the real engine take here, for --law and for
    PENSTOCK_WORKER_SIM_STEP_TIME_FILE.
    """
    wanted, beside = measuring.pop("plan"), measuring.pop("beside")
    _check_exclusive(("a SCENARIO", scenario), ("--calibrate", measuring["calibrate"]))
    _check_exclusive(("--plan", wanted), ("--beside", beside))
    if measuring.pop("calibrate"):
        from penstock.cli.calibrate import CalibrationOptions, calibrate

        check_model(measuring["model"])
        calibrate(CalibrationOptions(plot=plot, as_json=as_json, **measuring))
        return
    from penstock.cli import capacity_plan
    from penstock.cli.simulate import load_scenario
    from penstock.cli.simulate import simulate as run_simulation

    if scenario is None:
        message = "name a SCENARIO.toml to run, or --calibrate to measure the engine"
        raise click.UsageError(message)
    asked = load_scenario(scenario, seed, law)
    if wanted:
        capacity_plan.show_plan(asked, wanted, plot, as_json=as_json)
    elif beside:
        if plot is None:
            message = "--beside draws a picture: say where with --plot"
            raise click.UsageError(message)
        capacity_plan.show_comparison(asked, beside, plot)
    else:
        run_simulation(asked, plot, as_json=as_json)


def _check_exclusive(*given: tuple[str, Any]) -> None:
    """Raises UsageError where several are there: one of them would be passed over in silence."""
    there = [name for name, value in given if value]
    if len(there) > 1:
        message = f"{' and '.join(there)} are two different things to do: give one of them"
        raise click.UsageError(message)


@click.command()
@click.option("--seeds", type=click.IntRange(1, 10_000_000), default=500, show_default=True, help="worlds to run")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="the first of them")
@click.option("--processes", type=click.IntRange(0, 256), default=0, help="at a time; 0: one per core")
@click.option("--poison", is_flag=True, help="make one request of every world crash the engines that run it")
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

    overrides = PlanOverrides(has_poison=overriding["poison"], max_freeze_s=overriding["longest_freeze"] or 0.0)
    if frame_log:
        command.show_replay(seed, overrides)
    else:
        command.run_faults(range(seed, seed + seeds), processes, overrides=overrides, as_json=as_json)


MEASURE_COMMANDS = (bench, scorecard, simulate, faults)
