"""Nobody waits beside an engine that could serve them: looked at after every step of every worker."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from rich.console import Console

from penstock.bench.progress import saying
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import Card, exactly, told
from penstock.proofs.simulated.scenarios import RATE, WORKER, arrivals, chat, least, queues, world
from penstock.simulator.mesh.event_queue import Events
from penstock.simulator.mesh.mesh import SimMesh
from penstock.simulator.mesh.shard import TURN
from penstock.simulator.mesh.worker import SimWorker
from penstock.simulator.scenario import Scenario, Schedulers, WorkerKind
from penstock.simulator.simulation import Simulation

LINKS = (
    6  # that a ticket takes from its edge to a step, each `link_delay`: enqueue, offer, place, lease, start, release
)
CALM = 0.9  # times what FIFO can serve
THROUGHPUT = 99.0  # % of FIFO's


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions:
    seeds: int = 5


class WatchedMesh(SimMesh):
    """Counts steps all through which a worker had room in every respect for a ticket that waited longer than one."""

    def __init__(self, scenario: Scenario, events: Events) -> None:
        self.steps = self.idle = self.crowded = 0
        self._began: dict[str, float] = {}
        super().__init__(scenario, events)

    @property
    def watches_steps(self) -> bool:
        return True

    def stepped(self, worker: SimWorker) -> None:
        super().stepped(worker)
        now = self._events.now
        took = now - self._began.get(worker.name, now)
        self._began[worker.name] = now
        self.steps += 1
        waiting = [ticket for shard in self.shards.values() for ticket in shard.book.tickets.values()]
        self.crowded += bool(waiting)
        patience = took + LINKS * self._scenario.link_delay + TURN
        rooms = {True: unused(worker), False: unused(worker, self._kept)}
        self.idle += any(now - each.arrived > patience and each.tokens <= rooms[each.is_expedited] for each in waiting)

    @property
    def _kept(self) -> int:
        """Most slots, all of which may be this worker's, that are kept for tickets that go first."""
        share = self._scenario.schedulers.reserve_share
        return int(share * sum(worker.kind.slots for worker in self._workers.values()))


def unused(worker: SimWorker, kept: int = 0) -> int:
    """Tokens of KV that nobody had all through the step that is just over; 0 where it had no slot or budget left.

    Slots that are kept for others count as theirs.

    Runs that the step has ended still count: their room is nobody's until a scheduler hears of it, and of what the
    step before made, all that came on the way since is taken off.
    """
    kind, runs = worker.kind, worker.runs.values()
    has_budget = worker.engine.fill().prefill_backlog + len(runs) < kind.batching.token_budget
    held = sum(-(-(run.prompt + run.declared) // kind.block_size) for run in runs)
    return (kind.kv_blocks - held) * kind.block_size if has_budget and len(runs) + kept < kind.slots else 0


async def order(asked: OrderOptions, _: MeshOptions, console: Console) -> Card:
    return await asyncio.to_thread(prove, asked, console)


def prove(asked: OrderOptions, console: Console) -> Card:
    steps = idle = crowded = 0
    with saying(console) as say:
        for seed in range(asked.seeds):
            say(f"seed {seed} of {asked.seeds}")
            found = watched(seed)
            steps, idle, crowded = steps + found.steps, idle + found.idle, crowded + found.crowded
        say("throughput beside FIFO's")
        seeds = range(asked.seeds)
        theirs = [calm(seed, "fifo") for seed in seeds]
        ordered = _shares([calm(seed, "fair") for seed in seeds], theirs)
        promising = [calm(seed, "penstock") for seed in seeds]
        admitted, in_time = _shares(promising, theirs), _shares(promising, theirs, is_in_time=True)
    card = Card(proof="order", void="" if crowded else "nobody ever waited")
    card.lines += [
        told("steps", steps),
        told("of them while somebody waited", crowded),
        exactly("of them with room for one that waited for longer than a step", idle, 0),
        *least(f"throughput at {CALM:g} of FIFO's limit, of FIFO's", ordered, THROUGHPUT),
        *least("the same with a promise, of what came within it", in_time, THROUGHPUT),
        told("the same with a promise, whenever it came, worst", min(admitted), "%"),
    ]
    card.notes.append(
        "a promise refuses in bursts what FIFO answers too late: that is admission's work, not the order's"
    )
    return card


def watched(seed: int) -> WatchedMesh:
    """Two unlike workers whose KV is scarce, two shards, two schedulers: what could keep a ticket from its place."""
    small = WorkerKind(slots=24, kv_blocks=1_000)
    tenants = [chat(arrivals(seed, RATE / 4), name=f"tenant-{number}") for number in range(4)]
    mesh: dict[str, Any] = {"queues": queues("penstock", shards=2), "schedulers": Schedulers(count=2)}
    asked = world("order", *tenants, seed=seed, duration=30.0, load=3.0, workers=(WORKER, small), **mesh)
    found: list[WatchedMesh] = []

    def new_mesh(scenario: Scenario, events: Events) -> SimMesh:
        found.append(WatchedMesh(scenario, events))
        return found[-1]

    Simulation(asked, new_mesh).run()
    return found[0]


def calm(seed: int, policy: str) -> Simulation:
    return Simulation(world("calm", chat(arrivals(seed)), policy=policy, seed=seed, duration=40.0, load=CALM)).run()


def _shares(ours: Sequence[Simulation], theirs: Sequence[Simulation], *, is_in_time: bool = False) -> list[float]:
    """Return the tokens of each of ours in % of theirs; `is_in_time`: of answers that began within the SLO alone."""
    counts = [[_tokens(each, is_in_time=is_in_time) for each in seen] for seen in (ours, theirs)]
    return [100 * one / other for one, other in zip(*counts, strict=True)]


def _tokens(seen: Simulation, *, is_in_time: bool) -> int:
    histories = [each.history for each in seen.ledger.requests]
    most = seen.scenario.targets.ttft if is_in_time else inf
    return sum(each.tokens for each in histories if each.ttft is not None and each.ttft <= most)
