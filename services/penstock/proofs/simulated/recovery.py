"""After a burst with clients that retry, the success rate recovers within seconds."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import Console

from penstock.bench.progress import progress_reporter
from penstock.bench.transcript import OK, Transcript
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import ProofCard, at_least, at_most, reported
from penstock.proofs.simulated.process_pool import process_pool
from penstock.proofs.simulated.scenarios import FIFO_CAPACITY_RPS, chat_tenant, proof_scenario
from penstock.simulator.scenario import ClientBehavior, Scenario
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Poisson, RateWindow

BASE_LOAD = 0.7  # times the load that FIFO can serve
BURST_LOAD = 3.0
BURST_START_S, BURST_END_S, DURATION_S = 20.0, 50.0, 80.0  # s
SUCCESS_WINDOW_S = 5.0  # s of requests over which the success rate is measured
MIN_SUCCESS_SHARE = 0.95
MAX_RECOVERY_S = 5.0  # s
RETRYING_CLIENTS = ClientBehavior(patience=5.0, retries=3, backoff=0.5)
BASELINES = {
    "fifo": "unbounded FIFO",
    "fifo_connected": "unbounded FIFO that cancels abandoned requests",
    "codel": "folly's CoDel",
    "adaptive_lifo": "adaptive LIFO",
    "gradient": "Envoy's gradient",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    seeds: int = 20


async def recovery(options: RecoveryOptions, _: MeshOptions, console: Console) -> ProofCard:
    return await asyncio.to_thread(prove, options, console)


def prove(options: RecoveryOptions, console: Console) -> ProofCard:
    card = ProofCard(proof="recovery")
    with progress_reporter(console) as report_progress, process_pool(report_progress) as pool:
        ours = pool.map(
            simulate_burst, [recovery_scenario(seed, "penstock") for seed in range(options.seeds)], "bursts"
        )
        others = pool.map(
            simulate_burst, [recovery_scenario(0, policy) for policy in BASELINES], "bursts with other policies"
        )
    times, attempts = zip(*ours, strict=True)
    within = sum(each <= MAX_RECOVERY_S for each in times)
    card.lines += [
        reported("bursts", options.seeds),
        at_least(f"of them recovered within {MAX_RECOVERY_S:g} s", 100 * within / options.seeds, 100.0, "%"),
        reported("recovered after, median", median(times), "s"),
        at_most("recovered after, worst", max(times), MAX_RECOVERY_S, "s"),
        reported("attempts per request, median", median(attempts)),
        *(
            reported(f"{name}: recovered after", after, "s")
            for name, (after, _) in zip(BASELINES.values(), others, strict=True)
        ),
    ]
    card.notes.append(f"{DURATION_S - BURST_END_S - SUCCESS_WINDOW_S:g} s: not within the run")
    return card


def recovery_scenario(seed: int, policy: str) -> Scenario:
    burst = RateWindow(BURST_START_S, BURST_END_S, BURST_LOAD / BASE_LOAD)
    tenant = chat_tenant(Poisson(BASE_LOAD * FIFO_CAPACITY_RPS, (burst,)), client=RETRYING_CLIENTS)
    return proof_scenario("recovery", tenant, policy=policy, seed=seed, duration=DURATION_S)


def simulate_burst(scenario: Scenario) -> tuple[float, float]:
    """Return the recovery time in s, and the attempts per request."""
    requests = Simulation(scenario).run().ledger.requests
    attempts = sum(request.attempts for request in requests) / len(requests)
    return recovery_time([request.transcript for request in requests]), attempts


def recovery_time(transcripts: Sequence[Transcript]) -> float:
    """Return the s after the burst from which every window succeeds; without recovery, the rest of the run."""
    recovered_after = 0.0
    for second in range(int(DURATION_S - BURST_END_S - SUCCESS_WINDOW_S) + 1):
        begin = BURST_END_S + second
        successes = [each.outcome == OK for each in transcripts if begin <= each.started_at < begin + SUCCESS_WINDOW_S]
        if successes and sum(successes) < MIN_SUCCESS_SHARE * len(successes):
            recovered_after = second + 1.0
    return min(recovered_after, DURATION_S - BURST_END_S - SUCCESS_WINDOW_S)
