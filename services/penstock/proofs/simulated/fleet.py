"""Goodput far beyond the knee holds for every size of a fleet, number of shards, number of tenants and prompt length.

Each cell is compared with its own peak, with a FIFO that has the best bound, and with the rejections of a clairvoyant.
Goodput is judged for the worst seed. Shares are judged over all seeds of a cell together, because one run has too few
requests: 1 % of them is less than ten where prompts are long.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from penstock.bench.progress import progress_reporter
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, ProofCard, at_least, at_most, reported
from penstock.proofs.simulated.fleet_cells import CELLS, Cell, bounded_fifo_scenario, fleet_scenario
from penstock.proofs.simulated.overload import (
    GOODPUT_KEYS,
    MAX_EXCESS_REJECTIONS_PERCENT,
    MAX_LATE_PERCENT,
    MAX_PEAK_LOAD,
    MIN_GOODPUT_PERCENT,
    ComparedRejections,
    Figures,
    LoadSweep,
    compare_rejections,
    count_late,
)
from penstock.proofs.simulated.process_pool import ProcessPool, process_pool
from penstock.simulator.report.figures import figures_of
from penstock.simulator.scenario import Scenario
from penstock.simulator.simulation import Simulation

LOADS = (1.0, MAX_PEAK_LOAD, *MIN_GOODPUT_PERCENT)  # multiples of the rate that FIFO serves with as many workers
CLAIRVOYANT_LOAD = 3.0
MAX_CLAIRVOYANT_PARTS = 2  # parts of the requests; which requests a part has changes its share by several %
# The rejections of 3.6 s, 2,000 short prompts, differ from those of 16 s by 7 %.
MIN_CLAIRVOYANT_S = 12.0
FIFO_LOAD = 10.0
FIFO_BOUNDS = (0.4, 0.7, 1.0)  # tickets of a bounded FIFO, as shares of what it serves within the TTFT target


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    seeds: int = 2
    cells: Sequence[Cell] = CELLS


async def fleet(options: FleetOptions, _: MeshOptions, console: Console) -> ProofCard:
    return await asyncio.to_thread(prove, options, console)


def prove(options: FleetOptions, console: Console) -> ProofCard:
    card = ProofCard(proof="fleet")
    with progress_reporter(console) as report_progress, process_pool(report_progress) as pool:
        sweeps = iter(_sweeps(options, pool))
        fifo_runs = [each for cell in options.cells for each in _fifo_runs(cell)]
        fifos = iter(pool.map(simulate_cell, fifo_runs, "FIFO runs"))
        for cell in options.cells:
            sweep = next(sweeps)
            card.lines += cell_lines(cell, sweep)
            card.lines.append(fifo_line(cell, sweep, [next(fifos) for _ in FIFO_BOUNDS]))
    return card


def _sweeps(options: FleetOptions, pool: ProcessPool) -> list[LoadSweep]:
    # The most expensive runs come first, so that no core waits for one of them at the end.
    runs = [(cell, load, seed) for cell in options.cells for load in LOADS for seed in cell.seeds(options.seeds)]
    by_cost = sorted(runs, key=lambda run: run[0].workers * run[1], reverse=True)
    figures = dict(zip(by_cost, pool.map(simulate_cell, [_run_of(*run) for run in by_cost], "runs"), strict=True))
    return [
        LoadSweep({load: [figures[cell, load, seed] for seed in cell.seeds(options.seeds)] for load in LOADS})
        for cell in options.cells
    ]


def _run_of(cell: Cell, load: float, seed: int) -> Scenario:
    return fleet_scenario(cell, seed, load)


def _fifo_runs(cell: Cell) -> list[Scenario]:
    return [bounded_fifo_scenario(cell, 0, FIFO_LOAD, share * cell.kind.ttft_target) for share in FIFO_BOUNDS]


def simulate_cell(scenario: Scenario) -> Figures:
    """Return the figures of a run, at one load with our rejections beside those of a clairvoyant."""
    simulation = Simulation(scenario).run()
    first_tokens, late = count_late(simulation)
    figures = {**figures_of(simulation), "first_tokens": first_tokens, "late": late}
    if scenario.load == CLAIRVOYANT_LOAD:
        figures["rejections"] = compare_rejections(simulation, max_parts=MAX_CLAIRVOYANT_PARTS, min_s=MIN_CLAIRVOYANT_S)
    return figures


def late_percent(runs: Sequence[Figures]) -> float:
    """Return the late first tokens of all runs, in %."""
    first_tokens, late = (sum(int(each[key]) for each in runs) for key in ("first_tokens", "late"))
    return 100 * late / max(1, first_tokens)


def excess_percent(runs: Sequence[Figures], kind: str) -> float:
    """Return the rejections of all runs beyond those of a clairvoyant, in % of ours."""
    compared: list[ComparedRejections] = [each["rejections"] for each in runs]
    ours = sum(each.ours.of(kind) for each in compared)
    theirs = sum(each.theirs.of(kind) for each in compared)
    return 100 - 100 * theirs / ours if ours else 0.0


def cell_lines(cell: Cell, sweep: LoadSweep) -> list[CardLine]:
    lines = [reported(f"{cell.label}: peak of a worker", _peak_per_worker(cell, sweep), "requests/s")]
    for load, goal in MIN_GOODPUT_PERCENT.items():
        for kind in GOODPUT_KEYS:
            worst = min(sweep.percent_of_peak(load, kind))
            lines.append(at_least(f"{cell.label}: goodput in {kind} at {load:g}x, of its peak", worst, goal, "%"))
        late = late_percent(sweep.figures[load])
        lines.append(at_most(f"{cell.label}: admitted and late at {load:g}x", late, MAX_LATE_PERCENT, "%"))
    for kind in GOODPUT_KEYS:
        excess = excess_percent(sweep.figures[CLAIRVOYANT_LOAD], kind)
        label = f"{cell.label}: rejected beyond a clairvoyant's at {CLAIRVOYANT_LOAD:g}x, in {kind}"
        lines.append(at_most(label, excess, MAX_EXCESS_REJECTIONS_PERCENT, "%"))
    return lines


def fifo_line(cell: Cell, sweep: LoadSweep, fifos: Sequence[Figures]) -> CardLine:
    """Compare FIFO with the best of its bounds with the cell's peak, for the first seed."""
    key = GOODPUT_KEYS["tokens"]
    peak = max(figures[0][key] for load, figures in sweep.figures.items() if load <= MAX_PEAK_LOAD) or 1.0
    best = max(100 * each[key] / peak for each in fifos)
    return reported(f"{cell.label}: FIFO with the best bound at {FIFO_LOAD:g}x, of our peak in tokens", best, "%")


def _peak_per_worker(cell: Cell, sweep: LoadSweep) -> float:
    at_peak: list[Figures] = [each for load, found in sweep.figures.items() if load <= MAX_PEAK_LOAD for each in found]
    return max(float(each[GOODPUT_KEYS["requests"]]) for each in at_peak) / cell.workers
