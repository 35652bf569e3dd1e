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

from penstock.bench.report import Slo, report_of
from penstock.bench.transcript import Transcript
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import ProofCard, reported
from penstock.proofs.lines import residue_lines
from penstock.proofs.live.rejection_floor import measure_floors
from penstock.proofs.live.surge_lines import (
    HEAVY_OVERLOAD,
    JUDGED_DRIVER,
    OVERLOAD,
    LoadResult,
    admission_cost_lines,
    cpu_s_per_admitted,
    drift_line,
    edge_rejection_lines,
    goodput_lines,
    rejection_cost_lines,
    rejection_lines,
    surge_void_reason,
)
from penstock.proofs.testbed.drivers import DRIVERS, OpenDriver, RequestDriver
from penstock.proofs.testbed.testbed import Testbed, open_testbed
from penstock.simulator.knee import knee_load
from penstock.simulator.report.figures import figures_of
from penstock.simulator.scenario import QueueSettings, Scenario, SchedulerSettings, SimTenant, SloTargets, WorkerKind
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Poisson
from penstock.simulator.traffic.demand import SampledDemand
from penstock.simulator.traffic.lengths import Fixed, LogNormal
from penstock.worker.engine.simulated.step_time import StepTimeModel

# Slow enough for the host to have most of its time left, whatever is offered.
STEP_TIME = StepTimeModel(base_s=0.03, per_prefill_token_s=0.0001, per_decode_seq_s=0.001)
WORKER = WorkerKind(slots=16, kv_blocks=2_000, step_time=STEP_TIME)
PROMPT = LogNormal(mean=80, sigma=0.5, low=8, high=400)
OUTPUT = LogNormal(mean=40, sigma=0.5, low=4, high=160)
TTFT_TARGET_S = 2.0  # s, promised
TENANT = "surge"
WARM_UP_S = 10.0  # s; of the queue's predictions too
SHORT_RUN_SHARE = 0.5  # share of the time that counts, for what is told and not judged
UNSATURATED_LOAD = 0.4  # of what FIFO serves: nobody is refused
LONG_OUTPUT_TOKENS, SHORT_OUTPUT_DIVISOR = (
    40,
    5,
)  # tokens of few answers; parts that as many tokens are cut into for many answers


@dataclass(frozen=True, slots=True, kw_only=True)
class SurgeOptions:
    seconds: float = 40.0  # that count, of each load
    seed: int = 0


