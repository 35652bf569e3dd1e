"""Overloaded tenants get service in proportion to their weights; a loud tenant does not delay a quiet one."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

from rich.console import Console

from penstock.bench.progress import progress_reporter
from penstock.bench.statistics import quantile
from penstock.bench.transcript import OK
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, ProofCard, at_most, reported
from penstock.proofs.simulated.gaps import artifact_scenario, gap_lines, poisson_tenant
from penstock.proofs.simulated.process_pool import process_pool
from penstock.proofs.simulated.scenarios import (
    FIFO_CAPACITY_RPS,
    chat_tenant,
    proof_scenario,
    queue_settings,
    worst_at_most,
)
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Poisson
from penstock.simulator.traffic.demand import Fixed

COMPLETIONS = 320
MAX_WEIGHT_ERROR_PERCENT = 2.0  # %
QUIET_SHARE = 0.5  # load of the quiet tenant, of its share of the worker
LOUD_FACTOR = 10.0  # load of the loud tenant, times its share
MAX_P99_RATIO = 1.25  # times the P99 alone
# Only two of the 200 requests of a run are beyond its P99: the ratio of 16 runs was 1.25, that of 80 runs 1.22 (90 % of
# samples of as many: 1.19 to 1.26).
QUIET_RUNS_PER_SEED = 16
MAX_UNANSWERED_PERCENT = 1.0  # % of a quiet tenant's requests
NOTE = (
    "The goal of every gap is the larger of half of plain VTC's gap and 1.2 times the gap of the clairvoyant order, "
    "but never more than plain VTC's gap. "
    "The clairvoyant order is the shipped order with one shard, charged for every token as it is generated and told "
    "the length of every answer. Plain VTC is charged for every token as well; a mesh learns of tokens by reports. "
    "Percentages are of means over seeds."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessOptions:
    seeds: int = 4


async def fairness(options: FairnessOptions, _: MeshOptions, console: Console) -> ProofCard:
    return await asyncio.to_thread(prove, options, console)


def prove(options: FairnessOptions, console: Console) -> ProofCard:
    card = ProofCard(proof="fairness", notes=[NOTE])
    with progress_reporter(console) as report_progress, process_pool(report_progress) as pool:
        card.lines += gap_lines(options.seeds, pool)
        shares = pool.map(heavy_share, range(options.seeds), "weights")
        errors = [100 * abs(share / 0.8 - 1) for share in shares]
        card.lines += worst_at_most(
            f"error of the weights 4:1 in {COMPLETIONS} completions", errors, MAX_WEIGHT_ERROR_PERCENT
        )
        seeds = range(QUIET_RUNS_PER_SEED * options.seeds)
        with_loud = pool.map(quiet_with_loud, seeds, "quiet tenants beside a loud one")
        card.lines += quiet_lines(with_loud, pool.map(quiet_alone, seeds, "quiet tenants alone"))
    return card


def quiet_lines(with_loud: Sequence[Sequence[float]], alone: Sequence[Sequence[float]]) -> list[CardLine]:
    """Judge the TTFTs in s of all seeds together, because the P99 of one seed is that of its second slowest request."""
    slower = [_p99(one) / _p99(other) for one, other in zip(with_loud, alone, strict=True)]
    label = "P99 TTFT of a quiet tenant, times alone"
    unanswered = 100 - 100 * sum(map(len, with_loud)) / sum(map(len, alone))
    return [
        at_most(
            "requests of a quiet tenant answered alone, but not beside a loud one",
            unanswered,
            MAX_UNANSWERED_PERCENT,
            "%",
        ),
        at_most(f"{label}, of all seeds' requests", _p99(chain(*with_loud)) / _p99(chain(*alone)), MAX_P99_RATIO, "x"),
        reported(f"{label}, median seed", median(slower), "x"),
        reported(f"{label}, worst seed", max(slower), "x"),
    ]


def heavy_share(seed: int) -> float:
    """Return the share of completions of the tenant with weight 4 of 5, when both tenants have a backlog."""
    even = Fixed(256), Fixed(256)
    tenants = poisson_tenant("heavy", 24.0, *even, weight=4.0), poisson_tenant("light", 24.0, *even)
    run = Simulation(artifact_scenario(seed, tenants, queue_settings("fair"))).run()
    done = [each for each in run.ledger.requests if each.transcript.outcome == OK and each.transcript.ended_at > 10.0]
    first = sorted(done, key=lambda each: each.transcript.ended_at)[:COMPLETIONS]
    assert len(first) == COMPLETIONS, "the run is long enough"
    return sum(each.tenant.name == "heavy" for each in first) / COMPLETIONS


def quiet_with_loud(seed: int) -> list[float]:
    """Return the TTFTs in s of a quiet tenant beside a loud one."""
    return _quiet_ttfts(seed, LOUD_FACTOR)


def quiet_alone(seed: int) -> list[float]:
    return _quiet_ttfts(seed, 0.0)


def _quiet_ttfts(seed: int, loud_factor: float) -> list[float]:
    half = FIFO_CAPACITY_RPS / 2
    tenants = (
        chat_tenant(Poisson(QUIET_SHARE * half), "quiet"),
        *([chat_tenant(Poisson(loud_factor * half), "loud")] if loud_factor else []),
    )
    scenario = proof_scenario("isolation", *tenants, seed=seed, duration=60.0, warm_up=10.0)
    transcripts = [
        each.transcript for each in Simulation(scenario).run().ledger.requests if each.tenant.name == "quiet"
    ]
    return [each.ttft for each in transcripts if each.ttft is not None and each.started_at > scenario.warm_up]


def _p99(ttfts: Iterable[float]) -> float:
    return quantile(list(ttfts), 0.99)
