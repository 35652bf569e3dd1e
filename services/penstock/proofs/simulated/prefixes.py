"""Prefix caches: workers together find most of what one shared cache of their size finds, at no cost in goodput."""

import asyncio
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from penstock.bench.progress import progress_reporter
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import ProofCard, reported
from penstock.proofs.simulated.scenarios import proof_scenario, worst_at_least
from penstock.simulator.report.figures import figures_of
from penstock.simulator.scenario import SimTenant, SloTargets, WorkerKind
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Poisson
from penstock.simulator.traffic.demand import LogNormal, Uniform
from penstock.simulator.traffic.tool_loops import ToolLoops
from penstock.worker.engine.batching.policy import ContinuousBatching
from penstock.worker.engine.simulated.step_time import StepTimeModel

MIN_FOUND_PERCENT = 85.0  # % of the prompt tokens that one shared cache finds
MIN_GOODPUT_PERCENT = 98.0  # % of that by load alone
DURATION_S = 60.0
# One cache of the size of all six would keep the whole minute; the caches of two workers would not.
WORKERS = WorkerKind(
    count=6,
    slots=64,
    kv_blocks=1_500,
    block_size=64,
    batching=ContinuousBatching(token_budget=2_048),
    step_time=StepTimeModel(base_s=0.006, per_prefill_token_s=2e-5, per_decode_seq_s=5e-5),
)
LOOPS = ToolLoops(
    Poisson(1.5),
    turns=Uniform(4, 16),
    growth=LogNormal(mean=700.0, sigma=0.8, low=1, high=6_000),
    output_lengths=LogNormal(mean=120.0, sigma=0.6, low=1, high=600),
    pause=5.0,
    instruction_tokens=3_072,
    instruction_texts=8,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixesOptions:
    seeds: int = 2


async def prefixes(options: PrefixesOptions, _: MeshOptions, console: Console) -> ProofCard:
    return await asyncio.to_thread(prove, options, console)


def prove(options: PrefixesOptions, console: Console) -> ProofCard:
    found, goodput, by_load = [], [], []
    with progress_reporter(console) as report_progress:
        for seed in range(options.seeds):
            report_progress(f"seed {seed} of {options.seeds}")
            placed, blind = simulate(seed), simulate(seed, places_by_prefix=False)
            caches = placed["prefix_cache"]
            found.append(100 * caches["hit_share"] / caches["shared_lru_share"])
            goodput.append(100 * placed["goodput_requests_per_s"] / blind["goodput_requests_per_s"])
            by_load.append(100 * blind["prefix_cache"]["hit_share"] / caches["shared_lru_share"])
    card = ProofCard(proof="prefixes", void_reason="" if caches["shared_lru_share"] > 0.1 else "nothing is repeated")
    card.lines += [
        *worst_at_least("prompt tokens found, of one shared cache", found, MIN_FOUND_PERCENT),
        reported("the same by load alone", min(by_load), "%"),
        *worst_at_least("goodput, of that by load alone", goodput, MIN_GOODPUT_PERCENT),
        reported("prompt tokens that are repeated", 100 * caches["repeated_share"], "%"),
    ]
    return card


def simulate(seed: int, *, places_by_prefix: bool = True) -> dict[str, Any]:
    """Return the figures of agents' tool loops."""
    agents = SimTenant(name="agents", demand=LOOPS, has_shared_prefixes=True)
    scenario = proof_scenario(
        "prefixes",
        agents,
        seed=seed,
        workers=(WORKERS,),
        targets=SloTargets(ttft=2.0),
        duration=DURATION_S,
        places_by_prefix=places_by_prefix,
    )
    return figures_of(Simulation(scenario).run())
