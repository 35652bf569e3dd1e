"""Goodput far beyond the knee stays near its peak and in time, compared with other scheduling policies."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from penstock.bench.plot import new_figure
from penstock.bench.progress import progress_reporter
from penstock.bench.statistics import quantile
from penstock.bench.transcript import OK
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, ProofCard, at_most, reported
from penstock.proofs.simulated import clairvoyant
from penstock.proofs.simulated.process_pool import ProcessPool, process_pool
from penstock.proofs.simulated.scenarios import (
    arrivals_for_seed,
    chat_tenant,
    proof_scenario,
    worst_at_least,
    worst_at_most,
)
from penstock.simulator.capacity_plan import knee_load
from penstock.simulator.mesh.request import SimRequest
from penstock.simulator.report.figures import figures_of, weighted_tokens
from penstock.simulator.scenario import ClientBehavior, QueueSettings, Scenario
from penstock.simulator.simulation import Simulation

GOODPUT = "goodput_weighted_tokens_per_s"

FiguresBySeed = Mapping[float, Sequence[Mapping[str, Any]]]  # by load: the figures of each seed


def plot_overload(ours: FiguresBySeed, others: Mapping[str, FiguresBySeed], path: Path) -> None:
    peak = max(_median_goodput(ours, load) for load in ours)
    with new_figure(path, width=8.0, height=4.6) as (axes,):
        for name, figures in {"penstock": ours, **others}.items():
            style: dict[str, Any] = {"linewidth": 3, "color": "black"} if name == "penstock" else {"alpha": 0.8}
            shares = [100 * _median_goodput(figures, load) / peak for load in figures]
            axes.plot(list(figures), shares, marker="o", label=name, **style)
        axes.set(title="Goodput past the knee", xlabel="offered load / FIFO's knee", ylabel="% of penstock's peak")
        axes.set_xscale("log")
        axes.set_xticks(list(ours), [f"{load:g}x" for load in ours])
        axes.set_ylim(bottom=0)


def _median_goodput(figures: FiguresBySeed, load: float) -> float:
    return median(float(each[GOODPUT]) for each in figures[load])


LOADS = (0.8, 1.0, 1.5, 3.0, 10.0)  # multiples of the knee
MAX_PEAK_LOAD = 1.5  # the peak is that of loads up to this; beyond, short requests are admitted more often
MIN_GOODPUT_PERCENT = {3.0: 95.0, 10.0: 90.0}  # % of the peak, by load
MAX_LATE_PERCENT = 1.0  # % of admitted requests
DECLARED_NOISE = 0.6  # relative error of declared lengths
MAX_NOISE_COST_PERCENT = 10.0  # % of goodput
MAX_WASTED_PERCENT = 1.0  # % of engine tokens
ABANDONING_CLIENTS = ClientBehavior(patience=5.0, leave_share=0.3, leave_within=5.0, deadline=15.0)
MAX_TTFT_ERROR_PERCENT = 20.0  # % of the TTFT
MAX_REPLAYED_REJECTIONS = 10
MAX_EXCESS_REJECTIONS_PERCENT = 5.0  # % of rejections
MAX_CLAIRVOYANT_WORKERS = 4
MAX_CLAIRVOYANT_REQUESTS = 2_000  # after the warm-up
BASELINES = {
    "fifo": "unbounded FIFO",
    "bounded_fifo": "FIFO of 64",
    "codel": "folly's CoDel",
    "adaptive_lifo": "adaptive LIFO",
    "gradient": "Envoy's gradient",
    "round_robin": "round robin over flows, TTL 1 s",
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
    """Figures by load, one for each seed."""

    figures: dict[float, list[Figures]] = field(default_factory=dict)

    def percent_of_peak(self, load: float, kind: str) -> list[float]:
        """Return the goodput at `load` in % of the peak, for each seed."""
        goodputs = zip(
            *([each[GOODPUT_KEYS[kind]] for each in self.figures[at]] for at in self.figures if at <= MAX_PEAK_LOAD),
            strict=True,
        )
        peaks = [max(values) or 1.0 for values in goodputs]
        return [100 * each[GOODPUT_KEYS[kind]] / peak for each, peak in zip(self.figures[load], peaks, strict=True)]


async def overload(options: OverloadOptions, _: MeshOptions, console: Console) -> ProofCard:
    return await asyncio.to_thread(prove, options, console)


def prove(options: OverloadOptions, console: Console) -> ProofCard:
    with progress_reporter(console) as report_progress, process_pool(report_progress) as pool:
        report_progress("searching the load that FIFO still serves")
        knee = knee_load(overload_scenario(0, 1.0))
        seeds = range(options.seeds)
        ours = sweep_loads("penstock", LOADS, seeds, knee, pool)
        others = {
            policy: sweep_loads(policy, (1.0, *MIN_GOODPUT_PERCENT), range(2), knee, pool) for policy in BASELINES
        }
        card = ProofCard(proof="overload")
        card.lines.append(reported("knee of FIFO", knee * 16.0, "requests/s"))
        card.lines += goodput_lines(ours)
        card.lines += baseline_lines(others, ours)
        card.lines += noise_lines(
            pool.map(simulate, _noisy_scenarios(seeds, 3.0 * knee), "runs with unknown lengths"), ours
        )
        card.lines += abandoned_work_lines(
            pool.map(simulate, _abandoning_scenarios(seeds, 3.0 * knee), "runs with clients that leave")
        )
        report_progress("predictions, and rejections of a clairvoyant")
        runs = [Simulation(overload_scenario(seed, 3.0 * knee)).run() for seed in seeds]
        card.lines += prediction_lines(runs)
        card.lines += excess_rejection_lines(runs)
        card.notes.append(
            "rejected requests that alone would have met the SLO: there is room for one more, but not for all of them"
        )
    if options.plot:
        plot_overload(ours.figures, {BASELINES[name]: each.figures for name, each in others.items()}, options.plot)
        card.notes.append(f"plot: {options.plot}")
    return card


def overload_scenario(seed: int, load: float, policy: str = "penstock", **fields: Any) -> Scenario:
    tenant = chat_tenant(arrivals_for_seed(seed), **fields)
    scenario = proof_scenario("overload", tenant, policy=policy, seed=seed, duration=50.0, warm_up=10.0, load=load)
    if policy == "bounded_fifo":
        return replace(scenario, queues=replace(scenario.queues, max_depth=64))
    return scenario


def simulate(scenario: Scenario) -> Figures:
    return figures_with_late_share(Simulation(scenario).run())


def figures_with_late_share(simulation: Simulation) -> Figures:
    return {**figures_of(simulation), "late_share": _late_share(simulation)}


def sweep_loads(policy: str, loads: Sequence[float], seeds: Sequence[int], knee: float, pool: ProcessPool) -> LoadSweep:
    scenarios = [overload_scenario(seed, load * knee, policy) for load in loads for seed in seeds]
    figures = iter(pool.map(simulate, scenarios, f"runs of {policy}"))
    return LoadSweep({load: list(islice(figures, len(seeds))) for load in loads})


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
    """Goodput of each policy for a steady and a bursty seed, in % of the mesh's peak."""
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
    """Declared lengths are up to four times too long, and only loosely related to the real ones."""
    kind = GOODPUT_KEYS["tokens"]
    costs = [100 - 100 * each[kind] / known[kind] for each, known in zip(noisy, ours.figures[3.0], strict=True)]
    return worst_at_most("goodput lost with unknown lengths", costs, MAX_NOISE_COST_PERCENT)


