"""Service gaps between tenants that all have a backlog, compared with those of other scheduling policies.

Every workload's gap has the same goal: the larger of half of plain VTC's gap and 1.2 times the gap of the clairvoyant
order, but never more than plain VTC's gap. The clairvoyant order is the shipped order, charged for every token as it
is generated and told the length of every answer. It runs with one shard, because its shards would not know what the
others serve. It can neither stop a request that runs nor divide one, as no policy can, so its gap shows how much of
plain VTC's gap can be removed at all.

The first four workloads are those of VTC's artifact (Sheng et al., OSDI 2024: its suites `overload`,
`poisson_short_long`, `poisson_short_long_2` and `overload-multi`) at eight times its rates, because the reference
worker is that much faster than its GPU. Arrivals are Poisson in all of them, so that seeds differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any

from penstock.proofs.card import CardLine, at_most, reported
from penstock.proofs.simulated.process_pool import ProcessPool
from penstock.proofs.simulated.scenarios import proof_scenario, worst_at_most
from penstock.simulator.report.service_accounting import INPUT_WEIGHT, OUTPUT_WEIGHT
from penstock.simulator.scenario import (
    ClientBehavior,
    QueueSettings,
    Scenario,
    SchedulerSettings,
    SimTenant,
    WorkerKind,
)
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Poisson
from penstock.simulator.traffic.demand import Fixed, LengthDistribution, SampledDemand, Uniform

# The artifact's engine: 10,000 tokens of KV, about as many requests as fit.
ARTIFACT_WORKER = WorkerKind(kv_blocks=625, slots=19)
KV_TOKENS = 10_000
MAX_PROMPT_TOKENS = 768
VTC_BOUND = 2 * max(INPUT_WEIGHT * MAX_PROMPT_TOKENS, OUTPUT_WEIGHT * KV_TOKENS)  # weighted tokens: VTC's theorem
MAX_PERCENT_OF_VTC = 50.0
MAX_RATIO_TO_CLAIRVOYANT = 1.2
SHARD_COUNTS = 1, 4
VARIED_LENGTHS = Uniform(16, 512)  # tokens of a prompt and of an answer
LEAVING_CLIENTS = ClientBehavior(leave_share=0.3)

OURS, VTC, FIFO, CLAIRVOYANT = "fair", "vtc", "fifo", "clairvoyant"
# The policies that run each workload, with the numbers of shards.
POLICY_RUNS = (*((shards, policy) for shards in SHARD_COUNTS for policy in (OURS, VTC)), (1, CLAIRVOYANT))


def poisson_tenant(
    name: str, rate: float, prompt: LengthDistribution, output: LengthDistribution, **fields: Any
) -> SimTenant:
    return SimTenant(name=name, demand=SampledDemand(Poisson(rate), prompt, output), **fields)


def _fixed_tenants(*rows: tuple[str, float, int, int], **fields: Any) -> tuple[SimTenant, ...]:
    """`rows`: name, requests/s, prompt tokens and output tokens of each tenant."""
    return tuple(
        poisson_tenant(name, rate, Fixed(prompt), Fixed(output), **fields) for name, rate, prompt, output in rows
    )


def _varied_tenants(*rates: float, **fields: Any) -> tuple[SimTenant, ...]:
    return tuple(
        poisson_tenant(f"tenant-{n}", rate, VARIED_LENGTHS, VARIED_LENGTHS, **fields) for n, rate in enumerate(rates)
    )


# Tenant names decide the shard of a tenant: with four shards, the two tenants of a pair are on different shards.
EIGHT_TENANTS = tuple((f"tenant-{number}", 3.2 if number < 3 else 4.8, 256, 256) for number in range(8))
WORKLOADS = {
    "two tenants": _fixed_tenants(("steady", 12.0, 256, 256), ("rushed", 24.0, 256, 256)),
    "short and long": _fixed_tenants(("short", 64.0, 64, 64), ("long", 12.0, 256, 256)),
    "prompts and answers": _fixed_tenants(("reads", 64.0, 512, 32), ("writes", 12.0, 32, 512)),
    "eight tenants": _fixed_tenants(*EIGHT_TENANTS),
    "eight that leave": _fixed_tenants(*EIGHT_TENANTS, client=LEAVING_CLIENTS),
    "chat and digests": _fixed_tenants(("short", 12.0, 64, 512), ("long", 24.0, MAX_PROMPT_TOKENS, 64)),
    "eight, varied": _varied_tenants(*(3.0 + number for number in range(8))),
    "four that leave, varied": _varied_tenants(*[6.0] * 4, client=LEAVING_CLIENTS),
}


@dataclass(frozen=True, slots=True)
class GapRun:
    workload: str
    shards: int
    policy: str
    seed: int


GapsByRun = dict[tuple[str, int, str], list[float]]  # by workload, shards, policy: weighted tokens of each seed


def gap_lines(seeds: int, pool: ProcessPool) -> list[CardLine]:
    gaps = _measure_gaps(seeds, pool)
    lines = [line for name in WORKLOADS for shards in SHARD_COUNTS for line in _workload_lines(name, shards, gaps)]
    return [*lines, reported("two tenants, gap of FIFO", gaps["two tenants", 1, FIFO][0], "weighted tokens")]


def _measure_gaps(seeds: int, pool: ProcessPool) -> GapsByRun:
    runs = [GapRun("two tenants", 1, FIFO, 0)]
    runs += [GapRun(name, *run, seed) for name in WORKLOADS for run in POLICY_RUNS for seed in range(seeds)]
    gaps: GapsByRun = {}
    for run, gap in zip(runs, pool.map(widest_gap, runs, "gaps between tenants"), strict=True):
        gaps.setdefault((run.workload, run.shards, run.policy), []).append(gap)
    return gaps


def _workload_lines(name: str, shards: int, gaps: GapsByRun) -> list[CardLine]:
    ours, vtc = gaps[name, shards, OURS], gaps[name, shards, VTC]
    clairvoyant = percent_of_mean(gaps[name, 1, CLAIRVOYANT], vtc)
    label = f"{name}, {shards} shard{'s' * (shards > 1)}: gap"
    return [
        *worst_at_most(label, ours, VTC_BOUND, "weighted tokens"),
        reported(f"{label} of plain VTC, median", median(vtc), "weighted tokens"),
        reported(f"{label} of the clairvoyant order, in % of plain VTC's", clairvoyant, "%"),
        at_most(f"{label}, in % of plain VTC's", percent_of_mean(ours, vtc), goal_percent(clairvoyant), "%"),
    ]


def goal_percent(clairvoyant: float) -> float:
    """Return the largest gap allowed; both it and the `clairvoyant` order's gap are in % of plain VTC's."""
    return min(100.0, max(MAX_PERCENT_OF_VTC, round(MAX_RATIO_TO_CLAIRVOYANT * clairvoyant, 1)))


def percent_of_mean(gaps: Sequence[float], reference: Sequence[float]) -> float:
    """Return the mean of `gaps` in % of the mean of `reference`."""
    return 100 * mean(gaps) / mean(reference)


def widest_gap(run: GapRun) -> float:
    """Return the widest gap between tenants that all have a backlog, in weighted tokens."""
    queues = QueueSettings(policy=run.policy, shards=run.shards)
    scenario = artifact_scenario(run.seed, WORKLOADS[run.workload], queues)
    return Simulation(scenario).run().ledger.service.gaps().widest


def artifact_scenario(seed: int, tenants: tuple[SimTenant, ...], queues: QueueSettings) -> Scenario:
    """Clients wait without limit, so that every tenant has a backlog."""
    scenario = proof_scenario(
        "gap", *tenants, seed=seed, duration=80.0, drain=0.0, workers=(ARTIFACT_WORKER,), queues=queues
    )
    return replace(scenario, schedulers=SchedulerSettings(look_ahead=0))
