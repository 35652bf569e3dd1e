"""How far apart tenants that all have a backlog come in what they are served, beside what other orders bring.

The first four workloads are those of VTC's artifact (Sheng et al., OSDI 2024: its suites `overload`,
`poisson_short_long`, `poisson_short_long_2` and `overload-multi`), at eight times its rates: the reference worker is
that much faster than its GPU. Arrivals are Poisson in all of them, so that seeds differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any

from penstock.proofs.card import Line, at_most, told
from penstock.proofs.simulated.parallel import Cores
from penstock.proofs.simulated.scenarios import most, world
from penstock.simulator.report.service_accounting import INPUT_WEIGHT, OUTPUT_WEIGHT
from penstock.simulator.scenario import Client, Queues, Scenario, Schedulers, Tenant, WorkerKind
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Poisson
from penstock.simulator.traffic.demand import Drawn
from penstock.simulator.traffic.lengths import Fixed, Lengths, Uniform

# The artifact's engine: 10,000 tokens of KV, about as many requests as fit.
ARTIFACT = WorkerKind(kv_blocks=625, slots=19)
KV = 10_000  # tokens
LONGEST = 768  # tokens of a prompt
BOUND = 2 * max(INPUT_WEIGHT * LONGEST, OUTPUT_WEIGHT * KV)  # weighted tokens: VTC's theorem
OF_VTC = 50.0  # %
SHARDS = 1, 4
VARIED = Uniform(16, 512)  # tokens of a prompt and of an answer
LEAVING = Client(leave_share=0.3)

OURS, VTC, FIFO = "fair", "vtc", "fifo"
BESIDE = {"clairvoyant": "an order that knows all", "vtc_in_a_mesh": "VTC told by reports"}
HARD = "short and long", "eight, varied", "four that leave, varied"  # nobody is known to halve the gap there


def tenant(name: str, rate: float, prompt: Lengths, output: Lengths, **fields: Any) -> Tenant:
    return Tenant(name=name, demand=Drawn(Poisson(rate), prompt, output), **fields)


def _fixed(*asked: tuple[str, float, int, int], **fields: Any) -> tuple[Tenant, ...]:
    """Each tenant by name, requests/s, tokens of a prompt, tokens of an answer."""
    return tuple(tenant(name, rate, Fixed(prompt), Fixed(output), **fields) for name, rate, prompt, output in asked)


def _varied(*rates: float, **fields: Any) -> tuple[Tenant, ...]:
    return tuple(tenant(f"tenant-{n}", rate, VARIED, VARIED, **fields) for n, rate in enumerate(rates))


# Names decide which shard has a tenant: of four, no two have both of a pair.
EIGHT = tuple((f"tenant-{number}", 3.2 if number < 3 else 4.8, 256, 256) for number in range(8))
WORKLOADS = {
    "two tenants": _fixed(("steady", 12.0, 256, 256), ("rushed", 24.0, 256, 256)),
    "short and long": _fixed(("short", 64.0, 64, 64), ("long", 12.0, 256, 256)),
    "prompts and answers": _fixed(("reads", 64.0, 512, 32), ("writes", 12.0, 32, 512)),
    "eight tenants": _fixed(*EIGHT),
    "eight that leave": _fixed(*EIGHT, client=LEAVING),
    "chat and digests": _fixed(("short", 12.0, 64, 512), ("long", 24.0, LONGEST, 64)),
    "eight, varied": _varied(*(3.0 + number for number in range(8))),
    "four that leave, varied": _varied(*[6.0] * 4, client=LEAVING),
}


@dataclass(frozen=True, slots=True)
class Run:
    workload: str
    shards: int
    policy: str
    seed: int


def gap_lines(seeds: int, cores: Cores) -> list[Line]:
    gaps = _gaps(seeds, cores)
    lines = [line for name in WORKLOADS for shards in SHARDS for line in _lines(name, shards, gaps)]
    return [*lines, told("two tenants, first come first served", gaps["two tenants", 1, FIFO][0], "weighted tokens")]


Gaps = dict[tuple[str, int, str], list[float]]  # by workload, shards, policy: weighted tokens, a seed each


def _gaps(seeds: int, cores: Cores) -> Gaps:
    asked = [Run("two tenants", 1, FIFO, 0)]
    for name in WORKLOADS:
        wanted = [(shards, policy) for shards in SHARDS for policy in (OURS, VTC)]
        wanted += [(1, policy) for policy in BESIDE if name in HARD]
        asked += [Run(name, shards, policy, seed) for shards, policy in wanted for seed in range(seeds)]
    found: Gaps = {}
    for run, widest in zip(asked, cores.each_of(gap, asked, "gaps between tenants"), strict=True):
        found.setdefault((run.workload, run.shards, run.policy), []).append(widest)
    return found


def _lines(name: str, shards: int, gaps: Gaps) -> list[Line]:
    ours, vtc = gaps[name, shards, OURS], gaps[name, shards, VTC]
    what = f"{name}, {shards} shard{'s' * (shards > 1)}: gap"
    lines = most(what, ours, BOUND, "weighted tokens")
    lines.append(at_most(f"{what}, of plain VTC's", share(ours, vtc), OF_VTC, "%"))
    lines.append(told(f"{what} of plain VTC, median", median(vtc), "weighted tokens"))
    for policy, which in BESIDE.items():
        if found := gaps.get((name, shards, policy)):
            lines.append(told(f"{what} of {which}, of plain VTC's", share(found, vtc), "%"))
    return lines


def share(gaps: Sequence[float], whole: Sequence[float]) -> float:
    """Return what the mean of the one is of the mean of the other, in %."""
    return 100 * mean(gaps) / mean(whole)


def gap(run: Run) -> float:
    """Return the widest between tenants that all have a backlog."""
    asked = artifact(run.seed, WORKLOADS[run.workload], Queues(policy=run.policy, shards=run.shards))
    return Simulation(asked).run().ledger.served.gaps().widest


def artifact(seed: int, tenants: tuple[Tenant, ...], line: Queues) -> Scenario:
    """As many patient clients as make a backlog for each tenant."""
    found = world("gap", *tenants, seed=seed, duration=80.0, drain=0.0, workers=(ARTIFACT,), queues=line)
    return replace(found, schedulers=Schedulers(look_ahead=0))
