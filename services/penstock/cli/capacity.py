"""`penstock simulate --plan`: how many workers a load needs; and `--beside`: what another policy makes of it."""

from dataclasses import replace
from pathlib import Path

import click
from rich.table import Table

from penstock.cli.screen import answers, errors
from penstock.cli.simulate import progress_line
from penstock.simulator.baselines import POLICIES
from penstock.simulator.beside import plot_beside
from penstock.simulator.errors import ScenarioError
from penstock.simulator.planning import MOST, plan
from penstock.simulator.scenario import Queues, Scenario
from penstock.simulator.simulation import Simulation


def show_plan(scenario: Scenario, wanted: float, *, as_json: bool) -> None:
    try:
        with progress_line(scenario) as progress:
            found = plan(scenario, wanted, progress)
    except ScenarioError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        answers.print_json(data={"workers": found.workers, "wanted_share": wanted, "good_share": found.tried})
        return
    table = Table("workers", "answered within the SLO", box=None, pad_edge=False, header_style="bold")
    for count, share in sorted(found.tried.items()):
        table.add_row(f"{count}", f"{share:.2%}")
    answers.print(table)
    answers.print(f"[bold]{found.workers or f'more than {MOST}'}[/bold] workers for {wanted:.1%} of requests")


def show_beside(scenario: Scenario, policy: str, plot: Path) -> None:
    """Raises UsageError for a policy that nobody knows, or the scenario's own: there would be nothing to see."""
    others = sorted(POLICIES.keys() - {scenario.queues.policy})
    if policy not in others:
        message = f"--beside must be one of {', '.join(others)}, not {policy}"
        raise click.UsageError(message)
    other = replace(scenario, queues=Queues(shards=scenario.queues.shards, policy=policy))
    plot_beside(_run(other), _run(scenario), plot)
    errors.print(f"plot: {plot}")


def _run(scenario: Scenario) -> Simulation:
    with progress_line(scenario) as progress:
        return Simulation(scenario).run(progress)
