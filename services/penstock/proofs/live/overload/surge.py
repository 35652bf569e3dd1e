"""At three times their capacity, real processes have the goodput that the simulator predicts, and reject at low cost.

The cost of a rejection is the additional CPU time of a tier at `HEAVY_OVERLOAD` times the capacity, compared with that
at `OVERLOAD` before and after, divided by the number of additional rejections. At all of these loads the workers are
full, so that the cost of tokens cancels out; the cost of additional admitted requests is subtracted. The CPU time of
the clients is not counted.

Goals are judged for the session API, because a client with many requests uses a session. A rejected gRPC call costs
more than the goal before any code of the mesh runs, so the other APIs are reported, each with its rejection floor.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from rich.console import Console

from penstock.bench.drivers.driver import HTTP_APIS, Driver, open_driver
from penstock.bench.load import BenchRequest
from penstock.bench.report import Slo, report_of
from penstock.bench.run import process_cpu_s, send_at_times
from penstock.bench.transcript import Transcript
from penstock.client import Options
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import ProofCard, reported
from penstock.proofs.live.overload.rejection_floor import measure_floors
from penstock.proofs.live.overload.surge_lines import (
    APIS,
    HEAVY_OVERLOAD,
    JUDGED_API,
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
from penstock.proofs.testbed.faults.fault_run import add_residue
from penstock.proofs.testbed.testbed import Testbed, open_testbed
from penstock.simulator.capacity_plan import knee_load
from penstock.simulator.report.figures import figures_of
from penstock.simulator.scenario import QueueSettings, Scenario, SchedulerSettings, SimTenant, SloTargets, WorkerKind
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Poisson
from penstock.simulator.traffic.demand import Fixed, LogNormal, OfferedRequest, SampledDemand
from penstock.worker.engine.simulated.step_time import StepTimeModel

# Slow enough that the host has most of its CPU time left at every load.
STEP_TIME = StepTimeModel(base_s=0.03, per_prefill_token_s=0.0001, per_decode_seq_s=0.001)
WORKER = WorkerKind(slots=16, kv_blocks=2_000, step_time=STEP_TIME)
PROMPT = LogNormal(mean=80, sigma=0.5, low=8, high=400)
OUTPUT = LogNormal(mean=40, sigma=0.5, low=4, high=160)
TTFT_TARGET_S = 2.0  # s
TENANT = "surge"
WARM_UP_S = 10.0  # s; of the queue's predictions as well
SHORT_RUN_SHARE = 0.5  # of the judged time, for loads that are only reported
UNSATURATED_LOAD = 0.4  # times the capacity of FIFO; no request is rejected
LONG_OUTPUT_TOKENS = 40
SHORT_OUTPUT_DIVISOR = 5  # short answers have a fifth of these tokens, and there are five times as many


@dataclass(frozen=True, slots=True, kw_only=True)
class SurgeOptions:
    seconds: float = 40.0  # of each load that are judged
    seed: int = 0


async def surge(options: SurgeOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    world = scenario(options, mesh)
    knee = await asyncio.to_thread(knee_load, replace(world, load=1.0, duration=60.0))
    simulated = await asyncio.to_thread(_simulate, world, OVERLOAD * knee)
    simulated_heavy = await asyncio.to_thread(_simulate, world, HEAVY_OVERLOAD * knee)
    results: dict[str, tuple[LoadResult, LoadResult]] = {}
    async with open_testbed(mesh, console, settings=mesh_settings()) as testbed:
        async with open_surge_driver(testbed, JUDGED_API) as driver:
            # The warm-up also covers the work that a process does once.
            await offer_load(testbed, driver, replace(world, duration=WARM_UP_S, warm_up=0.0), OVERLOAD * knee)
            results[JUDGED_API] = await _offer_both(testbed, driver, world, knee)
            repeated = await offer_load(testbed, driver, world, OVERLOAD * knee)
            long_world = unsaturated_scenario(world, LONG_OUTPUT_TOKENS)
            short_world = unsaturated_scenario(world, LONG_OUTPUT_TOKENS // SHORT_OUTPUT_DIVISOR)
            long_outputs = await offer_load(testbed, driver, long_world, UNSATURATED_LOAD * knee)
            short_outputs = await offer_load(
                testbed, driver, short_world, UNSATURATED_LOAD * SHORT_OUTPUT_DIVISOR * knee
            )
        short_run = replace(world, duration=WARM_UP_S + SHORT_RUN_SHARE * options.seconds)
        for api in APIS:
            if api != JUDGED_API:
                async with open_surge_driver(testbed, api) as driver:
                    results[api] = await _offer_both(testbed, driver, short_run, knee)
        residue = await testbed.residue()
    floors = await measure_floors()
    real, heavy = results[JUDGED_API]
    admission_cpu_s = cpu_s_per_admitted(long_outputs.cost, short_outputs.cost)
    card = ProofCard(proof="surge", void_reason=surge_void_reason(real, heavy))
    card.lines += [
        reported("capacity of FIFO", knee * base_rate(world), "requests/s"),
        *goodput_lines(real, simulated),
        *rejection_lines(real, heavy),
        *edge_rejection_lines(OVERLOAD, real, simulated),
        *edge_rejection_lines(HEAVY_OVERLOAD, heavy, simulated_heavy),
        *admission_cost_lines(long_outputs, short_outputs, {OVERLOAD: real, HEAVY_OVERLOAD: heavy}),
        drift_line(real, repeated),
    ]
    for api, (less, more) in results.items():
        card.lines += rejection_cost_lines(
            api,
            less,
            more,
            floors[api],
            repeated=repeated if api == JUDGED_API else None,
            cpu_s_per_admission=admission_cpu_s,
        )
    add_residue(card, residue)
    return card


def _simulate(scenario: Scenario, load: float) -> Mapping[str, Any]:
    """Return the figures of the same requests under virtual time."""
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
    """Return the scenario of the real and of the simulated run: the same processes, engine and requests."""
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
    """Return a scenario whose answers have `output_tokens` tokens and whose prompts have the shortest length."""
    demand = SampledDemand(Poisson(base_rate(scenario)), Fixed(PROMPT.low), Fixed(output_tokens))
    tenant = SimTenant(name=TENANT, demand=demand)
    return replace(scenario, tenants=(tenant,), duration=SHORT_RUN_SHARE * scenario.duration, warm_up=0.0)


def base_rate(scenario: Scenario) -> float:
    """Return the requests/s at load 1."""
    return float(scenario.worker_count)


@asynccontextmanager
async def open_surge_driver(testbed: Testbed, api: str) -> AsyncIterator[Driver]:
    edges = testbed.mesh.plan.processes_of("edge")
    addresses = [testbed.mesh.plan.http] if api in HTTP_APIS else [edge.address for edge in edges]
    async with open_driver(api, addresses, testbed.mesh.api_key, clock=time.monotonic) as driver:
        yield driver


async def _offer_both(
    testbed: Testbed, driver: Driver, scenario: Scenario, knee: float
) -> tuple[LoadResult, LoadResult]:
    return (
        await offer_load(testbed, driver, scenario, OVERLOAD * knee),
        await offer_load(testbed, driver, scenario, HEAVY_OVERLOAD * knee),
    )


async def offer_load(testbed: Testbed, driver: Driver, scenario: Scenario, load: float) -> LoadResult:
    """Send the scenario's requests at their times, and read every answer to its end."""
    [tenant] = scenario.tenants
    every = tenant.demand.requests(f"{scenario.seed}/{tenant.name}", load)
    requests = list(takewhile(lambda request: request.at < scenario.duration, every))
    transcripts: list[Transcript] = []

    async def send(request: OfferedRequest) -> None:
        transcript = Transcript(number=len(transcripts), started_at=time.monotonic())
        transcripts.append(transcript)
        if transcript.number % 20 == 0:
            testbed.report_progress(f"load {load:.1f}: {transcript.number} of {len(requests)} requests sent")
        await driver.send(_bench_request(request, transcript.number), transcript)

    cpu_before = _cpu_by_tier(testbed)
    rejected_before = await testbed.sum_figure("edge", "rejected_by_edge")
    started_at = time.monotonic()
    await send_at_times(requests, lambda request: request.at, send)
    counted = [each for each in transcripts if each.started_at - started_at >= scenario.warm_up]
    slo = Slo(ttft=scenario.targets.ttft, tpot=scenario.targets.tbt)
    good = [each for each in counted if slo.is_met_by(each)]
    return LoadResult(
        figures=report_of(counted, scenario.duration - scenario.warm_up, {}, slo),
        transcripts=transcripts,
        good_tokens=sum(requests[each.number].prompt_tokens + 2 * each.tokens for each in good),
        cpu_s={tier: used - cpu_before[tier] for tier, used in _cpu_by_tier(testbed).items()},
        rejected_by_edges=await testbed.sum_figure("edge", "rejected_by_edge") - rejected_before,
        client_lag_s=transcripts[-1].started_at - started_at - requests[-1].at,
    )


def _bench_request(request: OfferedRequest, number: int) -> BenchRequest:
    prompt = [3 + (number + place) % 200 for place in range(request.prompt_tokens)]
    options = Options(max_output_tokens=request.output_tokens, ignore_eos=True, seed=number)
    return BenchRequest(number=number, prompt=prompt, options=options)


def _cpu_by_tier(testbed: Testbed) -> dict[str, float]:
    """Return the CPU time in s of the processes of each tier and their children."""
    used: dict[str, float] = {}
    for child in testbed.mesh.processes.children:
        used[child.spec.tier] = used.get(child.spec.tier, 0.0) + process_cpu_s(child.process.pid)
    return used
