"""Far past its limit the mesh still does what it did at its limit, and does it in time: beside what others do."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console

from penstock.bench.history import OK
from penstock.bench.progress import saying
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import Card, Line, at_most, percentile, told
from penstock.proofs.simulated import clairvoyant
from penstock.proofs.simulated.overload_plot import plot_overload
from penstock.proofs.simulated.parallel import Cores, all_cores
from penstock.proofs.simulated.scenarios import arrivals, chat, least, most, world
from penstock.simulator.mesh.request import Request
from penstock.simulator.report.figures import figures_of, weighted
from penstock.simulator.scenario import Client, Queues, Scenario
from penstock.simulator.simulation import Simulation
from penstock.simulator.sweep import knee

LOADS = (0.8, 1.0, 1.5, 3.0, 10.0)  # multiples of the knee
PEAK = 1.5  # the highest of them that the peak is looked for in: beyond, short requests get in more often
GOALS = {3.0: 95.0, 10.0: 90.0}  # % of the peak, by load
LATE = 1.0  # % of what was admitted
NOISE = 0.6  # by which what callers declare is off
NOISE_COST = 10.0  # % of goodput
WASTED = 1.0  # % of engine tokens
ABANDONS = Client(patience=5.0, leave_share=0.3, leave_within=5.0, deadline=15.0)
ERROR = 20.0  # % of the time to the first token
REPLAYS = 10
FALSE = 5.0  # % of refusals
BASELINES = {
    "fifo": "unbounded FIFO",
    "bounded_fifo": "FIFO of 64",
    "codel": "folly's CoDel",
    "adaptive_lifo": "adaptive LIFO",
    "gradient": "Envoy's gradient",
    "round_robin": "flows in turn, TTL 1 s",
    "vtc": "plain VTC",
}
KINDS = {"tokens": "goodput_weighted_tokens_per_s", "requests": "goodput_requests_per_s"}

Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadOptions:
    seeds: int = 4
    plot: Path | None = None


@dataclass(slots=True)
class Sweep:
    """Figures by load, a list of them by seed."""

    figures: dict[float, list[Figures]] = field(default_factory=dict)

    def shares(self, load: float, kind: str) -> list[float]:
        """Return the % of each seed's peak that is left at `load`."""
        of_seeds = zip(
            *([each[KINDS[kind]] for each in self.figures[at]] for at in self.figures if at <= PEAK), strict=True
        )
        peaks = [max(values) or 1.0 for values in of_seeds]
        return [100 * each[KINDS[kind]] / peak for each, peak in zip(self.figures[load], peaks, strict=True)]


async def overload(asked: OverloadOptions, _: MeshOptions, console: Console) -> Card:
    return await asyncio.to_thread(prove, asked, console)


def prove(asked: OverloadOptions, console: Console) -> Card:
    with saying(console) as say, all_cores(say) as cores:
        say("looking for the load that FIFO still serves")
        limit = knee(scenario(0, 1.0))
        seeds = range(asked.seeds)
        ours = sweep("penstock", LOADS, seeds, limit, cores)
        others = {policy: sweep(policy, (1.0, *GOALS), range(2), limit, cores) for policy in BASELINES}
        card = Card(proof="overload")
        card.lines.append(told("knee of FIFO", limit * 16.0, "requests/s"))
        card.lines += goodput_lines(ours)
        card.lines += baseline_lines(others, ours)
        card.lines += noise_lines(cores.each_of(run, _noisy(seeds, 3.0 * limit), "worlds of unknown lengths"), ours)
        card.lines += poison_lines(cores.each_of(run, _abandoning(seeds, 3.0 * limit), "worlds of clients that leave"))
        say("what was predicted, and whom a clairvoyant would have refused")
        runs = [Simulation(scenario(seed, 3.0 * limit)).run() for seed in seeds]
        card.lines += prediction_lines(runs)
        card.lines += refusal_lines(runs)
        card.notes.append(
            "refused that alone would have met the SLO: there is always a place for one more, never for all"
        )
    if asked.plot:
        plot_overload(ours.figures, {BASELINES[name]: each.figures for name, each in others.items()}, asked.plot)
        card.notes.append(f"plot: {asked.plot}")
    return card


def scenario(seed: int, load: float, policy: str = "penstock", **tenant: Any) -> Scenario:
    asking = chat(arrivals(seed), **tenant)
    found = world("overload", asking, policy=policy, seed=seed, duration=50.0, warm_up=10.0, load=load)
    is_short = policy == "bounded_fifo"
    return replace(found, queues=replace(found.queues, max_depth=64)) if is_short else found


def run(asked: Scenario) -> Figures:
    simulation = Simulation(asked).run()
    return {**figures_of(simulation), "late_share": _late_share(simulation)}


def sweep(policy: str, loads: Sequence[float], seeds: Sequence[int], limit: float, cores: Cores) -> Sweep:
    asked = [scenario(seed, load * limit, policy) for load in loads for seed in seeds]
    found = iter(cores.each_of(run, asked, f"worlds of {policy}"))
    return Sweep({load: list(islice(found, len(seeds))) for load in loads})


def goodput_lines(ours: Sweep) -> list[Line]:
    lines = []
    for load, goal in GOALS.items():
        for kind in KINDS:
            lines += least(f"goodput in {kind} at {load:g}x, of the peak", ours.shares(load, kind), goal)
        late = [100 * each["late_share"] for each in ours.figures[load]]
        lines += most(f"admitted and late at {load:g}x", late, LATE)
    return lines


