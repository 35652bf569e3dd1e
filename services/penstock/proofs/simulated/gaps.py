"""How far apart tenants that all have a backlog come in what they are served, beside what other orders bring.

The first four workloads are those of VTC's artifact (Sheng et al., OSDI 2024: its suites `overload`,
`poisson_short_long`, `poisson_short_long_2` and `overload-multi`), at eight times its rates: the reference worker is
that much faster than its GPU. Arrivals are Poisson in all of them, so that seeds differ.
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
from penstock.simulator.traffic.demand import SampledDemand
from penstock.simulator.traffic.lengths import Fixed, LengthDistribution, Uniform

# The artifact's engine: 10,000 tokens of KV, about as many requests as fit.
ARTIFACT_WORKER = WorkerKind(kv_blocks=625, slots=19)
KV_TOKENS = 10_000  # tokens
MAX_PROMPT_TOKENS = 768  # tokens of a prompt
VTC_BOUND = 2 * max(INPUT_WEIGHT * MAX_PROMPT_TOKENS, OUTPUT_WEIGHT * KV_TOKENS)  # weighted tokens: VTC's theorem
MAX_PERCENT_OF_VTC = 50.0  # %
OF_CLAIRVOYANT = 1.2  # times, where the best order that knows all does not come to half of plain VTC's widest_gap
SHARD_COUNTS = 1, 4
VARIED_LENGTHS = Uniform(16, 512)  # tokens of a prompt and of an answer
LEAVING_CLIENTS = ClientBehavior(leave_share=0.3)

OURS, VTC, FIFO = "fair", "vtc", "fifo"
TOLD_BY_REPORTS = "vtc_in_a_mesh"
# Orders that know the length of every answer. Each keeps one queues, so each runs with one shard.
GREEDY, LOOK_AHEAD = "clairvoyant", "planner"
REFERENCE_WORKLOADS = (
    "short and long",
    "eight, varied",
    "four that leave, varied",
)  # no order is known to halve it there


def poisson_tenant(
    name: str, rate: float, prompt: LengthDistribution, output: LengthDistribution, **fields: Any
) -> SimTenant:
    return SimTenant(name=name, demand=SampledDemand(Poisson(rate), prompt, output), **fields)


def _fixed_tenants(*rows: tuple[str, float, int, int], **fields: Any) -> tuple[SimTenant, ...]:
    """Each tenant by name, requests/s, tokens of a prompt, tokens of an answer."""
    return tuple(
        poisson_tenant(name, rate, Fixed(prompt), Fixed(output), **fields) for name, rate, prompt, output in rows
    )


def _varied_tenants(*rates: float, **fields: Any) -> tuple[SimTenant, ...]:
    return tuple(
        poisson_tenant(f"tenant-{n}", rate, VARIED_LENGTHS, VARIED_LENGTHS, **fields) for n, rate in enumerate(rates)
    )


# Names decide which shard has a tenant: of four, no two have both of a pair.
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


def gap_lines(seeds: int, pool: ProcessPool) -> list[CardLine]:
    gaps = _measure_gaps(seeds, pool)
    lines = [line for name in WORKLOADS for shards in SHARD_COUNTS for line in _lines(name, shards, gaps)]
    return [
        *lines,
        reported("two tenants, first come first served", gaps["two tenants", 1, FIFO][0], "weighted tokens"),
    ]


GapsByRun = dict[tuple[str, int, str], list[float]]  # by workload, shards, policy: weighted tokens, a seed each


def _measure_gaps(seeds: int, pool: ProcessPool) -> GapsByRun:
    asked = [GapRun("two tenants", 1, FIFO, 0)]
    for name in WORKLOADS:
        wanted = [(shards, policy) for shards in SHARD_COUNTS for policy in (OURS, VTC)]
        wanted += [
            (1, GREEDY),
            *[(1, policy) for policy in (LOOK_AHEAD, TOLD_BY_REPORTS) if name in REFERENCE_WORKLOADS],
        ]
        asked += [GapRun(name, shards, policy, seed) for shards, policy in wanted for seed in range(seeds)]
    found: GapsByRun = {}
    for run, widest in zip(asked, pool.map(widest_gap, asked, "gaps between tenants"), strict=True):
        found.setdefault((run.workload, run.shards, run.policy), []).append(widest)
    return found


def _lines(name: str, shards: int, gaps: GapsByRun) -> list[CardLine]:
    """The widest_gap must be at worst_at_most half of plain VTC's; in `REFERENCE_WORKLOADS`, or 1.2 times that of the best order that knows all."""
    ours, vtc, best = gaps[name, shards, OURS], gaps[name, shards, VTC], clairvoyant(name, gaps)
    what = f"{name}, {shards} shard{'s' * (shards > 1)}: gap"
    of_best = percent_of_mean(best, vtc)
    lines = worst_at_most(what, ours, VTC_BOUND, "weighted tokens")
    lines.append(reported(f"{what} of plain VTC, median", median(vtc), "weighted tokens"))
    lines.append(reported(f"{what} of an order that knows all, of plain VTC's", of_best, "%"))
    goal = (
        max(MAX_PERCENT_OF_VTC, round(OF_CLAIRVOYANT * of_best, 1))
        if name in REFERENCE_WORKLOADS
        else MAX_PERCENT_OF_VTC
    )
    lines.append(at_most(f"{what}, of plain VTC's", percent_of_mean(ours, vtc), goal, "%"))
    if found := gaps.get((name, shards, TOLD_BY_REPORTS)):
        lines.append(reported(f"{what} of VTC reported by reports, of plain VTC's", percent_of_mean(found, vtc), "%"))
    return lines


def clairvoyant(name: str, gaps: GapsByRun) -> list[float]:
    """Return the gaps, a seed each, of the order whose mean widest_gap is the least; one that knows all can do as VTC does."""
    found = [gaps[name, 1, policy] for policy in (GREEDY, LOOK_AHEAD, VTC) if (name, 1, policy) in gaps]
    return min(found, key=mean)


def percent_of_mean(gaps: Sequence[float], whole: Sequence[float]) -> float:
    """Return what the mean of the one is of the mean of the other, in %."""
    return 100 * mean(gaps) / mean(whole)


def widest_gap(run: GapRun) -> float:
    """Return the widest between tenants that all have a backlog."""
    sizes: dict[str, float] = {"slots": ARTIFACT_WORKER.slots, "kv_blocks": ARTIFACT_WORKER.kv_blocks}
    queues = QueueSettings(
        policy=run.policy, shards=run.shards, policy_options=sizes if run.policy == LOOK_AHEAD else {}
    )
    rows = artifact_scenario(run.seed, WORKLOADS[run.workload], queues)
    return Simulation(asked).run().ledger.service.gaps().widest


def artifact_scenario(seed: int, tenants: tuple[SimTenant, ...], queues: QueueSettings) -> Scenario:
    """As many patient clients as make a backlog for each tenant."""
    found = proof_scenario(
        "gap", *tenants, seed=seed, duration=80.0, drain=0.0, workers=(ARTIFACT_WORKER,), queues=queues
    )
    return replace(found, schedulers=SchedulerSettings(look_ahead=0))
