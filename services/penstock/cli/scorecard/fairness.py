"""Tenants that ask for more than they can have get the same, by weight, and one inside its share notices nobody."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import mean, median

from rich.console import Console

from penstock.cli.bench.history import OK
from penstock.cli.bench.report import quantile
from penstock.cli.plan import MeshOptions
from penstock.cli.scorecard.card import Card, Line, at_most, told
from penstock.cli.scorecard.saying import saying
from penstock.cli.scorecard.worlds import RATE, chat, most, queues, world
from penstock.simulator.arrivals import Poisson
from penstock.simulator.demand import Drawn
from penstock.simulator.lengths import Fixed, Lengths, Uniform
from penstock.simulator.scenario import Client, Queues, Scenario, Schedulers, Tenant, WorkerKind
from penstock.simulator.served import INPUT_WEIGHT, OUTPUT_WEIGHT
from penstock.simulator.simulation import Simulation

# The VTC artifact's engine: 10,000 tokens of KV, about as many requests as fit.
ARTIFACT = WorkerKind(kv_blocks=625, slots=19)
KV = 10_000  # tokens
LONGEST = 768  # tokens of a prompt
BOUND = 2 * max(INPUT_WEIGHT * LONGEST, OUTPUT_WEIGHT * KV)  # weighted tokens: VTC's theorem
OF_VTC = 50.0  # %
COMPLETIONS = 320
OFF_WEIGHT = 2.0  # %
SHARE = 0.5  # of its own share of the worker that a quiet tenant asks for
OFFERED = 10.0  # times its own share that the other asks for
ISOLATION = 1.25  # times the P99 alone
QUIET_RUNS = 4  # for each seed asked for: of 200 requests in a run, two are beyond the P99
LEFT_OUT = 1.0  # % of a quiet tenant's requests
SHORT, EVEN, LONG = (Fixed(64), Fixed(512)), (Fixed(256), Fixed(256)), (Fixed(LONGEST), Fixed(64))
VARIED = Uniform(16, 512), Uniform(16, 512)
NOTE = (
    "Plain VTC is told of every token as it comes, which no mesh is; one line has it told as often as ours is. "
    "Shares are of means: with short and long its gap is 2,000 in one seed and 7,000 or 16,000 in the next, as its "
    "requests happen to end one by one or together. "
    "Ours comes of short ones that take the room of a long one: by reports a quarter of a second apart, who runs "
    "most seems to have had less than it had, and no long one fits until a short one ends. One request of eight or "
    "cancels costs up to 1,536 weighted tokens, charged to its tenant alone, and nothing that runs is stopped: an "
    "order that knows every token, those to come included, is hardly more even there."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessOptions:
    seeds: int = 4


async def fairness(asked: FairnessOptions, _: MeshOptions, console: Console) -> Card:
    return await asyncio.to_thread(prove, asked, console)


def prove(asked: FairnessOptions, console: Console) -> Card:
    card = Card(proof="fairness", notes=[NOTE])
    with saying(console) as say:
        card.lines += gap_lines(asked.seeds, say)
        say("weights")
        off = [abs(100 * heavy_share(seed) / 0.8 - 100) for seed in range(asked.seeds)]
        card.lines += most(f"off the weights 4:1 in {COMPLETIONS} completions", off, OFF_WEIGHT)
        say("a quiet tenant beside a loud one")
        card.lines += quiet_lines(QUIET_RUNS * asked.seeds)
    return card


def quiet_lines(seeds: int) -> list[Line]:
    """Judge the requests of all seeds: of the 200 of one, the second slowest decides, and whom it happened to meet."""
    beside, alone = ([quiet_firsts(seed, beside=each) for seed in range(seeds)] for each in (True, False))
    slower = [_p99(one) / _p99(other) for one, other in zip(beside, alone, strict=True)]
    what = "P99 to the first token of a quiet tenant, times alone"
    left_out = 100 - 100 * sum(map(len, beside)) / sum(map(len, alone))
    return [
        at_most("requests of a quiet tenant answered alone, and not beside a loud one", left_out, LEFT_OUT, "%"),
        at_most(f"{what}, of all seeds' requests", _p99(chain(*beside)) / _p99(chain(*alone)), ISOLATION, "x"),
        told(f"{what}, median seed", median(slower), "x"),
        told(f"{what}, worst seed", max(slower), "x"),
    ]


def gap_lines(seeds: int, say: Callable[[str], None]) -> list[Line]:
    lines: list[Line] = []
    for name, tenants in WORKLOADS.items():
        say(f"{name}, by one who knows all")
        knowing = [gap(seed, tenants, 1, "clairvoyant") for seed in range(seeds)]
        for shards in (1, 4):
            say(f"{name}, {shards} shards")
            ours = [gap(seed, tenants, shards, "fair") for seed in range(seeds)]
            what = f"{name}, {shards} shard{'s' * (shards > 1)}: gap"
            lines += most(what, ours, BOUND, "weighted tokens")
            vtc = [gap(seed, tenants, shards, "vtc") for seed in range(seeds)]
            lines.append(at_most(f"{what}, of plain VTC's", share(ours, vtc), OF_VTC, "%"))
            lines.append(told(f"{what} of an order that knows all, of plain VTC's", share(knowing, vtc), "%"))
            late = [gap(seed, tenants, shards, "vtc_in_a_mesh") for seed in range(seeds)]
            lines.append(told(f"{what}, of plain VTC's with no more news than ours has", share(ours, late), "%"))
    lines.append(told("the same, first come first served", gap(0, WORKLOADS["even"], 1, "fifo"), "weighted tokens"))
    return lines


def share(gaps: Sequence[float], whole: Sequence[float]) -> float:
    """Return what the mean of the one is of the mean of the other, in %."""
    return 100 * mean(gaps) / mean(whole)


def tenant(name: str, rate: float, lengths: tuple[Lengths, Lengths] = EVEN, **fields: object) -> Tenant:
    return Tenant(name=name, demand=Drawn(Poisson(rate), *lengths), **fields)  # type: ignore[arg-type]  # its own


WORKLOADS = {
    "even": (tenant("steady", 12.0), tenant("rushed", 24.0)),
    "short and long": (tenant("short", 12.0, SHORT), tenant("long", 24.0, LONG)),
    "eight": tuple(tenant(f"tenant-{number}", 3.0 + number, VARIED) for number in range(8)),
    "cancels": tuple(tenant(f"tenant-{n}", 6.0, VARIED, client=Client(leave_share=0.3)) for n in range(4)),
}


def gap(seed: int, tenants: tuple[Tenant, ...], shards: int, policy: str) -> float:
    """Return the widest between tenants that all have a backlog."""
    run = Simulation(_artifact(seed, tenants, Queues(policy=policy, shards=shards))).run()
    return run.ledger.served.gaps().widest


def heavy_share(seed: int) -> float:
    """Return what of the completions is of the tenant with four fifths of the weights, once both have a backlog."""
    tenants = tenant("heavy", 24.0, weight=4.0), tenant("light", 24.0, weight=1.0)
    run = Simulation(_artifact(seed, tenants, queues("fair"))).run()
    done = [each for each in run.ledger.requests if each.history.outcome == OK and each.history.ended > 10.0]
    first = sorted(done, key=lambda each: each.history.ended)[:COMPLETIONS]
    assert len(first) == COMPLETIONS, "the run is long enough"
    return sum(each.tenant.name == "heavy" for each in first) / COMPLETIONS


def quiet_firsts(seed: int, *, beside: bool) -> list[float]:
    """Return the s to each first token."""
    half = RATE / 2
    quiet, loud = chat(Poisson(SHARE * half), "quiet"), chat(Poisson(OFFERED * half), "loud")
    tenants = (quiet, loud) if beside else (quiet,)
    asked = world("isolation", *tenants, seed=seed, duration=60.0, warm_up=10.0)
    histories = [each.history for each in Simulation(asked).run().ledger.requests if each.tenant.name == "quiet"]
    return [each.ttft for each in histories if each.ttft is not None and each.started > asked.warm_up]


def _p99(firsts: Iterable[float]) -> float:
    return quantile(list(firsts), 0.99)


def _artifact(seed: int, tenants: tuple[Tenant, ...], line: Queues) -> Scenario:
    """As many patient clients as make a backlog for each tenant."""
    found = world("gap", *tenants, seed=seed, duration=80.0, drain=0.0, workers=(ARTIFACT,), queues=line)
    return replace(found, schedulers=Schedulers(look_ahead=0))
