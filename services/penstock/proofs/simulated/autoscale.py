"""Workers follow an hour of demand from 0 and back to 0, and all workers of a full pool are replaced, without a loss.

KEDA's control loop drives the pools by the demand that the shards report. The time of the workers is compared with the
plan of a clairvoyant, which pays the same load times.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from penstock.bench.progress import progress_reporter
from penstock.bench.report import Slo
from penstock.bench.statistics import quantile
from penstock.bench.transcript import OK
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, ProofCard, at_least, at_most, exactly, reported
from penstock.proofs.simulated.process_pool import process_pool
from penstock.simulator.autoscaling.clairvoyant import PlannedWorker, WorkItem, clairvoyant_plan, worker_seconds
from penstock.simulator.mesh.autoscaler import ScaleDecision, SimAutoscaler
from penstock.simulator.mesh.request import SimRequest
from penstock.simulator.report.figures import meets_slo
from penstock.simulator.scenario import (
    AutoscaleSettings,
    QueueSettings,
    RollSettings,
    Scenario,
    SimTenant,
    SloTargets,
    WorkerKind,
)
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Poisson, RateWindow
from penstock.simulator.traffic.demand import Demand, LogNormal, SampledDemand
from penstock.simulator.traffic.traces import TraceError, read_azure, trace_errors
from penstock.worker.engine.simulated.step_time import StepTimeModel

DURATION_S = 3_600.0
LOAD_TIME_S = 60.0
MAX_WAIT_FROM_ZERO_S = LOAD_TIME_S + 2.0
MAX_HOURS_RATIO = 1.15  # times the clairvoyant's
SILENCE = (1_200.0, 1_290.0)  # s; no shard reports its demand
COOL_DOWN_S = 600.0  # s after the last answer in which the pool has to reach 0

# As Azure's conversation trace of 2023: 5.5 requests/s in the mean, and 0.7 to 1.7 times of it over minutes.
AZURE_LIKE = SampledDemand(
    Poisson(
        5.5,
        tuple(
            RateWindow(300.0 * place, 300.0 * (place + 1), factor)
            for place, factor in enumerate((1.0, 0.9, 0.75, 1.1, 1.5, 1.7, 1.2, 0.9, 0.7, 0.8, 0.75, 0.7))
        ),
    ),
    LogNormal(mean=1_155.0, sigma=0.9, low=1, high=8_000),
    LogNormal(mean=211.0, sigma=0.7, low=1, high=1_000),
)

ROLLED_WORKERS, ROLL_UNAVAILABLE = 200, 20
ROLL_BEGINS_AT_S, ROLL_DURATION_S = 30.0, 1_100.0
MAX_ROLL_S = 3_600.0
MIN_ROLL_GOODPUT_PERCENT = 95.0
ROLL_SLO = SloTargets(ttft=5.0, tbt=0.6)
# Steps of a very large model, also because 200 workers with short ones take long to simulate.
SLOW_STEPS = StepTimeModel(base_s=0.25, per_prefill_token_s=0.001, per_decode_seq_s=0.001)
ROLL_RATE = 26.0  # requests/s: about three quarters of the slots, so that a tenth of the workers is spare by load alone
ROLL_DEMAND = SampledDemand(
    Poisson(ROLL_RATE),
    LogNormal(mean=1_000.0, sigma=0.7, low=100, high=8_000),
    LogNormal(mean=80.0, sigma=0.7, low=10, high=240),
)


class Pool(NamedTuple):
    """A kind of worker that serves the hour."""

    name: str
    slowdown: float  # times the duration of a step of a mid-size GPU
    judges_wait_from_zero: bool

    @property
    def worker(self) -> WorkerKind:
        usual, factor = StepTimeModel(), self.slowdown
        steps = StepTimeModel(
            base_s=factor * usual.base_s,
            per_prefill_token_s=factor * usual.per_prefill_token_s,
            per_decode_seq_s=factor * usual.per_decode_seq_s,
        )
        return WorkerKind(slots=64, step_time=steps)


# Where the load at the start needs several workers, the first one serves alone until the next decision of the HPA, so
# that the load time bounds no wait.
SMALL_POOL = Pool("1 to 2 workers", 1.0, judges_wait_from_zero=True)
LARGE_POOL = Pool("4 to 15 workers", 8.0, judges_wait_from_zero=False)
POOLS = (SMALL_POOL, LARGE_POOL)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleOptions:
    trace: Path | None = None  # of Azure's format; None: a demand like it


async def autoscale(options: AutoscaleOptions, _: MeshOptions, console: Console) -> ProofCard:
    return await asyncio.to_thread(prove, options, console)


def prove(options: AutoscaleOptions, console: Console) -> ProofCard:
    """Raises ValueError if the trace cannot be read."""
    card, demand = ProofCard(proof="autoscale"), _demand(options.trace)
    with progress_reporter(console) as report_progress, process_pool(report_progress) as pool:
        scenarios = [roll_scenario(), *(hour_scenario(each, demand) for each in POOLS)]
        rolled, *runs = pool.map(simulate, scenarios, "simulations")
    assert isinstance(rolled, RollRun), "the first scenario is the roll"
    for kind, run in zip(POOLS, runs, strict=True):
        assert isinstance(run, HourRun), "the others are hours"
        card.lines += hour_lines(kind, run, clairvoyant_plan(_work(kind, demand), LOAD_TIME_S))
    card.lines += roll_lines(rolled)
    return card


def _demand(trace: Path | None) -> Demand:
    if trace is None:
        return AZURE_LIKE
    try:
        with trace_errors(trace, "azure"):
            return read_azure(trace)
    except TraceError as error:
        raise ValueError(str(error)) from error


def simulate(scenario: Scenario) -> "HourRun | RollRun":
    return simulate_roll(scenario) if scenario.roll else simulate_hour(scenario)


# From 0 to n to 0.


class HourRun(NamedTuple):
    """The outcome of an hour."""

    requests: int
    lost: int
    waits_from_zero: Sequence[float]  # s to the first token, of requests that arrived while no worker served
    ttfts: Sequence[float]  # s, of the other requests
    pod_seconds: float
    peak_pods: int
    pods_at_end: int
    runs_cut: int
    longest_drain: float  # s
    decisions: Sequence[ScaleDecision]


def hour_scenario(pool: Pool, demand: Demand) -> Scenario:
    return Scenario(
        name="autoscale",
        tenants=(SimTenant(name="chat", demand=demand),),
        workers=(pool.worker,),
        queues=QueueSettings(policy="fair"),
        autoscale=AutoscaleSettings(load_time=LOAD_TIME_S, silences=(SILENCE,)),
        duration=DURATION_S,
        drain=600.0,
        sample_every=1.0,
    )


def simulate_hour(scenario: Scenario) -> HourRun:
    simulation = Simulation(scenario)
    pods_over_time: list[int] = []
    simulation.run(lambda each: pods_over_time.append(len(_autoscaler(each).pods.present)))
    simulation.events.run(until=simulation.events.now + COOL_DOWN_S)
    autoscaler, requests = _autoscaler(simulation), simulation.ledger.requests
    pods = autoscaler.pods
    return HourRun(
        requests=len(requests),
        lost=sum(each.transcript.outcome != OK for each in requests),
        waits_from_zero=[_ttft(each) for each in requests if each.was_held],
        ttfts=[_ttft(each) for each in requests if not each.was_held],
        pod_seconds=pods.seconds(simulation.events.now),
        peak_pods=max(pods_over_time),
        pods_at_end=len(pods.present),
        runs_cut=pods.runs_cut,
        longest_drain=pods.longest_drain,
        decisions=autoscaler.decisions,
    )


def hour_lines(pool: Pool, run: HourRun, plan: Sequence[PlannedWorker]) -> Iterator[CardLine]:
    name, wait = pool.name, quantile(run.waits_from_zero, 0.99)
    yield reported(f"{name}: requests", run.requests)
    yield exactly(f"{name}: requests lost", run.lost, 0)
    figure = f"{name}: wait from zero, P99"
    yield (
        at_most(figure, wait, MAX_WAIT_FROM_ZERO_S, "s") if pool.judges_wait_from_zero else reported(figure, wait, "s")
    )
    yield reported(f"{name}: TTFT of the others, median", quantile(run.ttfts, 0.5), "s")
    yield at_most(f"{name}: worker hours / clairvoyant's", run.pod_seconds / worker_seconds(plan), MAX_HOURS_RATIO)
    yield reported(f"{name}: workers, most", run.peak_pods)
    yield exactly(f"{name}: workers at the end", run.pods_at_end, 0)
    yield exactly(f"{name}: streams cut on the way down", run.runs_cut, 0)
    yield reported(f"{name}: longest drain", run.longest_drain, "s")
    silent = silent_decisions(run.decisions)
    yield at_least(f"{name}: decisions without an answer while the queue was silent", len(silent), 1)
    yield exactly(f"{name}: of them that changed the number", len({each.wanted for each in silent}) - 1, 0)


def silent_decisions(decisions: Sequence[ScaleDecision]) -> list[ScaleDecision]:
    return [each for each in decisions if each.workers is None]


def _work(pool: Pool, demand: Demand) -> Iterator[WorkItem]:
    """Yield the time of each prompt at one worker, which is what fills these workers."""
    seconds = pool.worker.step_time.per_prefill_token_s
    for request in demand.requests("0/chat", load=1.0):
        if request.at >= DURATION_S:
            return
        yield WorkItem(request.at, seconds * request.prompt_tokens)


def _autoscaler(simulation: Simulation) -> SimAutoscaler:
    autoscaler = simulation.mesh.autoscaler
    assert autoscaler, "the scenario scales its workers"
    return autoscaler


def _ttft(request: SimRequest) -> float:
    transcript = request.transcript
    return transcript.arrivals[0] - transcript.started_at if transcript.arrivals else float("inf")


# A roll without spare capacity.


class RollRun(NamedTuple):
    """The outcome of a roll."""

    requests: int
    lost: int
    good: int  # requests that met the SLO
    took: float  # s; infinite if it has not ended
    runs_cut: int
    longest_drain: float  # s


def roll_scenario() -> Scenario:
    worker = replace(WorkerKind(slots=4, step_time=SLOW_STEPS), count=ROLLED_WORKERS)
    return Scenario(
        name="roll",
        tenants=(SimTenant(name="chat", demand=ROLL_DEMAND),),
        workers=(worker,),
        queues=QueueSettings(policy="fair"),
        roll=RollSettings(begins_at=ROLL_BEGINS_AT_S, max_unavailable=ROLL_UNAVAILABLE, load_time=LOAD_TIME_S),
        targets=ROLL_SLO,
        duration=ROLL_DURATION_S,
        drain=300.0,
        sample_every=1.0,
    )


def simulate_roll(scenario: Scenario) -> RollRun:
    simulation = Simulation(scenario).run()
    roll, requests = simulation.mesh.roll, simulation.ledger.requests
    assert roll, "the scenario rolls its workers"
    slo = Slo(ttft=scenario.targets.ttft, tpot=scenario.targets.tbt)
    return RollRun(
        requests=len(requests),
        lost=sum(each.transcript.outcome != OK for each in requests),
        good=sum(meets_slo(each, slo) for each in requests),
        took=float("inf") if roll.ended_at is None else roll.ended_at - roll.settings.begins_at,
        runs_cut=roll.pods.runs_cut,
        longest_drain=roll.pods.longest_drain,
    )


def roll_lines(run: RollRun) -> Iterator[CardLine]:
    yield reported(f"roll of {ROLLED_WORKERS}: requests", run.requests)
    yield exactly(f"roll of {ROLLED_WORKERS}: requests lost", run.lost, 0)
    yield exactly(f"roll of {ROLLED_WORKERS}: streams cut", run.runs_cut, 0)
    yield at_least(f"roll of {ROLLED_WORKERS}: goodput", 100 * run.good / run.requests, MIN_ROLL_GOODPUT_PERCENT, "%")
    yield at_most(f"roll of {ROLLED_WORKERS}: duration", run.took, MAX_ROLL_S, "s")
    yield reported(f"roll of {ROLLED_WORKERS}: longest drain", run.longest_drain, "s")
