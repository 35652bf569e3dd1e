"""Nobody waits beside an engine that could serve them: looked at after every step of every worker."""

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

LINK_HOPS = (
    6  # that a ticket takes from its edge to a step, each `link_delay`: enqueue, offer, place, lease, start, release
)
LOAD_FACTOR = 0.9  # times what FIFO can serve
MIN_THROUGHPUT_PERCENT = 99.0  # % of FIFO's


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkConservationOptions:
    seeds: int = 5


class ObservedMesh(SimMesh):
    """Counts steps all through which a worker had room in every respect for a ticket that waited longer than one."""

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
        took = now - self._step_started_at.get(worker.name, now)
        self._step_started_at[worker.name] = now
        self.steps += 1
        waiting = [ticket for shard in self.shards.values() for ticket in shard.book.tickets.values()]
        self.steps_with_waiting += bool(waiting)
        patience = took + LINK_HOPS * self._scenario.link_delay + LOOP_TURN_S
        rooms = {True: free_kv_tokens(worker), False: free_kv_tokens(worker, self._express_slots)}
        self.idle_steps += any(
            now - each.arrived > patience and each.tokens <= rooms[each.is_expedited] for each in waiting
        )

    @property
    def _express_slots(self) -> int:
        """Most slots, all of which may be this worker's, that are kept for tickets that go first."""
        share = self._scenario.schedulers.express_slot_share
        return int(share * sum(worker.kind.slots for worker in self._workers.values()))


def free_kv_tokens(worker: SimWorker, reserved_slots: int = 0) -> int:
    """Tokens of KV that nobody had all through the step that is just over; 0 where it had no slot or budget left.

    Slots that are kept for others count as theirs.

    Runs that the step has ended still count: their room is nobody's until a scheduler hears of it, and of what the
    step before made, all that came on the way since is taken off.
    """
    kind, runs = worker.kind, worker.runs.values()
    has_budget = worker.engine.occupancy().prefill_backlog_tokens + len(runs) < kind.batching.token_budget
    held = sum(-(-(run.prompt_tokens + run.max_output_tokens) // kind.block_size) for run in runs)
    return (kind.kv_blocks - held) * kind.block_size if has_budget and len(runs) + reserved_slots < kind.slots else 0


async def work_conservation(options: WorkConservationOptions, _: MeshOptions, console: Console) -> ProofCard:
    return await asyncio.to_thread(prove, options, console)


def prove(options: WorkConservationOptions, console: Console) -> ProofCard:
    steps = idle = crowded = 0
    with progress_reporter(console) as say:
        for seed in range(options.seeds):
            say(f"seed {seed} of {options.seeds}")
            found = simulate_observed(seed)
            steps, idle, crowded = steps + found.steps, idle + found.idle_steps, crowded + found.steps_with_waiting
        say("throughput beside FIFO's")
        seeds = range(options.seeds)
        theirs = [simulate_below_limit(seed, "fifo") for seed in seeds]
        ordered = _percent_of([simulate_below_limit(seed, "fair") for seed in seeds], theirs)
        promising = [simulate_below_limit(seed, "penstock") for seed in seeds]
        admitted, in_time = _percent_of(promising, theirs), _percent_of(promising, theirs, is_in_time=True)
    card = ProofCard(proof="order", void_reason="" if crowded else "nobody ever waited")
    card.lines += [
        reported("steps", steps),
        reported("of them while somebody waited", crowded),
        exactly("of them with room for one that waited for longer than a step", idle, 0),
        *worst_at_least(f"throughput at {LOAD_FACTOR:g} of FIFO's limit, of FIFO's", ordered, MIN_THROUGHPUT_PERCENT),
        *worst_at_least("the same with a promise, of what came within it", in_time, MIN_THROUGHPUT_PERCENT),
        reported("the same with a promise, whenever it came, worst", min(admitted), "%"),
    ]
    card.notes.append(
        "a promise refuses in bursts what FIFO answers too late: that is admission's work, not the order's"
    )
    return card


def simulate_observed(seed: int) -> ObservedMesh:
    """Two unlike workers whose KV is scarce, two shards, two schedulers: what could keep a ticket from its place."""
    small = WorkerKind(slots=24, kv_blocks=1_000)
    tenants = [
        chat_tenant(arrivals_for_seed(seed, FIFO_CAPACITY_RPS / 4), name=f"tenant-{number}") for number in range(4)
    ]
    mesh: dict[str, Any] = {"queues": queue_settings("penstock", shards=2), "schedulers": SchedulerSettings(count=2)}
    asked = proof_scenario("order", *tenants, seed=seed, duration=30.0, load=3.0, workers=(WORKER, small), **mesh)
    found: list[ObservedMesh] = []

    def new_mesh(scenario: Scenario, events: SimEventQueue) -> SimMesh:
        found.append(ObservedMesh(scenario, events))
        return found[-1]

    Simulation(asked, new_mesh).run()
    return found[0]


def simulate_below_limit(seed: int, policy: str) -> Simulation:
    return Simulation(
        proof_scenario(
            "calm", chat_tenant(arrivals_for_seed(seed)), policy=policy, seed=seed, duration=40.0, load=LOAD_FACTOR
        )
    ).run()


def _percent_of(ours: Sequence[Simulation], theirs: Sequence[Simulation], *, is_in_time: bool = False) -> list[float]:
    """Return the tokens of each of ours in % of theirs; `is_in_time`: of answers that began within the SLO alone."""
    counts = [[_total_tokens(each, is_in_time=is_in_time) for each in seen] for seen in (ours, theirs)]
    return [100 * one / other for one, other in zip(*counts, strict=True)]


def _total_tokens(simulation: Simulation, *, is_in_time: bool) -> int:
    histories = [each.transcript for each in simulation.ledger.requests]
    most = simulation.scenario.targets.ttft if is_in_time else inf
    return sum(each.tokens for each in histories if each.ttft is not None and each.ttft <= most)