def abandoned_work_lines(runs: Sequence[Figures]) -> list[CardLine]:
    wasted = [100 * each["engine_tokens_abandoned"] / each["engine_tokens"] for each in runs]
    return worst_at_most("engine tokens for clients that had left (30 % leave)", wasted, MAX_WASTED_PERCENT)


def prediction_lines(runs: Sequence[Simulation]) -> list[CardLine]:
    """The error of the TTFT that was predicted when a ticket arrived."""
    by_seed = [_predicted_ttfts(run) for run in runs]
    errors = [[100 * abs(predicted - ttft) / ttft for predicted, ttft in pairs] for pairs in by_seed]
    every = [error for seed in errors for error in seed]
    target = runs[0].scenario.targets.ttft
    of_target = [100 * abs(predicted - ttft) / target for pairs in by_seed for predicted, ttft in pairs]
    assert every, "an overloaded queue predicts TTFTs"
    return [
        reported("error of the predicted TTFT at 3x, P50", quantile(every, 0.5), "%"),
        at_most("error of the predicted TTFT at 3x, P95", quantile(every, 0.95), MAX_TTFT_ERROR_PERCENT, "%"),
        reported("P95 of the worst seed", max(quantile(seed, 0.95) for seed in errors), "%"),
        reported("P95 in % of the SLO", quantile(of_target, 0.95), "%"),
    ]


