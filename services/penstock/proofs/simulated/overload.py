"""Far past its limit the mesh still does what it did at its limit, and does it in time: beside what others do."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from penstock.bench.progress import progress_reporter
from penstock.bench.transcript import OK
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, ProofCard, at_most, percentile, reported
from penstock.proofs.simulated import clairvoyant
from penstock.proofs.simulated.process_pool import ProcessPool, process_pool
from penstock.proofs.simulated.scenarios import (
    arrivals_for_seed,
    chat_tenant,
    proof_scenario,
    worst_at_least,
    worst_at_most,
)
from penstock.simulator.knee import knee_load
from penstock.simulator.mesh.request import SimRequest
from penstock.simulator.report.figures import figures_of, weighted_tokens
from penstock.simulator.scenario import ClientBehavior, QueueSettings, Scenario
from penstock.simulator.simulation import Simulation

GOODPUT = "goodput_weighted_tokens_per_s"

FiguresBySeed = Mapping[float, Sequence[Mapping[str, Any]]]  # by load, of each seed


def plot_overload(ours: FiguresBySeed, others: Mapping[str, FiguresBySeed], path: Path) -> None:
    """Write a PNG or SVG, by the suffix of `path`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
    peak = max(_median_goodput(ours, load) for load in ours)
    for name, figures in {"penstock": ours, **others}.items():
        bold = {"linewidth": 3, "color": "black"} if name == "penstock" else {"alpha": 0.8}
        shares = [100 * _median_goodput(figures, load) / peak for load in figures]
        axes.plot(list(figures), shares, marker="o", label=name, **bold)
    axes.set(title="Goodput past the knee", xlabel="offered load / FIFO's knee", ylabel="% of penstock's peak")
    axes.set_xscale("log")
    axes.set_xticks(list(ours), [f"{load:g}x" for load in ours])
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _median_goodput(figures: FiguresBySeed, load: float) -> float:
    return median(float(each[GOODPUT]) for each in figures[load])


LOADS = (0.8, 1.0, 1.5, 3.0, 10.0)  # multiples of the knee
MAX_PEAK_LOAD = 1.5  # the highest of them that the peak is looked for in: beyond, short requests get in more often
MIN_GOODPUT_PERCENT = {3.0: 95.0, 10.0: 90.0}  # % of the peak, by load
MAX_LATE_PERCENT = 1.0  # % of what was admitted
DECLARED_NOISE = 0.6  # by which what callers declare is off
MAX_NOISE_COST_PERCENT = 10.0  # % of goodput
MAX_WASTED_PERCENT = 1.0  # % of engine tokens
ABANDONING_CLIENTS = ClientBehavior(patience=5.0, leave_share=0.3, leave_within=5.0, deadline=15.0)
MAX_TTFT_ERROR_PERCENT = 20.0  # % of the time to the first token
MAX_REPLAYED_REJECTIONS = 10
MAX_EXCESS_REJECTIONS_PERCENT = 5.0  # % of refusals
BASELINES = {
    "fifo": "unbounded FIFO",
    "bounded_fifo": "FIFO of 64",
    "codel": "folly's CoDel",
    "adaptive_lifo": "adaptive LIFO",
    "gradient": "Envoy's gradient",
    "round_robin": "flows in turn, TTL 1 s",
    "vtc": "plain VTC",
}
GOODPUT_KEYS = {"tokens": "goodput_weighted_tokens_per_s", "requests": "goodput_requests_per_s"}

Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadOptions:
    seeds: int = 4
    plot: Path | None = None


@dataclass(slots=True)
class LoadSweep:
    """Figures by load, a list of them by seed."""

    figures: dict[float, list[Figures]] = field(default_factory=dict)

    def percent_of_peak(self, load: float, kind: str) -> list[float]:
        """Return the % of each seed's peak that is left at `load`."""
        of_seeds = zip(
            *([each[GOODPUT_KEYS[kind]] for each in self.figures[at]] for at in self.figures if at <= MAX_PEAK_LOAD),
            strict=True,
        )
        peaks = [max(values) or 1.0 for values in of_seeds]
        return [100 * each[GOODPUT_KEYS[kind]] / peak for each, peak in zip(self.figures[load], peaks, strict=True)]


async def overload(options: OverloadOptions, _: MeshOptions, console: Console) -> ProofCard:
    return await asyncio.to_thread(prove, options, console)


