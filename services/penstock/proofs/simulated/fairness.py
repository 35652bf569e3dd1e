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
from penstock.simulator.traffic.lengths import Fixed

COMPLETIONS = 320
MAX_WEIGHT_ERROR_PERCENT = 2.0  # %
QUIET_SHARE = 0.5  # of its own share of the worker that a quiet tenant asks for
LOUD_FACTOR = 10.0  # times its own share that the other asks for
MAX_P99_RATIO = 1.25  # times the P99 alone
QUIET_RUNS_PER_SEED = 4  # for each seed asked for: of 200 requests in a run, two are beyond the P99
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
    with progress_reporter(console) as say, process_pool(say) as cores:
        card.lines += gap_lines(options.seeds, cores)
        heavy = cores.map(heavy_share, range(options.seeds), "weights")
        off = [100 * abs(each / 0.8 - 1) for each in heavy]
        card.lines += worst_at_most(f"off the weights 4:1 in {COMPLETIONS} completions", off, MAX_WEIGHT_ERROR_PERCENT)
        seeds = range(QUIET_RUNS_PER_SEED * options.seeds)
        beside = cores.map(quiet_with_loud, seeds, "quiet tenants beside a loud one")
        card.lines += quiet_lines(beside, cores.map(quiet_alone, seeds, "quiet tenants alone"))
    return card


def quiet_lines(with_loud: Sequence[Sequence[float]], alone: Sequence[Sequence[float]]) -> list[CardLine]:
    """Judge the s to first tokens of all seeds: of the 200 of one, the second slowest decides, and whom it met."""
    slower = [_p99(one) / _p99(other) for one, other in zip(with_loud, alone, strict=True)]
    what = "P99 to the first token of a quiet tenant, times alone"
    left_out = 100 - 100 * sum(map(len, with_loud)) / sum(map(len, alone))
    return [
        at_most(
            "requests of a quiet tenant answered alone, and not beside a loud one",
            left_out,
            MAX_UNANSWERED_PERCENT,
            "%",
        ),
        at_most(f"{what}, of all seeds' requests", _p99(chain(*with_loud)) / _p99(chain(*alone)), MAX_P99_RATIO, "x"),
        reported(f"{what}, median seed", median(slower), "x"),
        reported(f"{what}, worst seed", max(slower), "x"),
    ]


def heavy_share(seed: int) -> float:
    """Return what of the completions is of the tenant with four fifths of the weights, once both have a backlog."""
    even = Fixed(256), Fixed(256)
    tenants = poisson_tenant("heavy", 24.0, *even, weight=4.0), poisson_tenant("light", 24.0, *even)
    run = Simulation(artifact_scenario(seed, tenants, queue_settings("fair"))).run()
    done = [each for each in run.ledger.requests if each.transcript.outcome == OK and each.transcript.ended_at > 10.0]
    first = sorted(done, key=lambda each: each.transcript.ended_at)[:COMPLETIONS]
    assert len(first) == COMPLETIONS, "the run is long enough"
    return sum(each.tenant.name == "heavy" for each in first) / COMPLETIONS


def quiet_with_loud(seed: int) -> list[float]:
    """Return the s to each first token of a quiet tenant beside a loud one."""
    return _quiet_ttfts(seed, LOUD_FACTOR)


def quiet_alone(seed: int) -> list[float]:
    return _quiet_ttfts(seed, 0.0)


def _quiet_ttfts(seed: int, loud: float) -> list[float]:
    half = FIFO_CAPACITY_RPS / 2
    tenants = (
        chat_tenant(Poisson(QUIET_SHARE * half), "quiet"),
        *([chat_tenant(Poisson(loud * half), "loud")] if loud else []),
    )
    asked = proof_scenario("isolation", *tenants, seed=seed, duration=60.0, warm_up=10.0)
    histories = [each.transcript for each in Simulation(asked).run().ledger.requests if each.tenant.name == "quiet"]
    return [each.ttft for each in histories if each.ttft is not None and each.started_at > asked.warm_up]


def _p99(ttfts: Iterable[float]) -> float:
    return quantile(list(ttfts), 0.99)