def excess_rejection_lines(runs: Sequence[Simulation]) -> list[CardLine]:
    """Rejections beyond those of a clairvoyant, by requests and by tokens.

    A sample of the rejected requests is replayed, each as the only additional one. Nearly all of them meet the SLO,
    because there is always a little slack; together, almost none would.
    """
    excess = [excess_rejections(run) for run in runs]
    first = runs[0]
    sampled = _rejected(first)[:: len(_rejected(first)) // MAX_REPLAYED_REJECTIONS + 1]
    alone = sum(_would_meet_slo(first.scenario, each.transcript.number) for each in sampled)
    return [
        *(
            line
            for place, kind in enumerate(GOODPUT_KEYS)
            for line in worst_at_most(
                f"rejected beyond a clairvoyant's at 3x, in {kind}",
                [each[place] for each in excess],
                MAX_EXCESS_REJECTIONS_PERCENT,
            )
        ),
        reported("rejected that alone would have met the SLO at 3x", 100 * alone / len(sampled), "%"),
    ]


def _predicted_ttfts(simulation: Simulation) -> list[tuple[float, float]]:
    """Return predicted and real TTFT in s, of requests that arrived after the warm-up."""
    return [
        (each.predicted_ttft, ttft)
        for each in _requests_after_warm_up(simulation)
        if each.predicted_ttft is not None and (ttft := each.transcript.ttft) is not None
    ]


def excess_rejections(simulation: Simulation) -> tuple[float, float]:
    """Return the excess of our rejections over a clairvoyant's in weighted tokens and in requests, in % of ours."""
    compared = compare_rejections(simulation)
    assert compared.ours.requests, "an overloaded mesh rejects requests"
    return compared.excess_percent("tokens"), compared.excess_percent("requests")


@dataclass(slots=True)
class Rejections:
    """Rejected requests, and their weighted tokens."""

    requests: int = 0
    tokens: float = 0.0

    def add(self, rejected: Sequence[SimRequest]) -> None:
        self.requests += len(rejected)
        self.tokens += sum(map(weighted_tokens, rejected))

    def of(self, kind: str) -> float:
        return self.tokens if kind == "tokens" else self.requests


@dataclass(slots=True)
class ComparedRejections:
    """Our rejections and those of a clairvoyant of the same requests."""

    ours: Rejections = field(default_factory=Rejections)
    theirs: Rejections = field(default_factory=Rejections)

    def excess_percent(self, kind: str) -> float:
        """Return the excess of ours in % of ours; 0 if we rejected none."""
        return 100 - 100 * self.theirs.of(kind) / self.ours.of(kind) if self.ours.requests else 0.0


def compare_rejections(simulation: Simulation, *, max_parts: int = 1, min_s: float = 0.0) -> ComparedRejections:
    """Compare the rejections of up to `max_parts` parts of the requests with those of a clairvoyant.

    The clairvoyant has at most MAX_CLAIRVOYANT_WORKERS workers and an equal part of the requests, because its cost
    grows with both: up to MAX_CLAIRVOYANT_REQUESTS, or those of `min_s` s after the warm-up if they are more.
    """
    scenario = simulation.scenario
    parts = -(-scenario.worker_count // MAX_CLAIRVOYANT_WORKERS)
    workers, target, found = scenario.worker_count // parts, scenario.targets.ttft, ComparedRejections()
    for part in range(min(parts, max_parts)):
        offered = simulation.ledger.requests[part::parts]
        before = sum(each.transcript.started_at < scenario.warm_up for each in offered)
        in_time = sum(each.transcript.started_at < scenario.warm_up + min_s for each in offered) - before
        offered = offered[: before + max(MAX_CLAIRVOYANT_REQUESTS, in_time)]
        found.ours.add([each for each in offered[before:] if each.transcript.outcome == "OVERLOADED"])
        rejected = clairvoyant.clairvoyant_rejections(offered, scenario.workers[0], target, workers)
        found.theirs.add([each for each in rejected if each.transcript.started_at >= scenario.warm_up])
    return found


def _requests_after_warm_up(simulation: Simulation) -> list[SimRequest]:
    return [each for each in simulation.ledger.requests if each.transcript.started_at >= simulation.scenario.warm_up]


def _rejected(simulation: Simulation) -> list[SimRequest]:
    return [each for each in _requests_after_warm_up(simulation) if each.transcript.outcome == "OVERLOADED"]


def _would_meet_slo(scenario: Scenario, number: int) -> bool:
    """Run the scenario again with this request admitted."""
    queues: QueueSettings = replace(scenario.queues, exempt_tickets=frozenset({f"{number}.1"}))
    transcript = Simulation(replace(scenario, queues=queues)).run().ledger.requests[number].transcript
    return transcript.outcome == OK and (transcript.ttft or 0.0) <= scenario.targets.ttft


def _total_tokens(found: LoadSweep, load: float) -> float:
    return float(sum(each[GOODPUT_KEYS["tokens"]] for each in found.figures[load][:2]))


def _late_shares(found: LoadSweep, load: float) -> list[float]:
    return [each["late_share"] for each in found.figures[load][:2]]


def _late_share(simulation: Simulation) -> float:
    """Return the share of late first tokens after the warm-up; 1 if there was no first token."""
    firsts, late = count_late(simulation)
    return late / firsts if firsts else 1.0


def count_late(simulation: Simulation) -> tuple[int, int]:
    """Return the number of first tokens after the warm-up, and of the late ones among them."""
    firsts = [first for each in _requests_after_warm_up(simulation) if (first := each.transcript.ttft) is not None]
    return len(firsts), sum(first > simulation.scenario.targets.ttft for first in firsts)


def _noisy_scenarios(seeds: Sequence[int], load: float) -> list[Scenario]:
    return [overload_scenario(seed, load, over_declare=2.5, declare_noise=DECLARED_NOISE) for seed in seeds]


def _abandoning_scenarios(seeds: Sequence[int], load: float) -> list[Scenario]:
    return [overload_scenario(seed, load, client=ABANDONING_CLIENTS) for seed in seeds]