async def surge(options: SurgeOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    world = scenario(options, mesh)
    limit = await asyncio.to_thread(knee_load, replace(world, load=1.0, duration=60.0))
    simulated = await asyncio.to_thread(_simulate, world, OVERLOAD * limit)
    flooded = await asyncio.to_thread(_simulate, world, HEAVY_OVERLOAD * limit)
    offered: dict[str, tuple[LoadResult, LoadResult]] = {}
    async with open_testbed(mesh, console, settings=mesh_settings()) as stage:
        judged = DRIVERS[JUDGED_DRIVER]
        await _offer_load(
            stage, judged, replace(world, duration=WARM_UP_S, warm_up=0.0), OVERLOAD * limit
        )  # what a process does once
        for name, way in DRIVERS.items():
            each = (
                world
                if name == JUDGED_DRIVER
                else replace(world, duration=WARM_UP_S + SHORT_RUN_SHARE * options.seconds)
            )
            offered[name] = (
                await _offer_load(stage, way, each, OVERLOAD * limit),
                await _offer_load(stage, way, each, HEAVY_OVERLOAD * limit),
            )
            if name == JUDGED_DRIVER:
                again = await _offer_load(stage, way, each, OVERLOAD * limit)
        few = await _offer_load(
            stage, judged, unsaturated_scenario(world, LONG_OUTPUT_TOKENS), UNSATURATED_LOAD * limit
        )
        many = await _offer_load(
            stage,
            judged,
            unsaturated_scenario(world, LONG_OUTPUT_TOKENS // SHORT_OUTPUT_DIVISOR),
            UNSATURATED_LOAD * SHORT_OUTPUT_DIVISOR * limit,
        )
        residue = await stage.residue()
    floors = await measure_floors()
    (real, flood), let_in = offered[JUDGED_DRIVER], cpu_s_per_admitted(few.cost, many.cost)
    card = ProofCard(proof="surge", void_reason=surge_void_reason(real, flood))
    card.lines += [reported("what FIFO serves", limit * base_rate(world), "requests/s")]
    card.lines += [*goodput_lines(real, simulated), *rejection_lines(real, flood)]
    card.lines += [
        *edge_rejection_lines(OVERLOAD, real, simulated),
        *edge_rejection_lines(HEAVY_OVERLOAD, flood, flooded),
    ]
    card.lines += [*admission_cost_lines(few, many, {OVERLOAD: real, HEAVY_OVERLOAD: flood}), drift_line(real, again)]
    for name, (less, more) in offered.items():
        before_and_after = again if name == JUDGED_DRIVER else None
        card.lines += rejection_cost_lines(
            name, less, more, floors[name], repeated=before_and_after, cpu_s_per_admission=let_in
        )
    card.lines += residue_lines(residue)
    return card


def _simulate(scenario: Scenario, load: float) -> Mapping[str, Any]:
    """Return the figures of the very same requests under virtual time."""
    return figures_of(Simulation(replace(scenario, load=load)).run())


def mesh_settings() -> tuple[str, ...]:
    worker = {
        "SLOTS": WORKER.slots,
        "KV_BLOCKS": WORKER.kv_blocks,
        "SIM_BASE_S": STEP_TIME.base_s,
        "SIM_PER_PREFILL_TOKEN_S": STEP_TIME.per_prefill_token_s,
        "SIM_PER_DECODE_SEQ_S": STEP_TIME.per_decode_seq_s,
    }
    return (
        f"PENSTOCK_QUEUE_TTFT_STANDARD={TTFT_TARGET_S}",
        *(f"PENSTOCK_WORKER_{name}={value}" for name, value in worker.items()),
    )


def scenario(options: SurgeOptions, mesh: MeshOptions) -> Scenario:
    """The same world for both: as many processes, the same engine, and the very same requests."""
    return Scenario(
        name="surge",
        tenants=(SimTenant(name=TENANT, demand=SampledDemand(Poisson(1.0 * mesh.workers), PROMPT, OUTPUT)),),
        workers=(replace(WORKER, count=mesh.workers),),
        queues=QueueSettings(shards=mesh.queues),
        schedulers=SchedulerSettings(count=mesh.schedulers),
        targets=SloTargets(ttft=TTFT_TARGET_S, tbt=0.2),
        duration=WARM_UP_S + options.seconds,
        warm_up=WARM_UP_S,
        seed=options.seed,
    )


def unsaturated_scenario(scenario: Scenario, output_tokens: int) -> Scenario:
    """Answers of one length, each with the least of a prompt."""
    tenant = SimTenant(
        name=TENANT, demand=SampledDemand(Poisson(base_rate(scenario)), Fixed(PROMPT.low), Fixed(output_tokens))
    )
    return replace(scenario, tenants=(tenant,), duration=SHORT_RUN_SHARE * scenario.duration, warm_up=0.0)


def base_rate(scenario: Scenario) -> float:
    return float(scenario.worker_count)


async def _offer_load(testbed: Testbed, open_driver: OpenDriver, scenario: Scenario, load: float) -> LoadResult:
    """Ask for what the scenario asks for, at its times, and read every answer to its end."""
    async with open_driver(testbed) as asking:
        return await _send_all(testbed, asking, replace(scenario, load=load))


async def _send_all(testbed: Testbed, driver: RequestDriver, scenario: Scenario) -> LoadResult:
    [tenant] = scenario.tenants
    asked = tenant.demand.requests(f"{scenario.seed}/{tenant.name}", scenario.load)
    asks = list(takewhile(lambda ask: ask.at < scenario.duration, asked))
    histories, began, before, by_edges = (
        [],
        time.monotonic(),
        _cpu_by_tier(testbed),
        await testbed.sum_figure("edge", "rejected_by_edge"),
    )
    async with asyncio.TaskGroup() as group:
        for number, ask in enumerate(asks):
            await asyncio.sleep(max(0.0, began + ask.at - time.monotonic()))
            histories.append(Transcript(number=number, started_at=time.monotonic() - began))
            group.create_task(driver(ask, histories[-1], began))
            if number % 20 == 0:
                testbed.report_progress(f"{scenario.load:.1f} times one request/s: {number} of {len(asks)} asked")
        lag = histories[-1].started_at - asks[-1].at
    counted = [each for each in histories if each.started_at >= scenario.warm_up]
    slo = Slo(ttft=scenario.targets.ttft, tpot=scenario.targets.tbt)
    return LoadResult(
        figures=report_of(counted, scenario.duration - scenario.warm_up, {}, slo),
        histories=histories,
        good_tokens=sum(asks[each.number].prompt_tokens + 2 * each.tokens for each in counted if slo.is_met_by(each)),
        cpu_s={tier: spent - before[tier] for tier, spent in _cpu_by_tier(testbed).items()},
        rejected_by_edges=await testbed.sum_figure("edge", "rejected_by_edge") - by_edges,
        client_lag_s=lag,
    )


def _cpu_by_tier(testbed: Testbed) -> Counter[str]:
    """Return the CPU seconds that the processes of each tier have had, their children's too."""
    spent = Counter[str]()
    for child in testbed.mesh.processes.children:
        process = psutil.Process(child.process.pid)
        for each in (process, *process.children(recursive=True)):
            times = each.cpu_times()
            spent[child.spec.tier] += times.user + times.system  # type: ignore[assignment]  # s, not counts
    return spent
