"""After a burst, with clients that try again and again, all is as before within seconds, and never stays down."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import Console

from penstock.bench.history import OK, History
from penstock.bench.progress import saying
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import Card, at_least, at_most, told
from penstock.proofs.simulated.parallel import all_cores
from penstock.proofs.simulated.scenarios import RATE, chat, world
from penstock.simulator.scenario import Client, Scenario
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Poisson, Window

CALM = 0.7  # times what FIFO can serve
BURST = 3.0
BEGIN, END, DURATION = 20.0, 50.0, 80.0  # s
SPAN = 5.0  # s of requests that success is taken over
SUCCESS = 0.95
WITHIN = 5.0  # s
STUBBORN = Client(patience=5.0, retries=3, backoff=0.5)
BASELINES = {
    "fifo": "unbounded FIFO",
    "fifo_connected": "unbounded FIFO that minds who left",
    "codel": "folly's CoDel",
    "adaptive_lifo": "adaptive LIFO",
    "gradient": "Envoy's gradient",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    seeds: int = 20


async def recovery(asked: RecoveryOptions, _: MeshOptions, console: Console) -> Card:
    return await asyncio.to_thread(prove, asked, console)


def prove(asked: RecoveryOptions, console: Console) -> Card:
    card = Card(proof="recovery")
    with saying(console) as say, all_cores(say) as cores:
        ours = cores.each_of(burst, [scenario(seed, "penstock") for seed in range(asked.seeds)], "bursts")
        others = cores.each_of(burst, [scenario(0, policy) for policy in BASELINES], "bursts with others' policies")
    times, attempts = zip(*ours, strict=True)
    within = sum(each <= WITHIN for each in times)
    card.lines += [
        told("bursts", asked.seeds),
        at_least(f"of them over within {WITHIN:g} s", 100 * within / asked.seeds, 100.0, "%"),
        told("recovered after, median", median(times), "s"),
        at_most("recovered after, worst", max(times), WITHIN, "s"),
        told("attempts per request, median", median(attempts)),
        *(
            told(f"{name}: recovered after", after, "s")
            for name, (after, _) in zip(BASELINES.values(), others, strict=True)
        ),
    ]
    card.notes.append(f"{DURATION - END - SPAN:g} s: not while it was looked at")
    return card


def scenario(seed: int, policy: str) -> Scenario:
    burst = Window(BEGIN, END, BURST / CALM)
    asking = chat(Poisson(CALM * RATE, (burst,)), client=STUBBORN)
    return world("recovery", asking, policy=policy, seed=seed, duration=DURATION)


def burst(asked: Scenario) -> tuple[float, float]:
    """Return the s after which it was over, and the attempts per request."""
    requests = Simulation(asked).run().ledger.requests
    return recovered_after([each.history for each in requests]), sum(each.tries for each in requests) / len(requests)


def recovered_after(histories: Sequence[History]) -> float:
    """Return the s after the burst from which on requests of any `SPAN` s succeed again; all that is left: never."""
    after = 0.0
    for second in range(int(DURATION - END - SPAN) + 1):
        begin = END + second
        spoken = [each.outcome == OK for each in histories if begin <= each.started < begin + SPAN]
        if spoken and sum(spoken) < SUCCESS * len(spoken):
            after = second + 1.0
    return min(after, DURATION - END - SPAN)
