"""`penstock simulate`: runs a scenario under virtual time, shows its figures and plots them."""

import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.live import Live

from penstock.bench.report import figures_table, summary_lines
from penstock.cli.tables import stderr_console, stdout_console
from penstock.simulator.capacity_plan import knee_load
from penstock.simulator.errors import ScenarioError
from penstock.simulator.regions.scenario import RegionsScenario
from penstock.simulator.regions.scenario_file import read_any_scenario
from penstock.simulator.report.figures import figures_of
from penstock.simulator.report.plot import plot_simulations
from penstock.simulator.scenario import Scenario
from penstock.simulator.simulation import Simulation, SimulationProgressFn
from penstock.worker.engine.simulated.step_time import read_step_time_model

SimulationRun = tuple[Simulation, dict[str, Any]]


def load_scenario(path: Path, seed: int | None, step_time_file: Path | None) -> Scenario | RegionsScenario:
    """Read a scenario; `step_time_file`: the step time model of every worker, if it is given. Raises UsageError.

    `seed` is that of the first region; those of further regions follow.
    """
    try:
        scenario = read_any_scenario(path)
    except ScenarioError as error:
        raise click.UsageError(str(error)) from error
    if isinstance(scenario, RegionsScenario):
        regions = [
            _changed(each, None if seed is None else seed + place, step_time_file)
            for place, each in enumerate(scenario.regions)
        ]
        return replace(scenario, regions=regions)
    return _changed(scenario, seed, step_time_file)


def _changed(scenario: Scenario, seed: int | None, step_time_file: Path | None) -> Scenario:
    if step_time_file is not None:
        scenario = _with_step_time(scenario, step_time_file)
    return scenario if seed is None else replace(scenario, seed=seed)


def simulate(scenario: Scenario, plot: Path | None, *, as_json: bool) -> None:
    """Run the scenario, or all loads of its sweep."""
    knee = knee_load(scenario) if scenario.load_sweep else 0.0
    loads = [knee * multiple for multiple in scenario.load_sweep] or [scenario.load]
    runs = [_run_scenario(replace(scenario, load=load)) for load in loads]
    if as_json:
        stdout_console.print_json(data=_runs_json([figures for _, figures in runs], knee))
    else:
        for simulation, figures in runs:
            _show_run(simulation.scenario, figures, knee)
    if plot:
        plot_simulations(runs, knee, plot)
        stderr_console.print(f"plot: {plot}")


def _with_step_time(scenario: Scenario, path: Path) -> Scenario:
    try:
        step_time = read_step_time_model(path)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return replace(scenario, workers=tuple(replace(kind, step_time=step_time) for kind in scenario.workers))


def _runs_json(figures: list[dict[str, Any]], knee: float) -> dict[str, Any]:
    return {"knee_load": knee, "runs": figures} if knee else figures[0]


def _run_scenario(scenario: Scenario) -> SimulationRun:
    started_at = time.process_time()
    with simulation_progress(scenario) as progress, _gc_disabled():
        simulation = Simulation(scenario).run(progress)
    cpu_s = time.process_time() - started_at
    requests = len(simulation.ledger.requests)
    stderr_console.print(
        f"simulated {requests:,} requests and {simulation.events.events_run:,} events in {cpu_s:.1f} s of CPU: "
        f"{requests / cpu_s * 60:,.0f} requests per CPU minute"
    )
    return simulation, figures_of(simulation)


def _show_run(scenario: Scenario, figures: Mapping[str, Any], knee: float) -> None:
    multiple = f", {scenario.load / knee:.2f}x the knee" if knee else ""
    stdout_console.print(
        f"[bold]{scenario.name}[/bold]: {scenario.queues.policy} at load {scenario.load:.2f}{multiple}"
    )
    for line in [*summary_lines(figures), *_simulation_lines(figures)]:
        stdout_console.print(line)
    stdout_console.print(figures_table(figures))


def _simulation_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"goodput {figures['goodput_weighted_tokens_per_s']:,.0f} weighted tokens/s; "
        f"{figures['engine_tokens_wasted_share']:.1%} of {figures['engine_tokens']:,} engine tokens wasted; "
        f"{figures['first_tokens_late_share']:.1%} of first tokens late; "
        f"{figures['attempts_per_request']:.2f} attempts per request"
    )
    prediction = figures["queue_wait_prediction"]
    if prediction["count"]:
        yield (
            f"{prediction['count']:,} predicted queue waits: error P50 {prediction['error_p50_s'] * 1e3:,.0f} ms, "
            f"P95 {prediction['error_p95_s'] * 1e3:,.0f} ms"
        )
    if prefixes := figures.get("prefix_cache"):
        yield (
            f"{prefixes['hit_share']:.1%} of prompt tokens found in caches, "
            f"of {prefixes['repeated_share']:.1%} that are repeated"
        )
    for batch in figures.get("batches", ()):
        yield _batch_line(batch)
    if "same_zone_share" in figures:
        yield f"{figures['same_zone_share']:.1%} of leases were granted to a worker in their client's zone"
    if len(figures["service_by_tenant"]) > 1:
        yield f"max service gap between backlogged tenants: {figures['max_service_gap']:,.0f} weighted tokens"


def _batch_line(batch: Mapping[str, Any]) -> str:
    tokens = batch["input_tokens"] + batch["output_tokens"]
    if batch["ended_s"]:
        end = f"ended at {batch['ended_s']:,.0f} s"
    elif batch["expected_end_s"]:
        end = f"expected end at {batch['expected_end_s']:,.0f} s"
    else:
        end = "no expected end"
    verdict = "in time" if batch["is_in_time"] else "late"
    return (
        f"batch {batch['tenant']}: {batch['lines_done']:,} of {batch['lines']:,} lines, {tokens:,} tokens; "
        f"{end}, {verdict} for {batch['expires_s']:,.0f} s"
    )


@contextmanager
def simulation_progress(scenario: Scenario) -> Iterator[SimulationProgressFn]:
    """Show one progress line while the simulation runs."""
    with Live(console=stderr_console, transient=True, refresh_per_second=4) as live:

        def progress(simulation: Simulation) -> None:
            live.update(
                f"{scenario.name}, load {scenario.load:.2f}, workers {simulation.scenario.worker_count}: "
                f"{simulation.events.now:.0f} s of {scenario.duration:.0f}, "
                f"{len(simulation.ledger.requests):,} requests, {simulation.mesh.edge.open_requests:,} open"
            )

        yield progress


@contextmanager
def _gc_disabled() -> Iterator[None]:
    """Disable garbage collection, which would scan all requests repeatedly; a simulation creates almost no cycles."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
