"""Bursts of long prompts with short answers: admitted requests are in time although prompts prefill concurrently.

The scenario is `simulator/scenarios/code_completion.toml`, for one worker and for eight, from the load that the workers
can just prefill during a burst to six times that load.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from penstock import simulator
from penstock.bench.progress import progress_reporter
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, ProofCard, at_least, at_most, reported
from penstock.proofs.simulated.process_pool import process_pool
from penstock.simulator.report.figures import figures_of
from penstock.simulator.scenario import Scenario
from penstock.simulator.scenario_file import read_scenario
from penstock.simulator.simulation import Simulation

SCENARIO = Path(simulator.__file__).parent / "scenarios" / "code_completion.toml"
MAX_LATE_PERCENT = 1.0  # % of the admitted requests
# Goodput in weighted tokens/s by workers and load, mean of seeds 0 to 5, with a prediction from the mean backlog of all
# workers. Requests must not become punctual by rejecting more of them.
BASELINE_GOODPUT = {
    1: {1.0: 426.0, 1.5: 789.5, 3.0: 890.1, 6.0: 1027.1},
    8: {1.0: 2999.9, 1.5: 4099.3, 3.0: 4096.9, 6.0: 3844.7},
}
FLEET_DURATION_DIVISOR = 2  # a run of several workers has more requests per second, and is shorter by this


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstsOptions:
    seeds: int = 6


@dataclass(frozen=True, slots=True)
class BurstOutcome:
    admitted: int  # requests that had a first token
    late: int
    weighted_tokens_per_s: float  # of requests within the SLO
    requests_per_s: float  # of requests within the SLO


async def bursts(options: BurstsOptions, _: MeshOptions, console: Console) -> ProofCard:
    return await asyncio.to_thread(prove, options, console)


def prove(options: BurstsOptions, console: Console) -> ProofCard:
    card, seeds = ProofCard(proof="bursts"), range(options.seeds)
    cases = [(workers, load) for workers, loads in BASELINE_GOODPUT.items() for load in loads]
    with progress_reporter(console) as say, process_pool(say) as processes:
        worlds = [burst_scenario(seed, load, workers) for workers, load in cases for seed in seeds]
        found = iter(processes.map(simulate, worlds, "worlds"))
        for workers, load in cases:
            card.lines += outcome_lines(workers, load, [next(found) for _ in seeds])
    return card


def burst_scenario(seed: int, load: float, workers: int) -> Scenario:
    """Return the shipped scenario for a number of workers, each with the given load."""
    shipped = read_scenario(SCENARIO)
    fleet = tuple(replace(kind, count=workers) for kind in shipped.workers)
    duration = shipped.duration / (FLEET_DURATION_DIVISOR if workers > 1 else 1)
    return replace(shipped, seed=seed, load=load * workers, workers=fleet, duration=duration)


def simulate(scenario: Scenario) -> BurstOutcome:
    run = Simulation(scenario).run()
    figures = figures_of(run)
    counted = [each.transcript for each in run.ledger.requests if each.transcript.started_at >= scenario.warm_up]
    firsts = [each.ttft for each in counted if each.ttft is not None]
    late = sum(each > scenario.targets.ttft for each in firsts)
    tokens, requests = figures["goodput_weighted_tokens_per_s"], figures["goodput_requests_per_s"]
    return BurstOutcome(len(firsts), late, tokens, requests)


def outcome_lines(workers: int, load: float, outcomes: Sequence[BurstOutcome]) -> list[CardLine]:
    """Judge all seeds together, as one seed has only a few hundred admitted requests."""
    where = f"at {load:g}x, {workers} worker{'s' if workers > 1 else ''}"
    admitted, late = sum(each.admitted for each in outcomes), sum(each.late for each in outcomes)
    tokens = sum(each.weighted_tokens_per_s for each in outcomes) / len(outcomes)
    requests = sum(each.requests_per_s for each in outcomes) / len(outcomes)
    return [
        at_most(f"admitted and late {where}", 100 * late / max(1, admitted), MAX_LATE_PERCENT, "%"),
        at_least(f"goodput {where}", tokens, BASELINE_GOODPUT[workers][load], "weighted tokens/s"),
        reported(f"goodput in requests {where}", requests, "requests/s"),
    ]
