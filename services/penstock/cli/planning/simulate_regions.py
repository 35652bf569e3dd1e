"""`penstock simulate` with a scenario of several regions."""

import gc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.live import Live

from penstock.bench.report import summary_lines
from penstock.cli.tables import stderr_console, stdout_console
from penstock.simulator.regions.figures import regions_figures
from penstock.simulator.regions.plot import plot_regions
from penstock.simulator.regions.scenario import RegionsScenario
from penstock.simulator.regions.simulation import RegionsSimulation


def simulate_regions(scenario: RegionsScenario, plot: Path | None, *, as_json: bool) -> None:
    gc.disable()  # it would scan all requests repeatedly, and the process ends afterwards
    with Live(console=stderr_console, transient=True, refresh_per_second=4) as live:

        def progress(run: RegionsSimulation) -> None:
            open_requests = sum(each.mesh.edge.open_requests for each in run.regions.values())
            done = f"{run.events.now:.0f} s of {scenario.duration:.0f}"
            live.update(f"{scenario.name}: {done}, {open_requests:,} open")

        run = RegionsSimulation(scenario).run(progress)
    figures = regions_figures(run)
    if as_json:
        stdout_console.print_json(data=figures)
    else:
        for line in _lines(scenario, figures):
            stdout_console.print(line)
    if plot:
        plot_regions(run, plot)
        stderr_console.print(f"plot: {plot}")


def _lines(scenario: RegionsScenario, figures: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"[bold]{scenario.name}[/bold]: {figures['goodput_share']:.1%} of all requests within the SLO, "
        f"{figures['away_share']:.1%} answered by another region"
    )
    for name, region in figures["regions"].items():
        yield f"[bold]{name}[/bold]"
        yield from summary_lines(region)
        yield (
            f"{region['goodput_share']:.1%} within the SLO; {region['offered']:,} requests offered to others, "
            f"{region['offers_rejected']:,} offers rejected; workers busy {region['engine_busy_share']:.1%} of the time"
        )
        if region["away"]:
            yield (
                f"{region['away']:,} answered by another region, {region['away_within_slo']:,} of them within the SLO; "
                f"their share of 10 s has the standard deviation {region['away_share_deviation']:.3f}"
            )
