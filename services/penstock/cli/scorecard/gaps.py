"""How far apart tenants that all have a backlog come in what they are served, beside what other orders bring.

The workloads that are judged are those of VTC's artifact (Sheng et al., OSDI 2024: its suites `overload`,
`poisson_short_long`, `poisson_short_long_2` and `overload-multi`), at eight times its rates, as many times as fast as
its GPU as the reference worker is. Arrivals are Poisson in all of them, so that seeds differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any

from penstock.cli.scorecard.card import Line, at_most, told
from penstock.cli.scorecard.parallel import Cores
from penstock.cli.scorecard.worlds import most, world
from penstock.simulator.arrivals import Poisson
from penstock.simulator.demand import Drawn
from penstock.simulator.lengths import Fixed, Lengths, Uniform
from penstock.simulator.scenario import Client, Queues, Scenario, Schedulers, Tenant, WorkerKind
from penstock.simulator.served import INPUT_WEIGHT, OUTPUT_WEIGHT
from penstock.simulator.simulation import Simulation

# The artifact's engine: 10,000 tokens of KV, about as many requests as fit.
ARTIFACT = WorkerKind(kv_blocks=625, slots=19)
KV = 10_000  # tokens
LONGEST = 768  # tokens of a prompt
BOUND = 2 * max(INPUT_WEIGHT * LONGEST, OUTPUT_WEIGHT * KV)  # weighted tokens: VTC's theorem
OF_VTC = 50.0  # %
SHARDS = 1, 4
LEAVING = Client(leave_share=0.3)

OURS, VTC, LATE_VTC, KNOWING, FIFO = "fair", "vtc", "vtc_in_a_mesh", "clairvoyant", "fifo"


@dataclass(frozen=True, slots=True)
class Workload:
    tenants: tuple[Tenant, ...]
    grain: float = 0.0  # weighted tokens: no order that runs requests whole can promise less
    is_judged: bool = True


def tenant(name: str, rate: float, prompt: Lengths, output: Lengths, **fields: Any) -> Tenant:
    return Tenant(name=name, demand=Drawn(Poisson(rate), prompt, output), **fields)


def _judged(*asked: tuple[str, float, int, int], **fields: Any) -> Workload:
    """Each tenant by name, requests/s, tokens of a prompt, tokens of an answer.

    The grain is that of Golestani (INFOCOM 1994): half of what one request of each of two tenants comes to.
    """
    tenants = tuple(tenant(name, rate, Fixed(prompt), Fixed(output), **fields) for name, rate, prompt, output in asked)
    costs = sorted(INPUT_WEIGHT * prompt + OUTPUT_WEIGHT * output for *_, prompt, output in asked)
    return Workload(tenants, sum(costs[-2:]) / 2)


def _told(*tenants: Tenant) -> Workload:
    return Workload(tenants, is_judged=False)


# Names decide which shard has a tenant: of four, no two have both of a pair.
EIGHT = tuple((f"tenant-{number}", 3.2 if number < 3 else 4.8, 256, 256) for number in range(8))
VARIED = Uniform(16, 512), Uniform(16, 512)
WORKLOADS = {
    "two tenants": _judged(("steady", 12.0, 256, 256), ("rushed", 24.0, 256, 256)),
    "short and long": _judged(("short", 64.0, 64, 64), ("long", 12.0, 256, 256)),
    "prompts and answers": _judged(("reads", 64.0, 512, 32), ("writes", 12.0, 32, 512)),
    "eight tenants": _judged(*EIGHT),
    "eight that leave": _judged(*EIGHT, client=LEAVING),
    "unlike": _told(tenant("short", 12.0, Fixed(64), Fixed(512)), tenant("long", 24.0, Fixed(LONGEST), Fixed(64))),
    "eight, varied": _told(*(tenant(f"tenant-{n}", 3.0 + n, *VARIED) for n in range(8))),
    "four that leave, varied": _told(*(tenant(f"tenant-{n}", 6.0, *VARIED, client=LEAVING) for n in range(4))),
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
    for name, workload in WORKLOADS.items():
        wanted = [(shards, policy) for shards in SHARDS for policy in (OURS, VTC)]
        wanted += [] if workload.is_judged else [(1, LATE_VTC), (1, KNOWING)]
        asked += [Run(name, shards, policy, seed) for shards, policy in wanted for seed in range(seeds)]
    found: Gaps = {}
    for run, widest in zip(asked, cores.each_of(gap, asked, "gaps between tenants"), strict=True):
        found.setdefault((run.workload, run.shards, run.policy), []).append(widest)
    return found


def _lines(name: str, shards: int, gaps: Gaps) -> list[Line]:
    workload, ours, vtc = WORKLOADS[name], gaps[name, shards, OURS], gaps[name, shards, VTC]
    what = f"{name}, {shards} shard{'s' * (shards > 1)}: gap"
    lines = most(what, ours, BOUND, "weighted tokens")
    is_coarse = mean(vtc) * OF_VTC / 100 < workload.grain
    if workload.is_judged and not is_coarse:
        return [*lines, at_most(f"{what}, of plain VTC's", share(ours, vtc), OF_VTC, "%")]
    lines.append(told(f"{what}, of plain VTC's", share(ours, vtc), "%"))
    if is_coarse:
        lines.append(told(f"{what} of plain VTC, median", median(vtc), "weighted tokens"))
    if (name, shards, KNOWING) in gaps:
        lines.append(
            told(f"{what} of an order that knows all, of plain VTC's", share(gaps[name, 1, KNOWING], vtc), "%")
        )
        late = gaps[name, shards, LATE_VTC]
        lines.append(told(f"{what}, of plain VTC's told by reports alone", share(ours, late), "%"))
    return lines


def share(gaps: Sequence[float], whole: Sequence[float]) -> float:
    """Return what the mean of the one is of the mean of the other, in %."""
    return 100 * mean(gaps) / mean(whole)


def gap(run: Run) -> float:
    """Return the widest between tenants that all have a backlog."""
    asked = artifact(run.seed, WORKLOADS[run.workload].tenants, Queues(policy=run.policy, shards=run.shards))
    return Simulation(asked).run().ledger.served.gaps().widest


def artifact(seed: int, tenants: tuple[Tenant, ...], line: Queues) -> Scenario:
    """As many patient clients as make a backlog for each tenant."""
    found = world("gap", *tenants, seed=seed, duration=80.0, drain=0.0, workers=(ARTIFACT,), queues=line)
    return replace(found, schedulers=Schedulers(look_ahead=0))