def baseline_lines(others: Mapping[str, Sweep], ours: Sweep) -> list[Line]:
    """A steady and a bursty seed, as % of the peak that the mesh has with them."""
    peak = max(_tokens(ours, load) for load in LOADS if load <= PEAK) / 100
    return [
        line
        for name, found in others.items()
        for load in GOALS
        for line in (
            told(f"{BASELINES[name]} at {load:g}x, of our peak", _tokens(found, load) / peak, "%"),
            told(f"{BASELINES[name]} at {load:g}x, late", 50 * sum(_late(found, load)), "%"),
        )
    ]


def noise_lines(unknown: Sequence[Figures], ours: Sweep) -> list[Line]:
    """What callers declare is up to four times too much, and says little of what comes."""
    kind = KINDS["tokens"]
    costs = [100 - 100 * each[kind] / known[kind] for each, known in zip(unknown, ours.figures[3.0], strict=True)]
    return most("goodput lost where lengths are unknown", costs, NOISE_COST)


def poison_lines(runs: Sequence[Figures]) -> list[Line]:
    wasted = [100 * each["engine_tokens_after_leaving"] / each["engine_tokens"] for each in runs]
    return most("engine tokens for clients that had left, 30 % do", wasted, WASTED)


def prediction_lines(runs: Sequence[Simulation]) -> list[Line]:
    """How far first tokens came from what was predicted when their tickets came in."""
    by_seed = [_predicted(seen) for seen in runs]
    errors = [[100 * abs(said - first) / first for said, first in pairs] for pairs in by_seed]
    everyone = [error for seed in errors for error in seed]
    target = runs[0].scenario.targets.ttft
    of_target = [100 * abs(said - first) / target for pairs in by_seed for said, first in pairs]
    assert everyone, "where three times too much comes, first tokens are predicted"
    return [
        told("error of the first token predicted at 3x, P50", percentile(everyone, 0.5), "%"),
        at_most("error of the first token predicted at 3x, P95", percentile(everyone, 0.95), ERROR, "%"),
        told("the same of the worst seed", max(percentile(seed, 0.95) for seed in errors), "%"),
        told("P95 of it as a share of the SLO", percentile(of_target, 0.95), "%"),
    ]


def refusal_lines(runs: Sequence[Simulation]) -> list[Line]:
    """Whom we refuse beyond what a clairvoyant has to, by requests and by tokens.

    Beside it what would have come of some of the refused, had each been the only one more: at the limit nearly all of
    them would have been in time, as there is always a little slack, and next to none of them together.
    """
    beyond = [_beyond_clairvoyance(seen) for seen in runs]
    first = runs[0]
    sampled = _refused(first)[:: len(_refused(first)) // REPLAYS + 1]
    alone = sum(_would_have_met(first.scenario, each.history.number) for each in sampled)
    return [
        *(
            line
            for place, kind in enumerate(KINDS)
            for line in most(
                f"refused beyond a clairvoyant's at 3x, in {kind}", [each[place] for each in beyond], FALSE
            )
        ),
        told("refused that alone would have met the SLO at 3x", 100 * alone / len(sampled), "%"),
    ]


def _predicted(seen: Simulation) -> list[tuple[float, float]]:
    """Return what was predicted and what came, in s, of requests that came after the warm-up."""
    return [
        (each.predicted_ttft, first)
        for each in _counted(seen)
        if each.predicted_ttft is not None and (first := each.history.ttft) is not None
    ]


def _beyond_clairvoyance(seen: Simulation) -> tuple[float, float]:
    """Return weighted tokens and requests refused beyond a clairvoyant's, in % of ours; below 0: fewer."""
    ours, warm_up = _refused(seen), seen.scenario.warm_up
    theirs = clairvoyant.refused(seen.ledger.requests, seen.scenario.workers[0], seen.scenario.targets.ttft)
    theirs = [each for each in theirs if each.history.started >= warm_up]
    assert ours, "where three times too much comes, somebody is refused"
    tokens = 100 - 100 * sum(map(weighted, theirs)) / sum(map(weighted, ours))
    return tokens, 100 - 100 * len(theirs) / len(ours)


def _counted(seen: Simulation) -> list[Request]:
    return [each for each in seen.ledger.requests if each.history.started >= seen.scenario.warm_up]


def _refused(seen: Simulation) -> list[Request]:
    return [each for each in _counted(seen) if each.history.outcome == "OVERLOADED"]


def _would_have_met(asked: Scenario, number: int) -> bool:
    """Run all that again with this one let in."""
    let_in: Queues = replace(asked.queues, let_in=frozenset({f"{number}.1"}))
    history = Simulation(replace(asked, queues=let_in)).run().ledger.requests[number].history
    return history.outcome == OK and (history.ttft or 0.0) <= asked.targets.ttft


def _tokens(found: Sweep, load: float) -> float:
    return float(sum(each[KINDS["tokens"]] for each in found.figures[load][:2]))


def _late(found: Sweep, load: float) -> list[float]:
    return [each["late_share"] for each in found.figures[load][:2]]


def _late_share(seen: Simulation) -> float:
    """Of requests that got a first token, those that came after the warm-up; where none did, all are late."""
    firsts = [first for each in _counted(seen) if (first := each.history.ttft) is not None]
    return sum(first > seen.scenario.targets.ttft for first in firsts) / len(firsts) if firsts else 1.0


def _noisy(seeds: Sequence[int], load: float) -> list[Scenario]:
    return [scenario(seed, load, over_declare=2.5, declare_noise=NOISE) for seed in seeds]


def _abandoning(seeds: Sequence[int], load: float) -> list[Scenario]:
    return [scenario(seed, load, client=ABANDONS) for seed in seeds]
