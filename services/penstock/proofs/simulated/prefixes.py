"""Prefix caches: workers together find most of what one shared cache of their size finds, at no cost in goodput."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from penstock import simulator
from penstock.bench.progress import progress_reporter
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, ProofCard, reported
from penstock.proofs.simulated.process_pool import process_pool
from penstock.proofs.simulated.scenarios import proof_scenario, worst_at_least
from penstock.simulator.report.figures import figures_of
from penstock.simulator.scenario import Scenario, SimTenant, SloTargets, WorkerKind
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Poisson
from penstock.simulator.traffic.demand import Demand, LogNormal, Uniform
from penstock.simulator.traffic.tool_loops import ToolLoops
from penstock.simulator.traffic.traces import read_mooncake
from penstock.worker.engine.batching.policy import ContinuousBatching
from penstock.worker.engine.simulated.step_time import StepTimeModel

MIN_FOUND_PERCENT = 85.0  # % of the prompt tokens that one shared cache finds
MIN_GOODPUT_PERCENT = 98.0  # % of that by load alone
MIN_SHARED_SHARE = 0.05  # of the prompt tokens, found by one shared cache; with less, nothing is judged

WORKER = WorkerKind(
    slots=64,
    kv_blocks=4_000,
    block_size=64,
    batching=ContinuousBatching(token_budget=2_048),
    step_time=StepTimeModel(base_s=0.006, per_prefill_token_s=1e-4, per_decode_seq_s=5e-5),
)
TRACE = Path(simulator.__file__).parent / "scenarios" / "conversation_trace.jsonl.gz"
TRACE_S = 120.0
TRACE_RESOLUTION_S = 3.0  # of its recorded times

# One cache of the size of all six would keep the whole minute; the caches of two workers would not.
AGENTS_WORKER = replace(
    WORKER, kv_blocks=1_500, step_time=StepTimeModel(base_s=0.006, per_prefill_token_s=2e-5, per_decode_seq_s=5e-5)
)
AGENTS_S = 60.0
LOOPS = ToolLoops(
    Poisson(1.5),
    turns=Uniform(4, 16),
    growth=LogNormal(mean=700.0, sigma=0.8, low=1, high=6_000),
    output_lengths=LogNormal(mean=120.0, sigma=0.6, low=1, high=600),
    pause=5.0,
    instruction_tokens=3_072,
    instruction_texts=8,
)


class Cell(NamedTuple):
    """Traffic, workers and load."""

    traffic: str  # "conversations" or "agents"
    workers: int
    load: float  # multiple of the recorded or the defined rate
    cache_share: float = 1.0  # size of the caches, as a share of `WORKER` or `AGENTS_WORKER`


# Six workers can serve about 1.6 times the recorded rate.
CELLS = {
    "conversations, moderate load": [
        Cell("conversations", 6, 1.0),
        Cell("conversations", 12, 2.0),
        Cell("conversations", 24, 4.0),
    ],
    "conversations, overload": [
        Cell("conversations", 6, 2.4),
        Cell("conversations", 12, 5.0),
        Cell("conversations", 24, 10.0),
    ],
    "agents": [Cell("agents", 6, 1.0), Cell("agents", 12, 2.0)],
    "agents, half the cache": [Cell("agents", 6, 1.0, cache_share=0.5)],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixesOptions:
    seeds: int = 2


class Comparison(NamedTuple):
    """Placement by prefix beside placement by load alone and beside ideal caches, in %."""

    found: float  # prompt tokens, of those that one shared LRU cache finds
    found_by_load: float  # the same by load alone
    found_of_clairvoyant: float  # prompt tokens, of those that one clairvoyant cache finds
    goodput: float  # requests in time, of those by load alone
    shared_share: float  # prompt tokens that one shared LRU cache finds, of all; a share


async def prefixes(options: PrefixesOptions, _: MeshOptions, console: Console) -> ProofCard:
    return await asyncio.to_thread(prove, options, console)


def prove(options: PrefixesOptions, console: Console) -> ProofCard:
    runs = [(name, cell, seed) for name, cells in CELLS.items() for cell in cells for seed in range(options.seeds)]
    with progress_reporter(console) as report_progress, process_pool(report_progress) as pool:
        compared = pool.map(_compare, [(cell, seed) for _, cell, seed in runs], "comparisons")
    repeats = all(each.shared_share >= MIN_SHARED_SHARE for each in compared)
    card = ProofCard(proof="prefixes", void_reason="" if repeats else "nothing is repeated")
    for name in CELLS:
        card.lines += _lines(name, [each for each, run in zip(compared, runs, strict=True) if run[0] == name])
    return card


def _lines(name: str, compared: Sequence[Comparison]) -> list[CardLine]:
    found, by_load, of_clairvoyant, goodput, _ = zip(*compared, strict=True)
    return [
        *worst_at_least(f"{name}: prompt tokens found, of one shared cache", found, MIN_FOUND_PERCENT),
        reported(f"{name}: the same by load alone, best", max(by_load), "%"),
        reported(f"{name}: of a clairvoyant cache, worst", min(of_clairvoyant), "%"),
        *worst_at_least(f"{name}: goodput, of that by load alone", goodput, MIN_GOODPUT_PERCENT),
    ]


def _compare(item: tuple[Cell, int]) -> Comparison:
    return compare(*item)


def compare(cell: Cell, seed: int) -> Comparison:
    scenario = scenario_of_cell(cell, seed)
    placed = figures_of(Simulation(scenario).run())
    by_load = figures_of(Simulation(replace(scenario, places_by_prefix=False)).run())
    caches = placed["prefix_cache"]
    return Comparison(
        found=_percent(caches["hit_share"], caches["shared_lru_share"]),
        found_by_load=_percent(by_load["prefix_cache"]["hit_share"], by_load["prefix_cache"]["shared_lru_share"]),
        found_of_clairvoyant=_percent(caches["hit_share"], caches["clairvoyant_share"]),
        goodput=_percent(placed["goodput_requests_per_s"], by_load["goodput_requests_per_s"]),
        shared_share=caches["shared_lru_share"],
    )


def scenario_of_cell(cell: Cell, seed: int) -> Scenario:
    has_agents = cell.traffic == "agents"
    kind, demand = (AGENTS_WORKER, LOOPS) if has_agents else (WORKER, _conversations())
    return proof_scenario(
        "prefixes",
        SimTenant(name=cell.traffic, demand=demand, has_shared_prefixes=True),
        seed=seed,
        workers=(replace(kind, count=cell.workers, kv_blocks=int(kind.kv_blocks * cell.cache_share)),),
        targets=SloTargets(ttft=2.0 if has_agents else 5.0),
        duration=AGENTS_S if has_agents else TRACE_S / cell.load,
        load=cell.load,
    )


@cache
def _conversations() -> Demand:
    return replace(read_mooncake(TRACE), resolution=TRACE_RESOLUTION_S)


def _percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0