def prove(options: OverloadOptions, console: Console) -> ProofCard:
    with progress_reporter(console) as say, process_pool(say) as cores:
        say("looking for the load that FIFO still serves")
        limit = knee_load(overload_scenario(0, 1.0))
        seeds = range(options.seeds)
        ours = sweep_loads("penstock", LOADS, seeds, limit, cores)
        others = {
            policy: sweep_loads(policy, (1.0, *MIN_GOODPUT_PERCENT), range(2), limit, cores) for policy in BASELINES
        }
        card = ProofCard(proof="overload")
        card.lines.append(reported("knee of FIFO", limit * 16.0, "requests/s"))
        card.lines += goodput_lines(ours)
        card.lines += baseline_lines(others, ours)
        card.lines += noise_lines(
            cores.map(simulate, _noisy_scenarios(seeds, 3.0 * limit), "worlds of unknown lengths"), ours
        )
        card.lines += abandoned_work_lines(
            cores.map(simulate, _abandoning_scenarios(seeds, 3.0 * limit), "worlds of clients that leave")
        )
        say("what was predicted, and whom a clairvoyant would have refused")
        runs = [Simulation(overload_scenario(seed, 3.0 * limit)).run() for seed in seeds]
        card.lines += prediction_lines(runs)
        card.lines += excess_rejection_lines(runs)
        card.notes.append(
            "refused that alone would have met the SLO: there is always a place for one more, never for all"
        )
    if options.plot:
        plot_overload(ours.figures, {BASELINES[name]: each.figures for name, each in others.items()}, options.plot)
        card.notes.append(f"plot: {options.plot}")
    return card


def overload_scenario(seed: int, load: float, policy: str = "penstock", **tenant: Any) -> Scenario:
    asking = chat_tenant(arrivals_for_seed(seed), **tenant)
    found = proof_scenario("overload", asking, policy=policy, seed=seed, duration=50.0, warm_up=10.0, load=load)
    is_short = policy == "bounded_fifo"
    return replace(found, queues=replace(found.queues, max_depth=64)) if is_short else found


def simulate(scenario: Scenario) -> Figures:
    simulation = Simulation(scenario).run()
    return {**figures_of(simulation), "late_share": _late_share(simulation)}


def sweep_loads(
    policy: str, loads: Sequence[float], seeds: Sequence[int], limit: float, pool: ProcessPool
) -> LoadSweep:
    asked = [overload_scenario(seed, load * limit, policy) for load in loads for seed in seeds]
    found = iter(pool.map(simulate, asked, f"worlds of {policy}"))
    return LoadSweep({load: list(islice(found, len(seeds))) for load in loads})


def goodput_lines(ours: LoadSweep) -> list[CardLine]:
    lines = []
    for load, goal in MIN_GOODPUT_PERCENT.items():
        for kind in GOODPUT_KEYS:
            lines += worst_at_least(
                f"goodput in {kind} at {load:g}x, of the peak", ours.percent_of_peak(load, kind), goal
            )
        late = [100 * each["late_share"] for each in ours.figures[load]]
        lines += worst_at_most(f"admitted and late at {load:g}x", late, MAX_LATE_PERCENT)
    return lines


def baseline_lines(others: Mapping[str, LoadSweep], ours: LoadSweep) -> list[CardLine]:
    """A steady and a bursty seed, as % of the peak that the mesh has with them."""
    peak = max(_total_tokens(ours, load) for load in LOADS if load <= MAX_PEAK_LOAD) / 100
    return [
        line
        for name, found in others.items()
        for load in MIN_GOODPUT_PERCENT
        for line in (
            reported(f"{BASELINES[name]} at {load:g}x, of our peak", _total_tokens(found, load) / peak, "%"),
            reported(f"{BASELINES[name]} at {load:g}x, late", 50 * sum(_late_shares(found, load)), "%"),
        )
    ]


def noise_lines(noisy: Sequence[Figures], ours: LoadSweep) -> list[CardLine]:
    """What callers declare is up to four times too much, and says little of what comes."""
    kind = GOODPUT_KEYS["tokens"]
    costs = [100 - 100 * each[kind] / known[kind] for each, known in zip(noisy, ours.figures[3.0], strict=True)]
    return worst_at_most("goodput lost where lengths are unknown", costs, MAX_NOISE_COST_PERCENT)


def abandoned_work_lines(runs: Sequence[Figures]) -> list[CardLine]:
    wasted = [100 * each["engine_tokens_abandoned"] / each["engine_tokens"] for each in runs]
    return worst_at_most("engine tokens for clients that had left, 30 % do", wasted, MAX_WASTED_PERCENT)


