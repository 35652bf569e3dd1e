"""Real processes under three times what they can carry: they do what the simulator says, and a refusal is cheap.

What a refusal costs is what more of them cost more: all CPU time of a tier at `FLOOD` times the load, less that at
`LOAD` times before and after, by the refusals that there were more of. All keep the workers full, so that tokens cancel
out, and what more requests were let in is taken out (`surge_cost`); the SDK's own side is not counted.

Asked for are sessions, as whoever has much to ask has one, and by these the goals are judged. A refused call of its own
costs more than the goal before any of our code runs, so calls and HTTP are told, and beside each the floor of its kind
in this run: what gRPC or the HTTP server takes to say no.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import psutil
from rich.console import Console

from penstock.bench.history import History
from penstock.bench.report import Slo, report
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import Card, told
from penstock.proofs.lines import residue_lines
from penstock.proofs.live.refusal_floor import measured_floors
from penstock.proofs.live.surge_cost import of_one_let_in
from penstock.proofs.live.surge_lines import (
    FLOOD,
    JUDGED,
    LOAD,
    Offered,
    alone_lines,
    cost_lines,
    drift_line,
    goodput_lines,
    let_in_lines,
    refusal_lines,
    void_because,
)
from penstock.proofs.testbed.drivers import WAYS, Asking, Way
from penstock.proofs.testbed.testbed import Rig, rig
from penstock.simulator.report.figures import figures_of
from penstock.simulator.scenario import Queues, Scenario, Schedulers, Targets, Tenant, WorkerKind
from penstock.simulator.simulation import Simulation
from penstock.simulator.sweep import knee
from penstock.simulator.traffic.arrivals import Poisson
from penstock.simulator.traffic.demand import Drawn
from penstock.simulator.traffic.lengths import Fixed, LogNormal
from penstock.worker.engine.step_law import StepTimeModel

# Slow enough for the host to have most of its time left, whatever is offered.
LAW = StepTimeModel(base_s=0.03, per_prefill_token_s=0.0001, per_decode_seq_s=0.001)
WORKER = WorkerKind(slots=16, kv_blocks=2_000, law=LAW)
PROMPT = LogNormal(mean=80, sigma=0.5, low=8, high=400)
OUTPUT = LogNormal(mean=40, sigma=0.5, low=4, high=160)
TTFT = 2.0  # s, promised
TENANT = "surge"
WARM_UP = 10.0  # s; of the queue's predictions too
LESS = 0.5  # share of the time that counts, for what is told and not judged
CALM = 0.4  # of what FIFO serves: nobody is refused
LONG, SHORTER = 40, 5  # tokens of few answers; parts that as many tokens are cut into for many answers


@dataclass(frozen=True, slots=True, kw_only=True)
class SurgeOptions:
    seconds: float = 40.0  # that count, of each load
    seed: int = 0


async def surge(asked: SurgeOptions, mesh: MeshOptions, console: Console) -> Card:
    world = scenario(asked, mesh)
    limit = await asyncio.to_thread(knee, replace(world, load=1.0, duration=60.0))
    simulated = await asyncio.to_thread(_simulated, world, LOAD * limit)
    flooded = await asyncio.to_thread(_simulated, world, FLOOD * limit)
    offered: dict[str, tuple[Offered, Offered]] = {}
    async with rig(mesh, console, settings=settings()) as stage:
        judged = WAYS[JUDGED]
        await _offer(
            stage, judged, replace(world, duration=WARM_UP, warm_up=0.0), LOAD * limit
        )  # what a process does once
        for name, way in WAYS.items():
            each = world if name == JUDGED else replace(world, duration=WARM_UP + LESS * asked.seconds)
            offered[name] = await _offer(stage, way, each, LOAD * limit), await _offer(stage, way, each, FLOOD * limit)
            if name == JUDGED:
                again = await _offer(stage, way, each, LOAD * limit)
        few = await _offer(stage, judged, calm(world, LONG), CALM * limit)
        many = await _offer(stage, judged, calm(world, LONG // SHORTER), CALM * SHORTER * limit)
        residue = await stage.residue()
    floors = await measured_floors()
    (real, flood), let_in = offered[JUDGED], of_one_let_in(few.spent, many.spent)
    card = Card(proof="surge", void=void_because(real, flood))
    card.lines += [told("what FIFO serves", limit * rate(world), "requests/s")]
    card.lines += [*goodput_lines(real, simulated), *refusal_lines(real, flood)]
    card.lines += [*alone_lines(LOAD, real, simulated), *alone_lines(FLOOD, flood, flooded)]
    card.lines += [*let_in_lines(few, many, {LOAD: real, FLOOD: flood}), drift_line(real, again)]
    for name, (less, more) in offered.items():
        before_and_after = again if name == JUDGED else None
        card.lines += cost_lines(name, less, more, floors[name], again=before_and_after, let_in=let_in)
    card.lines += residue_lines(residue)
    return card


def _simulated(world: Scenario, load: float) -> Mapping[str, Any]:
    """Return the figures of the very same requests under virtual time."""
    return figures_of(Simulation(replace(world, load=load)).run())


def settings() -> tuple[str, ...]:
    worker = {
        "SLOTS": WORKER.slots,
        "KV_BLOCKS": WORKER.kv_blocks,
        "SIM_BASE_S": LAW.base_s,
        "SIM_PER_PREFILL_TOKEN_S": LAW.per_prefill_token_s,
        "SIM_PER_DECODE_SEQ_S": LAW.per_decode_seq_s,
    }
    return (
        f"PENSTOCK_QUEUE_TTFT_STANDARD={TTFT}",
        *(f"PENSTOCK_WORKER_{name}={value}" for name, value in worker.items()),
    )


def scenario(asked: SurgeOptions, mesh: MeshOptions) -> Scenario:
    """The same world for both: as many processes, the same engine, and the very same requests."""
    return Scenario(
        name="surge",
        tenants=(Tenant(name=TENANT, demand=Drawn(Poisson(1.0 * mesh.workers), PROMPT, OUTPUT)),),
        workers=(replace(WORKER, count=mesh.workers),),
        queues=Queues(shards=mesh.queues),
        schedulers=Schedulers(count=mesh.schedulers),
        targets=Targets(ttft=TTFT, tbt=0.2),
        duration=WARM_UP + asked.seconds,
        warm_up=WARM_UP,
        seed=asked.seed,
    )


def calm(world: Scenario, output: int) -> Scenario:
    """Answers of one length, each with the least of a prompt."""
    tenant = Tenant(name=TENANT, demand=Drawn(Poisson(rate(world)), Fixed(PROMPT.low), Fixed(output)))
    return replace(world, tenants=(tenant,), duration=LESS * world.duration, warm_up=0.0)


def rate(world: Scenario) -> float:
    return float(world.worker_count)


async def _offer(stage: Rig, way: Way, world: Scenario, load: float) -> Offered:
    """Ask for what the scenario asks for, at its times, and read every answer to its end."""
    async with way(stage) as asking:
        return await _ask_all(stage, asking, replace(world, load=load))


async def _ask_all(stage: Rig, asking: Asking, world: Scenario) -> Offered:
    [tenant] = world.tenants
    asked = tenant.demand.asks(f"{world.seed}/{tenant.name}", world.load)
    asks = list(takewhile(lambda ask: ask.at < world.duration, asked))
    histories, began, before, by_edges = (
        [],
        time.monotonic(),
        _cpu(stage),
        await stage.total("edge", "rejected_by_edge"),
    )
    async with asyncio.TaskGroup() as group:
        for number, ask in enumerate(asks):
            await asyncio.sleep(max(0.0, began + ask.at - time.monotonic()))
            histories.append(History(number=number, started=time.monotonic() - began))
            group.create_task(asking(ask, histories[-1], began))
            if number % 20 == 0:
                stage.say(f"{world.load:.1f} times one request/s: {number} of {len(asks)} asked")
        lag = histories[-1].started - asks[-1].at
    counted = [each for each in histories if each.started >= world.warm_up]
    slo = Slo(ttft=world.targets.ttft, tpot=world.targets.tbt)
    return Offered(
        figures=report(counted, world.duration - world.warm_up, {}, slo),
        histories=histories,
        tokens=sum(asks[each.number].prompt + 2 * each.tokens for each in counted if slo.is_met_by(each)),
        cpu={tier: spent - before[tier] for tier, spent in _cpu(stage).items()},
        by_edges=await stage.total("edge", "rejected_by_edge") - by_edges,
        lag=lag,
    )


def _cpu(stage: Rig) -> Counter[str]:
    """Return the CPU seconds that the processes of each tier have had, their children's too."""
    spent = Counter[str]()
    for child in stage.mesh.processes.children:
        process = psutil.Process(child.process.pid)
        for each in (process, *process.children(recursive=True)):
            times = each.cpu_times()
            spent[child.spec.tier] += times.user + times.system  # type: ignore[assignment]  # s, not counts
    return spent
