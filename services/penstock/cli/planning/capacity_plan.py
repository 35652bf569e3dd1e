"""`penstock simulate --plan`: the number of workers for a load; and `--compare`: a figure with another policy."""

from dataclasses import replace
from pathlib import Path

import click

from penstock.bench.tables import new_table
from penstock.cli.planning.simulate import simulation_progress
from penstock.cli.tables import stderr_console, stdout_console
from penstock.simulator.baselines import POLICIES
from penstock.simulator.capacity_plan import MAX_WORKERS, CapacityPlan, plan_capacity
from penstock.simulator.errors import ScenarioError
from penstock.simulator.report.plot import plot_capacity_plan, plot_comparison
from penstock.simulator.scenario import QueueSettings, Scenario
from penstock.simulator.simulation import Simulation


def show_plan(scenario: Scenario, target_share: float, plot: Path | None, *, as_json: bool) -> None:
    """Raises Exit with 1 if no number of workers that was tried is enough."""
    try:
        with simulation_progress(scenario) as progress:
            plan = plan_capacity(scenario, target_share, progress)
    except ScenarioError as error:
        raise click.UsageError(str(error)) from error
    if plot:
        plot_capacity_plan(plan, plot)
        stderr_console.print(f"plot: {plot}")
    if as_json:
        trials = {count: trial._asdict() for count, trial in sorted(plan.trials.items())}
        stdout_console.print_json(data={"workers": plan.workers, "target_share": target_share, "trials": trials})
    else:
        _show_capacity_plan(plan, scenario)
    if plan.workers is None:
        raise click.exceptions.Exit(1)


def _show_capacity_plan(plan: CapacityPlan, scenario: Scenario) -> None:
    table = new_table(numbers=("workers", "within the SLO", "rejected", "TTFT P99", "slots in use"))
    for count, trial in sorted(plan.trials.items()):
        shares = (
            f"{trial.good_share:.2%}",
            f"{trial.rejected_share:.2%}",
            f"{trial.ttft_p99 * 1e3:,.0f} ms",
            f"{trial.slot_utilization:.0%}",
        )
        table.add_row(f"{count}", *shares)
    stdout_console.print(table)
    slo = f"TTFT {scenario.targets.ttft * 1e3:.0f} ms and TPOT {scenario.targets.tbt * 1e3:.0f} ms"
    needed = f"{plan.workers}" if plan.workers else f"more than {MAX_WORKERS}"
    stdout_console.print(
        f"{scenario.name} at load {scenario.load:.2f} needs [bold]{needed}[/bold] "
        f"worker{'' if plan.workers == 1 else 's'} of {scenario.workers[0].slots} slots "
        f"for {plan.target_share:.1%} of requests within {slo}"
    )


def show_comparison(scenario: Scenario, policy: str, plot: Path) -> None:
    """Raises UsageError for an unknown policy, or for the scenario's own policy."""
    others = sorted(POLICIES.keys() - {scenario.queues.policy})
    if policy not in others:
        message = f"--compare must be one of {', '.join(others)}, not {policy}"
        raise click.UsageError(message)
    other = replace(scenario, queues=QueueSettings(shards=scenario.queues.shards, policy=policy))
    plot_comparison(_run_simulation(other), _run_simulation(scenario), plot)
    stderr_console.print(f"plot: {plot}")


def _run_simulation(scenario: Scenario) -> Simulation:
    with simulation_progress(scenario) as progress:
        return Simulation(scenario).run(progress)