def prediction_lines(runs: Sequence[Simulation]) -> list[CardLine]:
    """How far first tokens came from what was predicted when their tickets came in."""
    by_seed = [_predicted_ttfts(seen) for seen in runs]
    errors = [[100 * abs(said - first) / first for said, first in pairs] for pairs in by_seed]
    everyone = [error for seed in errors for error in seed]
    target = runs[0].scenario.targets.ttft
    of_target = [100 * abs(said - first) / target for pairs in by_seed for said, first in pairs]
    assert everyone, "where three times too much comes, first tokens are predicted"
    return [
        reported("error of the first token predicted at 3x, P50", percentile(everyone, 0.5), "%"),
        at_most(
            "error of the first token predicted at 3x, P95", percentile(everyone, 0.95), MAX_TTFT_ERROR_PERCENT, "%"
        ),
        reported("the same of the worst seed", max(percentile(seed, 0.95) for seed in errors), "%"),
        reported("P95 of it as a share of the SLO", percentile(of_target, 0.95), "%"),
    ]


def excess_rejection_lines(runs: Sequence[Simulation]) -> list[CardLine]:
    """Whom we refuse beyond what a clairvoyant has to, by requests and by tokens.

    Beside it what would have come of some of the refused, had each been the only one more: at the limit nearly all of
    them would have been in time, as there is always a little slack, and next to none of them together.
    """
    beyond = [_excess_over_clairvoyant(seen) for seen in runs]
    first = runs[0]
    sampled = _rejected(first)[:: len(_rejected(first)) // MAX_REPLAYED_REJECTIONS + 1]
    alone = sum(_would_meet_slo(first.scenario, each.transcript.number) for each in sampled)
    return [
        *(
            line
            for place, kind in enumerate(GOODPUT_KEYS)
            for line in worst_at_most(
                f"refused beyond a clairvoyant's at 3x, in {kind}",
                [each[place] for each in beyond],
                MAX_EXCESS_REJECTIONS_PERCENT,
            )
        ),
        reported("refused that alone would have met the SLO at 3x", 100 * alone / len(sampled), "%"),
    ]


def _predicted_ttfts(simulation: Simulation) -> list[tuple[float, float]]:
    """Return what was predicted and what came, in s, of requests that came after the warm-up."""
    return [
        (each.predicted_ttft, first)
        for each in _requests_after_warm_up(simulation)
        if each.predicted_ttft is not None and (first := each.transcript.ttft) is not None
    ]


def _excess_over_clairvoyant(simulation: Simulation) -> tuple[float, float]:
    """Return weighted tokens and requests refused beyond a clairvoyant's, in % of ours; below 0: fewer."""
    ours, warm_up = _rejected(simulation), simulation.scenario.warm_up
    theirs = clairvoyant.clairvoyant_rejections(
        simulation.ledger.requests, simulation.scenario.workers[0], simulation.scenario.targets.ttft
    )
    theirs = [each for each in theirs if each.transcript.started_at >= warm_up]
    assert ours, "where three times too much comes, somebody is refused"
    tokens = 100 - 100 * sum(map(weighted_tokens, theirs)) / sum(map(weighted_tokens, ours))
    return tokens, 100 - 100 * len(theirs) / len(ours)


def _requests_after_warm_up(simulation: Simulation) -> list[SimRequest]:
    return [each for each in simulation.ledger.requests if each.transcript.started_at >= simulation.scenario.warm_up]


def _rejected(simulation: Simulation) -> list[SimRequest]:
    return [each for each in _requests_after_warm_up(simulation) if each.transcript.outcome == "OVERLOADED"]


def _would_meet_slo(scenario: Scenario, number: int) -> bool:
    """Run all that again with this one let in."""
    let_in: QueueSettings = replace(scenario.queues, exempt_tickets=frozenset({f"{number}.1"}))
    history = Simulation(replace(scenario, queues=let_in)).run().ledger.requests[number].transcript
    return history.outcome == OK and (history.ttft or 0.0) <= scenario.targets.ttft


def _total_tokens(found: LoadSweep, load: float) -> float:
    return float(sum(each[GOODPUT_KEYS["tokens"]] for each in found.figures[load][:2]))


def _late_shares(found: LoadSweep, load: float) -> list[float]:
    return [each["late_share"] for each in found.figures[load][:2]]


def _late_share(simulation: Simulation) -> float:
    """Of requests that got a first token, those that came after the warm-up; where none did, all are late."""
    firsts = [first for each in _requests_after_warm_up(simulation) if (first := each.transcript.ttft) is not None]
    return sum(first > simulation.scenario.targets.ttft for first in firsts) / len(firsts) if firsts else 1.0


def _noisy_scenarios(seeds: Sequence[int], load: float) -> list[Scenario]:
    return [overload_scenario(seed, load, over_declare=2.5, declare_noise=DECLARED_NOISE) for seed in seeds]


def _abandoning_scenarios(seeds: Sequence[int], load: float) -> list[Scenario]:
    return [overload_scenario(seed, load, client=ABANDONING_CLIENTS) for seed in seeds]
