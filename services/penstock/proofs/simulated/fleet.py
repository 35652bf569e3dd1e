"""Goodput far beyond the knee holds for every size of a fleet, number of shards and number of tenants.

Each cell is compared with its own peak, and its requests per worker with those of one worker: a fleet must not reject
requests that one worker would serve in time.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from penstock.bench.progress import progress_reporter
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, ProofCard, at_least, at_most, reported
from penstock.proofs.simulated.overload import (
    GOODPUT_KEYS,
    MAX_LATE_PERCENT,
    MAX_PEAK_LOAD,
    MIN_GOODPUT_PERCENT,
    Figures,
    LoadSweep,
    simulate,
)
from penstock.proofs.simulated.process_pool import process_pool
from penstock.proofs.simulated.scenarios import (
    FIFO_CAPACITY_RPS,
    WORKER,
    arrivals_for_seed,
    chat_tenant,
    proof_scenario,
    queue_settings,
)
from penstock.simulator.scenario import Scenario

LOADS = (1.0, MAX_PEAK_LOAD, *MIN_GOODPUT_PERCENT)  # multiples of the rate that FIFO serves with as many workers
WARM_UP_S = 8.0
JUDGED_S = 24.0
MIN_JUDGED_S = 8.0  # of a large fleet, which has more requests per second
REQUESTS_DIVISOR = 16  # workers above which the judged time shrinks


@dataclass(frozen=True, slots=True)
class Cell:
    """One size of the mesh. The tenants have equal weights and equal loads."""

    workers: int
    shards: int = 1
    tenants: int = 1

    @property
    def label(self) -> str:
        return f"{self.workers} workers, {self.shards} shards, {self.tenants} tenants"


CELLS = (Cell(1), Cell(4), Cell(8), Cell(8, shards=4, tenants=8), Cell(16, shards=8, tenants=16), Cell(32))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    seeds: int = 2
    cells: Sequence[Cell] = CELLS


async def fleet(options: FleetOptions, _: MeshOptions, console: Console) -> ProofCard:
    return await asyncio.to_thread(prove, options, console)


def prove(options: FleetOptions, console: Console) -> ProofCard:
    card, seeds = ProofCard(proof="fleet"), range(options.seeds)
    with progress_reporter(console) as report_progress, process_pool(report_progress) as pool:
        worlds = [fleet_scenario(cell, seed, load) for cell in options.cells for load in LOADS for seed in seeds]
        figures = iter(pool.map(simulate, worlds, "runs"))
        for cell in options.cells:
            sweep = LoadSweep({load: [next(figures) for _ in seeds] for load in LOADS})
            card.lines += cell_lines(cell, sweep)
    return card


def fleet_scenario(cell: Cell, seed: int, load: float) -> Scenario:
    """Return a scenario whose load 1 is what FIFO serves with as many workers."""
    rate = FIFO_CAPACITY_RPS * cell.workers / cell.tenants
    tenants = [chat_tenant(arrivals_for_seed(seed, rate), f"tenant-{number}") for number in range(cell.tenants)]
    judged_s = max(MIN_JUDGED_S, JUDGED_S / max(1, cell.workers // REQUESTS_DIVISOR))
    return proof_scenario(
        "fleet",
        *tenants,
        seed=seed,
        load=load,
        duration=WARM_UP_S + judged_s,
        warm_up=WARM_UP_S,
        workers=(replace(WORKER, count=cell.workers),),
        queues=queue_settings("penstock", shards=cell.shards),
    )


def cell_lines(cell: Cell, sweep: LoadSweep) -> list[CardLine]:
    lines = [reported(f"{cell.label}: peak of a worker", _peak_per_worker(cell, sweep), "requests/s")]
    for load, goal in MIN_GOODPUT_PERCENT.items():
        for kind in GOODPUT_KEYS:
            worst = min(sweep.percent_of_peak(load, kind))
            lines.append(at_least(f"{cell.label}: goodput in {kind} at {load:g}x, of its peak", worst, goal, "%"))
        late = 100 * max(each["late_share"] for each in sweep.figures[load])
        lines.append(at_most(f"{cell.label}: admitted and late at {load:g}x", late, MAX_LATE_PERCENT, "%"))
    return lines


def _peak_per_worker(cell: Cell, sweep: LoadSweep) -> float:
    at_peak: list[Figures] = [each for load, found in sweep.figures.items() if load <= MAX_PEAK_LOAD for each in found]
    return max(float(each[GOODPUT_KEYS["requests"]]) for each in at_peak) / cell.workers
