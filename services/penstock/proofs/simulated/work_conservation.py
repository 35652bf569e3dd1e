"""Work conservation: no ticket waits while a worker could run it, checked after every step of every worker."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from rich.console import Console

from penstock.bench.progress import progress_reporter
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import ProofCard, exactly, reported
from penstock.proofs.simulated.scenarios import (
    FIFO_CAPACITY_RPS,
    WORKER,
    arrivals_for_seed,
    chat_tenant,
    proof_scenario,
    queue_settings,
    worst_at_least,
)
from penstock.simulator.mesh.event_queue import SimEventQueue
from penstock.simulator.mesh.mesh import SimMesh
from penstock.simulator.mesh.shard import LOOP_TURN_S
from penstock.simulator.mesh.worker import SimWorker
from penstock.simulator.scenario import Scenario, SchedulerSettings, WorkerKind
from penstock.simulator.simulation import Simulation

# Frames from an edge to a step, each of which takes `link_delay`: enqueue, offer, place, lease, start, release.
LINK_HOPS = 6
LOAD_FACTOR = 0.9  # times the load that FIFO can serve
MIN_THROUGHPUT_PERCENT = 99.0  # % of FIFO's


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkConservationOptions:
    seeds: int = 5


class ObservedMesh(SimMesh):
    """Counts the steps during which a worker had room for a ticket that had waited for longer than a step."""

    def __init__(self, scenario: Scenario, events: SimEventQueue) -> None:
        self.steps = self.idle_steps = self.steps_with_waiting = 0
        self._step_started_at: dict[str, float] = {}
        super().__init__(scenario, events)

    @property
    def observes_steps(self) -> bool:
        return True

    def on_step(self, worker: SimWorker) -> None:
        super().on_step(worker)
        now = self._events.now
        duration = now - self._step_started_at.get(worker.name, now)
        self._step_started_at[worker.name] = now
        self.steps += 1
        waiting = [ticket for shard in self.shards.values() for ticket in shard.book.tickets.values()]
        self.steps_with_waiting += bool(waiting)
        max_wait = duration + LINK_HOPS * self._scenario.link_delay + LOOP_TURN_S
        free_tokens = {True: free_kv_tokens(worker), False: free_kv_tokens(worker, self._express_slots)}
        self.idle_steps += any(
            now - each.arrived > max_wait and each.tokens <= free_tokens[each.is_expedited] for each in waiting
        )

    @property
    def _express_slots(self) -> int:
        """Slots that may be reserved for express tickets, all of which may be those of one worker."""
        share = self._scenario.schedulers.express_slot_share
        return int(share * sum(worker.kind.slots for worker in self._workers.values()))


def free_kv_tokens(worker: SimWorker, reserved_slots: int = 0) -> int:
    """Return the KV tokens that were free during the step that just ended; 0 if it had no free slot or token budget.

    `reserved_slots` count as taken. Runs that ended in this step count as active, because their room is free only when
    a scheduler has received the report.
    """
    kind, runs = worker.kind, worker.runs.values()
    has_budget = worker.engine.occupancy().prefill_backlog_tokens + len(runs) < kind.batching.token_budget
    held = sum(-(-(run.prompt_tokens + run.max_output_tokens) // kind.block_size) for run in runs)
    return (kind.kv_blocks - held) * kind.block_size if has_budget and len(runs) + reserved_slots < kind.slots else 0


async def work_conservation(options: WorkConservationOptions, _: MeshOptions, console: Console) -> ProofCard:
    return await asyncio.to_thread(prove, options, console)


def prove(options: WorkConservationOptions, console: Console) -> ProofCard:
    steps = idle = with_waiting = 0
    with progress_reporter(console) as report_progress:
        for seed in range(options.seeds):
            report_progress(f"seed {seed} of {options.seeds}")
            mesh = simulate_observed(seed)
            steps, idle = steps + mesh.steps, idle + mesh.idle_steps
            with_waiting += mesh.steps_with_waiting
        report_progress("throughput compared with FIFO")
        seeds = range(options.seeds)
        fifo = [simulate_below_limit(seed, "fifo") for seed in seeds]
        ordered = _percent_of([simulate_below_limit(seed, "fair") for seed in seeds], fifo)
        with_targets = [simulate_below_limit(seed, "penstock") for seed in seeds]
        admitted, in_time = _percent_of(with_targets, fifo), _percent_of(with_targets, fifo, is_in_time=True)
    card = ProofCard(proof="order", void_reason="" if with_waiting else "no ticket ever waited")
    card.lines += [
        reported("steps", steps),
        reported("of them while a ticket waited", with_waiting),
        exactly("of them with room for a ticket that had waited longer than a step", idle, 0),
        *worst_at_least(f"throughput at {LOAD_FACTOR:g} of FIFO's limit, of FIFO's", ordered, MIN_THROUGHPUT_PERCENT),
        *worst_at_least("the same with TTFT targets, tokens within the target", in_time, MIN_THROUGHPUT_PERCENT),
        reported("the same with TTFT targets, all tokens, worst", min(admitted), "%"),
    ]
    card.notes.append("with TTFT targets, admission rejects requests in bursts that FIFO answers too late")
    return card


def simulate_observed(seed: int) -> ObservedMesh:
    """Run two different workers with scarce KV, two shards and two schedulers, under overload."""
    small = WorkerKind(slots=24, kv_blocks=1_000)
    tenants = [
        chat_tenant(arrivals_for_seed(seed, FIFO_CAPACITY_RPS / 4), name=f"tenant-{number}") for number in range(4)
    ]
    mesh: dict[str, Any] = {"queues": queue_settings("penstock", shards=2), "schedulers": SchedulerSettings(count=2)}
    scenario = proof_scenario("order", *tenants, seed=seed, duration=30.0, load=3.0, workers=(WORKER, small), **mesh)
    observed: list[ObservedMesh] = []

    def new_mesh(scenario: Scenario, events: SimEventQueue) -> SimMesh:
        observed.append(ObservedMesh(scenario, events))
        return observed[-1]

    Simulation(scenario, new_mesh).run()
    return observed[0]


def simulate_below_limit(seed: int, policy: str) -> Simulation:
    return Simulation(
        proof_scenario(
            "calm", chat_tenant(arrivals_for_seed(seed)), policy=policy, seed=seed, duration=40.0, load=LOAD_FACTOR
        )
    ).run()


def _percent_of(ours: Sequence[Simulation], fifo: Sequence[Simulation], *, is_in_time: bool = False) -> list[float]:
    """Return the tokens of each run in % of FIFO's; `is_in_time`: only of answers whose TTFT met the SLO."""
    counts = [[_total_tokens(each, is_in_time=is_in_time) for each in runs] for runs in (ours, fifo)]
    return [100 * one / other for one, other in zip(*counts, strict=True)]


def _total_tokens(simulation: Simulation, *, is_in_time: bool) -> int:
    transcripts = [each.transcript for each in simulation.ledger.requests]
    max_ttft = simulation.scenario.targets.ttft if is_in_time else inf
    return sum(each.tokens for each in transcripts if each.ttft is not None and each.ttft <= max_ttft)
