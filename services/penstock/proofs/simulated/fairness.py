"""Tenants that ask for more than they can have get the same, by weight, and one inside its share notices nobody."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

from rich.console import Console

from penstock.bench.history import OK
from penstock.bench.progress import saying
from penstock.bench.report import quantile
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import Card, Line, at_most, told
from penstock.proofs.simulated.gaps import artifact, gap_lines, tenant
from penstock.proofs.simulated.parallel import all_cores
from penstock.proofs.simulated.scenarios import RATE, chat, most, queues, world
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Poisson
from penstock.simulator.traffic.lengths import Fixed

COMPLETIONS = 320
OFF_WEIGHT = 2.0  # %
SHARE = 0.5  # of its own share of the worker that a quiet tenant asks for
OFFERED = 10.0  # times its own share that the other asks for
ISOLATION = 1.25  # times the P99 alone
QUIET_RUNS = 4  # for each seed asked for: of 200 requests in a run, two are beyond the P99
LEFT_OUT = 1.0  # % of a quiet tenant's requests
NOTE = (
    "Short and long: plain VTC's own gap is less there than one long request, 768. Varied: one request is up to 1,536, "
    "charged to its tenant alone, and nothing that runs is stopped; an order that knows every token, those to come "
    "included, halves the gap in none of the three. Plain VTC is told of every token as it comes, which no mesh is; "
    "one line has it told by reports. Shares are of means."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessOptions:
    seeds: int = 4


async def fairness(asked: FairnessOptions, _: MeshOptions, console: Console) -> Card:
    return await asyncio.to_thread(prove, asked, console)


def prove(asked: FairnessOptions, console: Console) -> Card:
    card = Card(proof="fairness", notes=[NOTE])
    with saying(console) as say, all_cores(say) as cores:
        card.lines += gap_lines(asked.seeds, cores)
        heavy = cores.each_of(heavy_share, range(asked.seeds), "weights")
        off = [100 * abs(each / 0.8 - 1) for each in heavy]
        card.lines += most(f"off the weights 4:1 in {COMPLETIONS} completions", off, OFF_WEIGHT)
        seeds = range(QUIET_RUNS * asked.seeds)
        beside = cores.each_of(quiet_beside, seeds, "quiet tenants beside a loud one")
        card.lines += quiet_lines(beside, cores.each_of(quiet_alone, seeds, "quiet tenants alone"))
    return card


def quiet_lines(beside: Sequence[Sequence[float]], alone: Sequence[Sequence[float]]) -> list[Line]:
    """Judge the s to first tokens of all seeds: of the 200 of one, the second slowest decides, and whom it met."""
    slower = [_p99(one) / _p99(other) for one, other in zip(beside, alone, strict=True)]
    what = "P99 to the first token of a quiet tenant, times alone"
    left_out = 100 - 100 * sum(map(len, beside)) / sum(map(len, alone))
    return [
        at_most("requests of a quiet tenant answered alone, and not beside a loud one", left_out, LEFT_OUT, "%"),
        at_most(f"{what}, of all seeds' requests", _p99(chain(*beside)) / _p99(chain(*alone)), ISOLATION, "x"),
        told(f"{what}, median seed", median(slower), "x"),
        told(f"{what}, worst seed", max(slower), "x"),
    ]


def heavy_share(seed: int) -> float:
    """Return what of the completions is of the tenant with four fifths of the weights, once both have a backlog."""
    even = Fixed(256), Fixed(256)
    tenants = tenant("heavy", 24.0, *even, weight=4.0), tenant("light", 24.0, *even)
    run = Simulation(artifact(seed, tenants, queues("fair"))).run()
    done = [each for each in run.ledger.requests if each.history.outcome == OK and each.history.ended > 10.0]
    first = sorted(done, key=lambda each: each.history.ended)[:COMPLETIONS]
    assert len(first) == COMPLETIONS, "the run is long enough"
    return sum(each.tenant.name == "heavy" for each in first) / COMPLETIONS


def quiet_beside(seed: int) -> list[float]:
    """Return the s to each first token of a quiet tenant beside a loud one."""
    return _quiet_firsts(seed, OFFERED)


def quiet_alone(seed: int) -> list[float]:
    return _quiet_firsts(seed, 0.0)


def _quiet_firsts(seed: int, loud: float) -> list[float]:
    half = RATE / 2
    tenants = (chat(Poisson(SHARE * half), "quiet"), *([chat(Poisson(loud * half), "loud")] if loud else []))
    asked = world("isolation", *tenants, seed=seed, duration=60.0, warm_up=10.0)
    histories = [each.history for each in Simulation(asked).run().ledger.requests if each.tenant.name == "quiet"]
    return [each.ttft for each in histories if each.ttft is not None and each.started > asked.warm_up]


def _p99(firsts: Iterable[float]) -> float:
    return quantile(list(firsts), 0.99)
